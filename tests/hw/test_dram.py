"""DRAM in closed form: within its bars of a cycle-level simulator, monotone, sourced, and wrong without the limits it claims."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusing import refuses

from tokentape.hw.dram import (
    ACCESS_BYTES,
    ADDRESS_MAPS,
    TIMINGS,
    access_frac,
    anchors,
    presets,
    refresh_frac,
    stream_frac,
    timing,
)
from tokentape.hw.sourced import BadSpec, Sourced, numbers

DOCS = Path(__file__).resolve().parents[2] / "docs" / "dram.md"
MEASURED = ("ddr5-4800", "ddr5-6400", "hbm2-2000", "hbm3-6400", "lpddr5-6400")
EXPERT_BYTES = 4_718_592
ANCHORS = anchors()
CHANNELS = {name: timing(name) for name in presets()}
BLOCKS = ACCESS_BYTES * 2 ** np.arange(20)


def found(pattern, block=None, address_map="bank-group", covered=True):
    """Anchors of a pattern at the presets' default queue and density."""
    return [
        anchor
        for anchor in ANCHORS
        if (anchor.pattern, anchor.block_bytes, anchor.address_map) == (pattern, block, address_map)
        and anchor.queue_depth == CHANNELS[anchor.preset].queue_entries.value
        and anchor.density == CHANNELS[anchor.preset].density
        and anchor.covered == covered
    ]


def with_cycles(channel, **cycles):
    return replace(channel, **{name: Sourced(value=n, low=n, high=n, source="test") for name, n in cycles.items()})


def rows_of_anchors() -> list[str]:
    """The table of docs/dram.md."""
    lines = []
    for a in ANCHORS:
        size = "-" if a.block_bytes is None else f"{a.block_bytes:,}"
        what = f"{a.preset} | {a.density} | {a.pattern.replace('_', ' ')} | {size} | {a.address_map} | {a.queue_depth}"
        form = (
            f"{a.predicted_frac:.3f} | {a.measured_frac:.3f} | {100 * a.deviation_frac:+.1f} % | {'yes' if a.covered else 'no'}"
        )
        lines.append(f"| {what} | {form} |")
    return lines


def rows_of_presets() -> list[str]:
    """The preset table of docs/dram.md."""
    lines = []
    for name, channel in CHANNELS.items():
        gb_s = f"{channel.peak_bytes_per_s.value / 1e9:.1f}"
        random = (float(access_frac(channel, n_bytes)) for n_bytes in (64, 512))
        form = [stream_frac(channel), stream_frac(channel, "row"), *random]
        fracs = " | ".join(f"{frac:.3f}" for frac in form)
        lines.append(f"| {name} | {channel.standard} | {channel.density} | {gb_s} | {fracs} | {channel.nRCD.source} |")
    return lines


@pytest.mark.parametrize(
    ("pattern", "block", "low", "high"),
    [
        *(("stream", None, -0.025, 0.025), ("random", EXPERT_BYTES, -0.025, 0.025), ("random", 64, -0.02, 0.07)),
        *(("random", 512, -0.01, 0.11), ("random", 4096, -0.01, 0.07), ("random", 32768, -0.01, 0.025)),
        ("random", 262144, -0.01, 0.025),  # from 512 B on bounded from above
    ],
)
def test_every_measured_preset_is_within_its_bars_at_the_default_queue(pattern, block, low, high):
    rows = found(pattern, block)
    assert {row.preset for row in rows} == set(MEASURED)
    assert {row.preset: round(row.deviation_frac, 4) for row in rows if not low <= row.deviation_frac <= high} == {}


def test_what_is_not_covered_is_an_upper_bound():
    outside = [anchor for anchor in ANCHORS if not anchor.covered]
    assert {anchor.address_map for anchor in outside} == set(ADDRESS_MAPS)
    assert all(anchor.deviation_frac >= -0.001 for anchor in outside)


