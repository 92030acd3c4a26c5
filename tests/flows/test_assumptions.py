"""docs/assumptions.md lists what the files hold, and what a constant moves is what the study says with it moved."""

from pathlib import Path

import pytest

from bench.docs import assumptions
from bench.docs.assumptions import TOLD, answered, constants, measured, page
from tokentape.flows.systems import SYSTEMS
from tokentape.hw import fit_files, profile, spec

PAGE = Path(__file__).resolve().parents[2] / "docs" / "assumptions.md"


def test_the_page_lists_every_constant_and_a_place_that_is_gone_is_one_line(monkeypatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert set(TOLD) == set(SYSTEMS)
    assert page(text) == text, "run `python -m bench.docs.assumptions docs/assumptions.md` with the systems that changed"
    monkeypatch.setitem(TOLD["kelle"]["others"], "study.toml no_such", "assumed")
    with pytest.raises(ValueError, match=r"there is no study.toml no_such; take it out"):
        constants("kelle")


@pytest.mark.parametrize("system", SYSTEMS)
def test_assumed_numbers_of_machines_fits_and_profiles_are_all_there(system) -> None:
    listed = {place for constant in constants(system) for place in constant.places}
    for name in TOLD[system]["machines"]:
        keys = {place.rpartition(" ")[2].replace("/", ".") for place in listed if place.startswith("specs/")}
        assert set(spec.load(name).assumed) <= keys, name
    assert all(place.startswith(("specs/", "fits/", "profiles/", "study.toml ", "tokentape.")) for place in listed)
    assert all(end != constant.value for constant in constants(system) for end in constant.ends)


@pytest.mark.slow
def test_moving_a_constant_moves_the_answers_and_leaves_the_files_as_they_are() -> None:
    before = spec.SPECS, profile.PROFILES, fit_files.FITS
    stock, error = answered("kelle")
    power = next(one for one in constants("kelle") if one.places[0].endswith("kelle-sram.toml static_w"))
    moved, other = answered("kelle", dict.fromkeys(power.places, power.ends[0]))
    assert moved.keys() == stock.keys()
    assert moved != stock
    assert other != error
    assert before == (spec.SPECS, profile.PROFILES, fit_files.FITS)
    assert answered("kelle") == (stock, error)
    move, error_then = measured("kelle", power, stock)
    assert error_then == f"{100 * other:.1f} %"
    assert move.count("%") == 2
    text = PAGE.read_text(encoding="utf-8")
    assert assumptions.NOTHING[0] in text


@pytest.mark.slow
def test_a_number_of_a_profile_moves_what_is_served_too(monkeypatch) -> None:
    """Points at rest are found by the files that ship, which do not move: every answer is computed anew."""
    monkeypatch.setitem(TOLD["layered_prefill"], "brief", {"n_seeds": 1, "n_claim_seeds": 1})
    dense = next(one for one in constants("layered_prefill") if one.places[0].endswith("lane/dense/ops_frac"))
    stock, _ = answered("layered_prefill")
    moved, _ = answered("layered_prefill", {dense.places[0]: dense.ends[0]})
    ttft = "layered_prefill/table-6/ttft_mean/qwen3-30b-a3b/arxiv-layered-rate-1.3"
    assert moved[ttft] > stock[ttft] * 1.01
