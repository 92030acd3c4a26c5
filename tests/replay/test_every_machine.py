"""docs/every_machine.md: a number or a reason in every cell, and the page that is written now."""

from pathlib import Path

import pytest

from bench.docs.every_machine import MODEL, SYSTEMS, EveryMachine, line, page
from tokentape.hw.spec import load, shipped
from tokentape.warehouse.models import load as load_model

PAGE = Path(__file__).parents[2] / "docs" / "every_machine.md"


def test_the_page_is_what_the_systems_say_of_every_fourth_machine():
    assert {line(name, load_model(MODEL).geometry) for name in shipped()[::4]} <= {*PAGE.read_text(encoding="utf-8").splitlines()}


@pytest.mark.slow
def test_the_page_is_what_the_systems_say():
    assert PAGE.read_text(encoding="utf-8") == page(load_model(MODEL).geometry)


def test_every_cell_of_it_is_a_time_or_a_reason_and_held_experts_take_the_same_step():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert [name for name, *_ in rows] == list(shipped())
    for name, held, *others in rows:
        assert float(held.split()[0]) > 0.0, name
        assert all("does not fit" in cell or float(cell.split()[0]) > 0.0 for cell in others), name
        assert len(others) == len(SYSTEMS) - 1
    made = EveryMachine(load("h100"), load_model(MODEL).geometry)
    assert abs(made.layered_prefill().seconds / made.held().seconds - 1.0) < 1e-9
