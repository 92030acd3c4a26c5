"""A sixth system in closed form: a package of its own and one line in the registry of systems, and everything else knows it."""

from pathlib import Path

import made_up_system
import pytest
from command import Cli

from tokentape.flows.systems import SYSTEMS
from tokentape.warehouse.at_rest import Point, runs_at_rest
from tokentape.warehouse.results import batches
from tokentape.warehouse.tables import BadTable
from tokentape.warehouse.tape import Store

ASKED = """select study, copy_of, engine, model_id, hardware, precision, facts->>'bits' as bits, metric, value, unit
from runs join metrics using (run_id) join metric_defs using (metric) where metric = 'step_s' order by all"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "made-up", "made_up_system")


def test_its_study_runs_loads_and_is_asked_beside_the_others(tokentape: Cli) -> None:
    assert tokentape("study", "made-up").code == 0
    first = tokentape.sql(ASKED)
    assert len(first) == 8
    assert {(row["study"], row["copy_of"], row["engine"], row["unit"]) for row in first} == {("made-up", None, "made-up", "s")}
    assert {row["precision"] for row in first} == {"uniform bits=4", "uniform bits=8"}
    by = {(row["model_id"], row["hardware"], row["bits"]): row["value"] for row in first}
    for model, machine in {(model, machine) for model, machine, _ in by}:
        assert by[model, machine, "8"] == pytest.approx(2 * by[model, machine, "4"])
    assert tokentape("study", "made-up").code == 0  # again: in place of what was there
    assert tokentape.sql(ASKED) == first
    assert tokentape("study", "made-up", "--no-live").err.startswith("tokentape: study made-up measures nothing inside")


def test_a_copy_of_it_runs_by_its_path_beside_it(tokentape: Cli, tmp_path: Path) -> None:
    text = made_up_system.Settings.SHIPPED.read_text()
    (tmp_path / "mine.toml").write_text(text.replace('models = ["llama-2-7b", "qwen3-8b"]', 'models = ["mistral-7b"]'))
    for name in ("made-up", str(tmp_path / "mine.toml")):
        assert tokentape("study", name).code == 0
    rows = tokentape.sql(ASKED)
    assert [row["model_id"] for row in rows if row["copy_of"]] == ["mistral-7b"] * 4
    assert len(rows) == 12
    assert sorted(batches(Store())) == ["made-up-made-up", "made-up-mine"]
    (tmp_path / "wrong.toml").write_text(text.replace("bits =", "bit ="))
    refused = tokentape.refused("study", str(tmp_path / "wrong.toml"))
    assert "wrong.toml: bits: Field required; fields are system, question, name, models" in refused.err


def test_a_number_that_is_not_declared_is_refused() -> None:
    with pytest.raises(BadTable, match=r"made-up: metric step_ms is not declared in warehouse/schema/metrics\.toml; declare it"):
        runs_at_rest("made-up", [Point({"model_id": "m"}, {"step_ms": 1.0})])
    with pytest.raises(ValueError, match="no runs to write"):
        runs_at_rest("made-up", [])