def test_density_check():
    """Larger dies refresh longer: 8 Gb LPDDR5, 2 Gb HBM2 and 8 Gb HBM3 against the simulator's own front end."""
    rows = {(a.preset, a.density): a for a in ANCHORS if "own streaming front end" in a.source}
    assert {key: round(row.predicted_frac, 3) for key, row in rows.items()} == {
        ("lpddr5-6400", "8Gb"): 0.934,
        ("ddr5-4800", "16Gb"): 0.915,
        ("hbm2-2000", "2Gb"): 0.951,
        ("hbm3-6400", "8Gb"): 0.923,
    }
    assert all(abs(row.deviation_frac) <= 0.025 for row in rows.values())


def test_without_command_bus_and_activate_window_the_random_bars_break():
    """Refresh alone explains no preset's random access, and each of the two limits is needed by one."""
    refresh_only = {a.preset: stream_frac(CHANNELS[a.preset]) / a.measured_frac - 1.0 for a in found("random", 64)}
    assert min(refresh_only.values()) > 0.07
    free_bus = {"act_cycles": 0.01, "pre_cycles": 0.01, "rd_cycles": 0.01}
    for without, broken in ((free_bus, {"lpddr5-6400", "hbm2-2000"}), ({"nFAW": 0.01}, {"ddr5-4800", "ddr5-6400", "hbm3-6400"})):
        off = {
            a.preset: float(access_frac(with_cycles(CHANNELS[a.preset], **without), 64)) / a.measured_frac
            for a in found("random", 64)
        }
        assert {name for name, ratio in off.items() if ratio > 1.07} == broken


def test_measured_presets_hold_the_simulators_timings():
    """tCK, nRFC, nREFI, nRTP, nRP, nRCD, nFAW, nBL, ACT, PRE and peak, as the measurement had them."""
    names = ("tCK_ps", "nRFC", "nREFI", "nRTP", "nRP", "nRCD", "nFAW", "nBL", "act_cycles", "pre_cycles", "peak_bytes_per_s")
    expected = {
        "lpddr5-6400": (1250, 224, 3125, 8, 15, 15, 16, 2, 2, 1, 12.8e9),
        "ddr5-4800": (416, 710, 9375, 18, 34, 34, 48, 8, 2, 1, 19.2e9),
        "ddr5-6400": (312, 946, 12500, 24, 46, 46, 64, 8, 2, 1, 25.6e9),
        "hbm2-2000": (1000, 350, 3900, 5, 14, 14, 15, 2, 2, 1, 32.0e9),
        "hbm3-6400": (625, 560, 6240, 9, 26, 31, 24, 2, 1.5, 0.5, 51.2e9),
    }
    assert {name: tuple(getattr(CHANNELS[name], key).value for key in names) for name in expected} == expected


@pytest.mark.parametrize("name", presets())
@pytest.mark.parametrize("address_map", ADDRESS_MAPS)
def test_fractions_rise_with_the_block_and_stay_below_streaming(name, address_map):
    channel = CHANNELS[name]
    frac = access_frac(channel, BLOCKS, address_map)
    assert np.all((frac > 0.0) & (frac <= 1.0))
    assert np.all(np.diff(frac) >= 0.0)
    assert np.all(frac <= stream_frac(channel, address_map))
    assert frac[-1] == pytest.approx(stream_frac(channel, address_map))
    assert stream_frac(channel, "row") <= stream_frac(channel)
    assert np.all(access_frac(channel, BLOCKS, address_map, queue_depth=1) <= frac)


@given(name=st.sampled_from(presets()), more=st.floats(1.0, 8.0), block=st.integers(1, 1 << 22))
@settings(max_examples=60, deadline=None)
def test_longer_refresh_never_helps_and_no_block_exceeds_the_peak(name, more, block):
    channel = CHANNELS[name]
    slower = with_cycles(channel, nRFC=channel.nRFC.value * more)
    assert refresh_frac(slower) >= refresh_frac(channel)
    for address_map in ADDRESS_MAPS:
        frac = float(access_frac(channel, block, address_map))
        assert 0.0 < frac <= 1.0
        assert float(access_frac(slower, block, address_map)) <= frac


