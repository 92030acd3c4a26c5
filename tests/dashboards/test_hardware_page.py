"""The hardware page against made-up machines and steps whose answers can be told by hand."""

from pathlib import Path

import duckdb
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import assert_says, page_of, said_of
from made_up_hardware import HOSTILE, PAIR_STEP, PHONE_STEP

from tokentape.dashboards import shell
from tokentape.dashboards.hardware import page, roofline
from tokentape.dashboards.hardware.roofline import HEIGHT, LETTER, LINE, WIDTH, Frame, Labels
from tokentape.dashboards.site import hardware
from tokentape.dashboards.units import number, quantity
from tokentape.flows.estimates import estimated
from tokentape.replay.tokens import Tokens
from tokentape.warehouse.load import load
from tokentape.warehouse.sql import connect
from tokentape.warehouse.tape import Store

PAGE = hardware  # of the fixtures page and said


def roof_of(connection: duckdb.DuckDBPyConnection, machine: str) -> pl.DataFrame:
    return hardware.asked(connection)("ceilings").filter(pl.col("hardware") == machine)


def test_a_ceiling_is_peak_times_efficiency_of_one_device(connection: duckdb.DuckDBPyConnection) -> None:
    rows = {(row["kind"], row["name"]): row for row in roof_of(connection, "gpu-pair").to_dicts()}
    assert rows["engines", "sm"]["peak"] == 500e12  # rated in bf16, not in the faster fp8
    assert rows["engines", "sm"]["reached"] == 250e12
    assert rows["tiers", "hbm"]["reached"] == 1e12
    assert [key for key, row in rows.items() if row["is_main"]] == [("engines", "sm"), ("tiers", "hbm")]


def roof_said(ceilings: pl.DataFrame, points: pl.DataFrame) -> str:
    step = points["step"][0] if points.height else ""
    return said_of(hardware, "roofline", ceilings.head(1).select("hardware", step=pl.lit(step)), ceilings=ceilings, on=points)


def test_an_engine_inside_the_memory_has_a_roof_of_its_own(connection: duckdb.DuckDBPyConnection) -> None:
    main = roof_of(connection, "in-memory").filter("is_main")
    assert main.select("kind", "name", "reached").rows() == [("engines", "pim", 1e12), ("memory", "pim", 800e9)]
    none = hardware.asked(connection)("points", steps=[])
    assert roof_said(roof_of(connection, "in-memory"), none).startswith(
        "in-memory balances at 1.25 operations per byte: below, pim's memory limits it (800 GB/s reached), above, pim (1 Top/s)"
    )


def test_operations_are_summed_over_layers_and_busy_shares_count_overlaps_once(connection: duckdb.DuckDBPyConnection) -> None:
    points = {row["operation"]: row for row in hardware.asked(connection)("points", steps=[PHONE_STEP]).to_dicts()}
    layers = points["attention, router, experts"]
    assert (layers["bytes"], layers["ops"]) == (6 * 30e6, 6 * 8e8)
    assert layers["seconds"] == pytest.approx(6e-3)  # reading, not the tenth of it that computing takes
    assert layers["share"] == pytest.approx(6 / 25)
    fetch = points["fetch missing experts"]
    assert (fetch["bytes"], fetch["ops"]) == (None, 0.0)  # moves no byte of the fast tier: no place under the roof
    assert fetch["share"] == pytest.approx(18 / 25)
    steps = hardware.asked(connection, 16)("steps")
    _, busy = page.lanes(hardware.asked(connection)("bars", steps=steps["step"].to_list()), steps)
    shares = {(row["step"], row["resource"]): row["busy"] for row in busy.to_dicts()}
    assert shares[PAIR_STEP, "hbm"] == pytest.approx(1.0)  # what the step reads, at the rate that is reached
    assert shares[PAIR_STEP, "sm"] == pytest.approx(2e9 / 250e12 / 1e-3)
    assert shares[PAIR_STEP, "nvlink"] == pytest.approx(0.1)  # 0.1 ms and, within it, another 0.05 ms
    assert shares[PHONE_STEP, "flash"] == pytest.approx(18 / 25)
    assert busy["worked"].to_list() == pytest.approx([1.0] * 6)  # side by side is once: 1.03 and 1.11 in sum


def test_clock_and_roof_name_one_bottleneck_for_an_estimated_step(tmp_path: Path) -> None:
    """What `tokentape step gpu --record` writes: the longest operation's limit under the roof is the lane that is busiest."""
    store = Store(str(tmp_path / "tape"))
    loads = {"hbm": Tokens(decodes=1, context=64), "sm": Tokens(decodes=0, context=1, prompt=2048)}
    made = {limit: estimated(store, "llama-2-7b", "h100", of, fits={}) for limit, of in loads.items()}
    for one in made.values():
        one.write(store)
    load(store, tmp_path / "w.duckdb")
    with connect(tmp_path / "w.duckdb") as opened:
        for limit, one in made.items():
            steps = hardware.asked(opened, 16)("steps").filter(pl.col("step") == one.step_id)
            points = hardware.asked(opened)("points", steps=[one.step_id])
            _, busy = page.lanes(hardware.asked(opened)("bars", steps=[one.step_id]), steps)
            assert busy["busy"].is_between(0.0, 1.0 + 1e-9).all()
            assert f"The bottleneck is {limit}, busy" in said_of(hardware, "clock", steps, busy=busy, points=points)
            assert f"): limited by {limit}, " in roof_said(roof_of(opened, "h100"), points)


