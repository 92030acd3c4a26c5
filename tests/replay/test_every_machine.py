"""docs/every_machine.md: a number or a reason in every cell, and the page that is written now."""

from pathlib import Path

from tokentape.hw.spec import load, shipped
from tokentape.replay.every_machine import MODEL, SYSTEMS, EveryMachine, page
from tokentape.warehouse.models import load as load_model

PAGE = Path(__file__).parents[2] / "docs" / "every_machine.md"


def test_the_page_is_what_the_systems_say():
    assert PAGE.read_text(encoding="utf-8") == page(load_model(MODEL).geometry)


def test_every_cell_is_a_time_or_a_reason():
    geometry = load_model(MODEL).geometry
    for name in shipped():
        cells = dict(zip(SYSTEMS, EveryMachine(load(name), geometry).cells(), strict=True))
        assert all((cell.seconds or 0.0) > 0.0 or "does not fit" in cell.why for cell in cells.values()), name
        assert cells["held"].seconds is not None


def test_with_all_experts_held_an_engine_that_serves_takes_the_same_step():
    made = EveryMachine(load("h100"), load_model(MODEL).geometry)
    assert abs(made.layered_prefill().seconds / made.held().seconds - 1.0) < 1e-9
