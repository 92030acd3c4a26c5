"""The notebooks of docs/notebooks run, and show what they say."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tokentape as tt
from tokentape.flows.running import run
from tokentape.flows.systems.cxl_ndp.settings import Settings
from tokentape.warehouse.tape import Store

pytest.importorskip("marimo")
NOTEBOOKS = Path(__file__).resolve().parents[2] / "docs" / "notebooks"


def ran(name: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a notebook's cells define."""
    spec = importlib.util.spec_from_file_location(name, NOTEBOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", [name, "--store", store.absolute])
    defined: dict[str, Any] = module.app.run()[1]
    return SimpleNamespace(**defined)


def test_no_policy_of_a_tape_is_above_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ran("compare_policies", store, monkeypatch)
    assert made.gap["missed_of_the_bound"].min() >= 0.0
    assert set(made.found["policy"]) == {"lru", "lfu", "belady"}
    assert len(made.chart.to_dict()["datasets"]) == 1


def test_a_papers_figure_has_its_numbers_and_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = Settings.shipped(is_brief=True)
    few = brief.model_copy(update={"models": tuple(model.model_copy(update={"seeds": (0,)}) for model in brief.models)})
    monkeypatch.setattr(tt, "study", lambda name, store, in_model: run(few, store.files, runner="threads", in_model=in_model))
    made = ran("a_papers_figure", Store(str(tmp_path / "tape")), monkeypatch)
    assert made.both.filter(made.both["who"] == "paper")["times"].to_list() == made.claims["paper"].to_list()
    assert made.claims.height >= 8
    assert 0.0 < made.mean < 0.2
