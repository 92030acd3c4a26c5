"""The study of offloading systems: what is fitted, what it predicts, and that a changed constant predicts worse."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from command import Cli

from bench import fit_offloaders as fit
from tokentape.flows.answers import stated
from tokentape.flows.running import run
from tokentape.flows.systems.offloaders.study import PAPER, Settings, asked_for, claimed, draw, drawn_of
from tokentape.hw.spec import load
from tokentape.warehouse import models
from tokentape.warehouse.results import read_rows
from tokentape.warehouse.tape import Store

BRIEF = Settings.shipped(is_brief=True)
ONE, TWO = "server-xeon6454s-rtx4090d", "server-2xeon6454s-rtx4090d"
DECODE, PREFILL = "decode_throughput", "prefill_throughput"
NUMBERS = {name: number.value for name, number in load(ONE).numbers()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(str(tmp_path_factory.mktemp("offloaders")))


def rates_of(store: Store, machine: str, metric: str, **numbers: float) -> dict[int, float]:
    """Ours, of short prompts, by experts of a token."""
    points = [of for of in BRIEF.points if of["machine"] == machine]
    asked = {of["top_k"]: asked_for(store, draw(store, drawn_of(of), BRIEF.seed), of) for of in points}
    return {k: fit.rate(store, replace(one, numbers=numbers), metric) for k, one in asked.items()}


def error(store: Store, machine: str, metric: str, **numbers: float) -> float:
    """Mean of what ours is off."""
    published = {row["setting"]: row["value"] for row in stated(PAPER).values() if row["metric"] == metric}
    ours = rates_of(store, machine, metric, **numbers)
    settings = {of["top_k"]: claimed(of) for of in BRIEF.points if of["machine"] == machine}
    return mean(abs(ours[k] / published[settings[k]] - 1.0) for k in ours)


@pytest.mark.slow
def test_what_ships_is_what_the_fit_makes_of_claims_to_calibrate_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predicted rows are not read: other numbers in their place change nothing."""
    other = {key: row | ({} if row["role"] == "calibrate" else {"value": 1.0}) for key, row in stated(PAPER).items()}
    monkeypatch.setattr(fit, "stated", lambda paper: other)
    found = fit.fitted(store, BRIEF)
    assert found == pytest.approx({name: NUMBERS[name] for name in found}, rel=2e-3)
    assert {name: dict(load(TWO).numbers())[name].value for name in found} == {name: NUMBERS[name] for name in found}
    assert len(found) == 3


def test_two_experts_more_take_their_bytes_longer(store: Store) -> None:
    """By hand: 58 layers read two more experts each at the memory's efficiency, and a token's activations go there and back."""
    geometry = models.load("deepseek-v3").geometry
    for machine in (ONE, TWO):
        host, link = load(machine).tiers["host"], load(machine).links["pcie"]
        read_s = geometry.expert_bytes("int4")[0] / (host.peak_bytes_per_s.value * host.efficiency_frac.value)
        crossing_s = 2 * 2 * geometry.hidden / (link.peak_bytes_per_s.value * link.efficiency_frac.value)
        by_k = rates_of(store, machine, DECODE)
        taken_s = 2 * len(geometry.moe_layers) * (read_s + crossing_s)
        assert 1 / by_k[8] - 1 / by_k[6] == pytest.approx(taken_s, rel=1e-3)


@pytest.mark.parametrize("by", [0.8, 1.2])
@pytest.mark.parametrize("name", ["host.layer_s", "tiers.host.efficiency_frac", "engines.cpu.efficiency_frac"])
def test_a_changed_constant_is_worse(store: Store, name: str, by: float) -> None:
    """On both sockets, which nothing was fitted to. Of prompts a part that the model lacks hides it: there on one socket."""
    of = (ONE, PREFILL) if name.startswith("engines") else (TWO, DECODE)
    assert error(store, *of, **{name: by * NUMBERS[name]}) > error(store, *of) + 0.01


def test_the_brief_study_answers_its_claims(store: Store, tokentape: Cli) -> None:
    """Decode on two sockets within 5 %; a system that has no room for the experts is not asked for it."""
    told: list[str] = []
    made = {row["claim_id"]: row for row in run(BRIEF, store, runner="threads", workers=1, say=told.append)}
    assert len(made) == 10
    said = tokentape.ok("claims", PAPER, "--store", store.absolute)
    assert "16 claims have no value here: `tokentape study offloaders` answers what it can" in said.err
    assert "over seeds" not in said.out, "bands are of a machine's numbers"
    assert all(row["low"] <= row["value"] <= row["high"] for row in made.values())
    for claim_id, row in stated(PAPER).items():
        if "v0.2/decode_throughput" in claim_id:
            assert made[claim_id]["value"] == pytest.approx(row["value"], rel=0.001 if row["role"] == "calibrate" else 0.05)
    points = read_rows(store, "study_points")
    assert [row["place"] for row in points] == list(range(6))
    runs = {row["run_id"]: row for row in read_rows(store, "system_runs")}
    assert {runs[row["result_id"]]["system"] for row in points} == {"ktransformers", "moe_infinity"}
    assert not any(runs[row["result_id"]]["outside_envelope"] for row in points), "all lies within its tiers"


def test_a_copy_runs_beside_it_and_answers_nothing(tokentape: Cli, tmp_path: Path) -> None:
    text = Settings.SHIPPED.read_text(encoding="utf-8")
    head, _, rest = text.partition("[demo]")
    series = next(part for part in rest.split("[[grid]]") if "MoE-Infinity" in part and "system" in part)
    small = series.partition("[[answers]]")[0].replace("[1, 32]", "2").replace("requests = 32", "requests = 2")
    mine = tmp_path / "mine.toml"
    mine.write_text(f"{head}answers = []\n[[grid]]{small}", encoding="utf-8")
    assert "its runs are those of study 'mine'" in tokentape.ok("study", str(mine), "--runner", "threads").err
    (row,) = read_rows(Store(), "study_points", "mine")
    assert (row["line"], row["x"], row["hardware"]) == ("one A5000", "batch 2", "workstation-rtx-a5000")
    assert read_rows(Store(), "answers") == []
    mine.write_text(f"{head}answers = []\n[[grid]]{small}budget = 3\n", encoding="utf-8")
    assert "mine.toml: grid.0: Value error, 'budget' is no field of a point" in tokentape.refused("study", str(mine)).err
    mine.write_text(f"{head}answers = []\n[[grid]]{small}".replace("top_k = 2", "top_k = 500"), encoding="utf-8")
    assert "top_k = 500: mixtral-8x7b takes 2 experts of a token, or fewer" in tokentape.refused("study", str(mine)).err
