"""The tape of a policy inside a model: what it applied, what the model chose itself, and a replay that decides the same."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tokentape.capture import models
from tokentape.capture.applied import AppliedTape
from tokentape.capture.live.quality import evaluate_inside
from tokentape.capture.live.system import SystemTried
from tokentape.flows.tapes import scored_trace
from tokentape.policies.scoring import topk_from_scores
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, SliceMoE
from tokentape.policies.slots import System
from tokentape.replay.capacity import bytes_of
from tokentape.replay.system.recorded import recorded as recorded_of
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.slicemoe import served
from tokentape.warehouse.tape import Store

REROUTING = SliceMoE(ROUTERS["cache_prior"](0.5), precision=PRECISIONS["dbsc"](), budget=BUDGETS["hard"](0.05), free_steps=2)
DRAWN = replace(REROUTING, warmup=WARMUPS["random"]())
FAMILIES = ("Qwen3Moe", "DeepseekV3", "GptOss")


def run_of(policy: SliceMoE, **changes: object) -> SystemTried:
    system = System("slicemoe", {"route": policy}, {"residency": {"budget": "40%"}})
    return SystemTried(system, "slicemoe", {"n": 1}, bytes_of, prompt_tokens=12, decode_tokens=20, n_items=3, **changes)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("record once, replay often. " * 60)
    return str(path)


@pytest.fixture(scope="module")
def recorded(model_folder, text, tmp_path_factory):
    """`recorded(family, policy)` -> the store, the tape, the row of `quality` and the loop's counts."""

    questions = Path(text).with_name("questions.jsonl")
    questions.write_text("".join(f'{{"question": "{i}{"+1" * (i % 3)}=", "answer": "{i}"}}\n' for i in range(5)))

    @cache
    def record(family: str, policy: SliceMoE = REROUTING, **changes: object):
        run, data = run_of(policy, **changes), str(questions) if policy is DRAWN else text
        store = Store(str(tmp_path_factory.mktemp("applied") / "tape"))
        loaded = models.load(models.find(model_folder(family)), device="cpu")
        tape = AppliedTape(store, loaded, data, run, seed=0)
        inside = run.inside(loaded, 0)
        row = evaluate_inside(loaded, data, run, tape=tape, inside=inside)
        return store, store.open(tape.finish()), row, inside.slots[0].totals

    return record


@pytest.mark.parametrize(("family", "policy"), [*((name, REROUTING) for name in FAMILIES), (FAMILIES[0], DRAWN)])
def test_the_same_policy_replayed_decides_what_it_decided_in_the_model(recorded, family, policy):
    store, tape, row, totals = recorded(family, policy)
    trace, scores = scored_trace(store, tape.trace_id)
    size = round(0.4 * trace.n_keys * sum(slices_of(trace.geometry, policy.cache)))
    found = served(recorded_of(trace, scores=scores), policy, size).metrics()
    assert found["high_bit_miss_frac"].value == pytest.approx(row["miss_frac"], rel=1e-12)
    assert totals["rerouted"] > 0
    routing = tape.read("routing")
    natural, applied = (_sets(routing[name]) for name in ("natural_ids", "expert_ids"))
    decode = routing["pass_id"].is_in(tape.read("passes").filter(kind="decode")["pass_id"].implode()).to_numpy()
    rerouted = sum(len(a - n) for a, n in zip(applied, natural, strict=True))
    assert rerouted >= totals["rerouted"]  # which leaves out the free steps
    assert found["rerouted_frac"].value == pytest.approx(rerouted / (decode.sum() * trace.geometry.top_k))
    assert all(a == n for a, n, late in zip(applied, natural, decode, strict=True) if not late)  # prompts keep their route


def test_natural_ids_are_the_models_own_choice_as_all_are_without_strength(recorded):
    _, tape, _, _ = recorded("Qwen3Moe")
    scores, natural = (_matrix(tape.read(table)[column]) for table, column in (("scores", "scores"), ("routing", "natural_ids")))
    wanted, _ = topk_from_scores(scores.astype(np.float32), tape.manifest.score_rule, tape.manifest.score_params)
    assert np.array_equal(natural, wanted)
    assert "policy" in tape.manifest.flags
    (state,) = set(tape.read("passes")["policy_state"])
    assert json.loads(state)["policy"] == "slicemoe"
    plain = SliceMoE(ROUTERS["cache_prior"](0.0), precision=PRECISIONS["high-bit"]())
    _, tape, row, _ = recorded("Qwen3Moe", plain, scheme=None)
    routing = tape.read("routing")
    assert np.array_equal(_matrix(routing["natural_ids"]), _matrix(routing["expert_ids"]))
    assert row["kl"] == pytest.approx(0.0, abs=1e-6)
    assert tape.manifest.rows["routing"] == 3 * (12 + 19) * len(tape.geometry.moe_layers)
    assert sorted(set(tape.read("requests")["request_id"])) == [0, 1, 2]


def test_what_a_stopped_run_left_is_replaced_and_a_finished_tape_stays(model_folder, text, tmp_path):
    store, run = Store(str(tmp_path / "tape")), run_of(REROUTING)
    loaded = models.load(models.find(model_folder("Qwen3Moe")), device="cpu")
    evaluate_inside(loaded, text, run, tape=AppliedTape(store, loaded, text, run, 0))
    assert store.trace_ids() == []  # nobody finished it
    tape = AppliedTape(store, loaded, text, run, 0)
    evaluate_inside(loaded, text, run, tape=tape)
    before = store.open(tape.finish()).manifest
    again = AppliedTape(store, loaded, text, run, 0)
    evaluate_inside(loaded, text, run, tape=again)
    assert store.open(again.finish()).manifest == before
    assert AppliedTape(store, loaded, text, run, 1).trace_id != tape.trace_id
    Path(changed := str(tmp_path / "text.txt")).write_text("one text. " * 90)
    one = AppliedTape(store, loaded, changed, run, 0).trace_id
    Path(changed).write_text("another text. " * 90)
    assert AppliedTape(store, loaded, changed, run, 0).trace_id != one


def _matrix(column) -> np.ndarray:
    return np.array(column.to_list())


def _sets(column) -> list[set[int]]:
    return [set(row) for row in column.to_list()]