def test_time_that_no_resource_explains_is_said(connection: duckdb.DuckDBPyConnection) -> None:
    step, points = pl.DataFrame({"seconds": 1.0, "step": PAIR_STEP}), hardware.asked(connection)("points", steps=[PAIR_STEP])
    lanes = pl.DataFrame({"resource": ["hbm", "sm"], "busy": [0.3, 0.02], "worked": 0.3, "step": PAIR_STEP})
    said = said_of(hardware, "clock", step, busy=lanes, points=points)
    assert "No resource is busy throughout: hbm 30 % and sm 2 %; for 70 % none works at its rate: launches and losses." in said


def test_figures_say_what_their_rows_hold(said: dict[str, dict[str, str]]) -> None:
    assert_says(said, "hardware")
    assert "in-memory|" not in said["clock"]  # the page then says what to run


def test_steps_open_on_a_machine_with_one_and_fewer_are_spread_and_said(connection: duckdb.DuckDBPyConnection) -> None:
    choices = hardware.page(connection, 16).choices
    assert choices[0]["step"]
    assert {c["window"] for c in choices if c["step"] == PHONE_STEP} == {"all", "early"}  # six layers: the first four can be seen
    assert {c["window"] for c in choices if c["step"] == PAIR_STEP} == {"all"}
    assert hardware.asked(connection, 1)("steps").height == 1
    assert hardware.page(connection, 1).lead.endswith("Shown: 1 of 2 recorded steps.")
    assert "Shown" not in hardware.page(connection, 2).lead


def test_energy_of_equal_places_is_one_row_and_every_number_has_its_source(connection: duckdb.DuckDBPyConnection) -> None:
    energy = hardware.asked(connection)("energy")
    assert energy["name"].to_list() == ["l2", "ext", "hbm", "nvlink", "dram", "flash", "flash"]
    assert energy["side"].to_list() == ["read and write"] * 3 + ["transfer"] + ["read and write", "read", "write"]
    assert energy["word"][0] == "1 (1 to 2)"
    html = shell.render(hardware.page(connection, 16), [(hardware.file, hardware.title)])
    numbers = hardware.asked(connection)("numbers")
    assert html.count("<td><code>") == numbers.height
    assert html.count('class="badge"') == numbers.filter("is_assumed").height
    assert html.count("<div data-when=") == 3
    assert HOSTILE not in html
    assert '<a href="https://example.org/paper">https://example.org/paper</a>; high: assumed' in html
    assert '<td><code>peak_bytes_per_s</code></td><td class="n">60 GB/s</td>' in html


def test_labels_cover_neither_points_nor_each_other(connection: duckdb.DuckDBPyConnection) -> None:
    steps = hardware.asked(connection, 16)("steps")
    points = hardware.asked(connection)("points", steps=steps["step"].to_list()).join(steps.select("step", "hardware"), on="step")
    frames, _, words, placed = roofline.roofs(hardware.asked(connection)("ceilings"), points)
    assert placed.height == 2 + 4  # what only moves bytes has no place
    for (hardware_name, step), group in placed.group_by("hardware", "step"):
        frame = frames[hardware_name]
        roof = words.filter((pl.col("hardware") == hardware_name) & (pl.col("step") == step))
        texts = [(r["word"], r["label_x"], r["label_y"]) for r in group.to_dicts()] + [
            (r["word"], r["x"], r["y"]) for r in roof.to_dicts()
        ]
        corners = [(word, *frame.pixel(x, y)) for word, x, y in texts]
        boxes = [(left, middle - LINE / 2, left + LETTER * len(word), middle + LINE / 2) for word, left, middle in corners]
        for n, box in enumerate(boxes):
            assert not any(_overlap(box, other) for other in boxes[n + 1 :]), texts[n]
            for row in group.to_dicts():
                x, y = frame.pixel(row["x"], row["y"])
                assert not (box[0] < x < box[2] and box[1] < y < box[3]), texts[n]


def _overlap(a: roofline.Box, b: roofline.Box) -> bool:
    return a[0] < b[2] - 1e-6 and b[0] < a[2] - 1e-6 and a[1] < b[3] - 1e-6 and b[1] < a[3] - 1e-6


@given(st.floats(0, WIDTH), st.floats(0, HEIGHT))
@settings(max_examples=50)
def test_pixels_and_values_are_inverse(left: float, top: float) -> None:
    frame = Frame((0.1, 3e4), (1e8, 1e15))
    assert frame.pixel(*frame.value(left, top)) == pytest.approx((left, top), abs=1e-6)


def test_a_crowded_frame_still_places_the_label() -> None:
    labels = Labels(Frame((1.0, 10.0), (1.0, 10.0)), [(0, 0, WIDTH, HEIGHT)])
    left, middle = labels.frame.pixel(*labels.place("word", [(-5, 50), (20, 50)]))
    assert (left, middle) == pytest.approx((20, 50))  # covered, but inside


def test_a_machine_without_a_peak_has_no_roof_and_the_page_stands() -> None:
    told = {"title": "two GPUs", "engine": "sm", "dtype": "bf16", "fast_tier": "hbm", "backing_tier": "", "n_devices": 2}
    page = page_of(hardware, lambda rows: rows["machines"].append({"hardware": "bare", "hardware_sha256": "0", **told}))
    assert [figure.chart for figure in page.figures] == [None, None, None]
    assert page.choices == ({"hardware": "bare", "step": "", "window": "all"},)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (41943040, "B", "40 MiB"),
        (80e9, "B", "80 GB"),
        (1.5e-7, "s", "150 ns"),
        (0.99992e-3, "s", "1 ms"),
        (0.0, "W", "0 W"),
        (0.314, "pJ/op", "0.314 pJ/op"),
        (8192, "1", "8,192"),
    ],
)
def test_quantities_are_readable(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_shares_are_per_cent() -> None:
    assert number("tiers.hbm.efficiency_frac", 0.787, "1") == "78.7 %"