@pytest.mark.parametrize("name", presets())
def test_density_lengthens_refresh(name):
    channel = CHANNELS[name]
    by_density = sorted((number.value, stream_frac(channel.at_density(key))) for key, number in channel.rfc_ns_by_density.items())
    assert [frac for _, frac in by_density] == sorted((frac for _, frac in by_density), reverse=True)
    assert channel.at_density(channel.density).nRFC.value == channel.nRFC.value
    refuses(r"density '1Tb'; known: .*Gb", channel.at_density, "1Tb", error=BadSpec)


def test_faster_ddr5_is_not_faster_at_random_and_bytes_nobody_asked_for_are_lost():
    """Four activates per 20 ns whatever the clock."""
    slow, fast = (
        CHANNELS[name].peak_bytes_per_s.value * float(access_frac(CHANNELS[name], 64)) for name in ("ddr5-4800", "ddr5-6400")
    )
    assert fast <= 1.001 * slow
    channel = CHANNELS["ddr5-4800"]
    assert access_frac(channel, 32) == pytest.approx(access_frac(channel, 64) / 2)
    assert access_frac(channel, [[64, 96], [4096, 1 << 20]]).shape == (2, 2)


@pytest.mark.parametrize("name", presets())
def test_units_and_sources(name):
    """Clock, burst and peak agree, refresh is every 3.9 us (DDR4: 7.8), nRFC is the density's, every number has a source."""
    channel = CHANNELS[name]
    burst_s = channel.nBL.value * channel.clock_s / channel.n_pseudo_channels.value
    assert channel.transaction_bytes.value / burst_s == pytest.approx(channel.peak_bytes_per_s.value, rel=0.01)
    assert channel.nREFI.value * channel.clock_s == pytest.approx(7.8e-6 if name == "ddr4-3200" else 3.9e-6, rel=0.01)
    assert channel.nRFC.value * channel.clock_s == pytest.approx(
        channel.rfc_ns_by_density[channel.density].value * 1e-9, rel=0.005
    )
    every = dict(numbers(channel))
    assert len(every) >= 19
    assert all(number.source.strip() for number in every.values())
    assert channel.name.lower() == name
    assert timing(channel.name) == channel


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nREFI = 200", "no time is left"),
        ("nCCDL = 1", "reads would overlap"),
        ("nBL = 3", "correct one of them"),
        ('row_bus = "two"', "known: shared, own"),
        ("tCK_ps = 0", "tCK_ps must be above 0"),
        ("nXYZ = 3", "unknown key 'nXYZ'"),
    ],
)
def test_impossible_timings_are_refused_by_name(tmp_path, line, message):
    lines = (TIMINGS / "lpddr5-6400.toml").read_text().splitlines()
    key = line.split(" = ")[0]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join([line, *(kept for kept in lines if not kept.startswith(f"{key} = "))]))
    assert "mine.toml" in refuses(message, timing, str(path), error=BadSpec)


def test_typos_and_bad_arguments_are_named(tmp_path):
    refuses("did you mean lpddr5-6400", timing, "LPDR5-6400", error=BadSpec)
    refuses("no such timing file", timing, str(tmp_path / "gone.toml"), error=BadSpec)
    channel = CHANNELS["hbm2-2000"]
    for call in (
        lambda: access_frac(channel, 0),
        lambda: stream_frac(channel, "rows"),
        lambda: access_frac(channel, 64, queue_depth=0),
    ):
        refuses(r"block_bytes|address map|queue_depth", call)


def test_the_page_shows_todays_numbers():
    """Paste what is missing: docs/dram.md holds the form's values."""
    page = DOCS.read_text(encoding="utf-8").splitlines()
    missing = [line for line in [*rows_of_presets(), *rows_of_anchors()] if line not in page]
    assert not missing, "\n".join(missing)
