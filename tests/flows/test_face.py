"""`import tokentape as tt`: what a notebook sees."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from command import Cli
from refusing import refuses
from tiny_tape import tiny_tables, write_tiny

import tokentape as tt
from tokentape.flows.tapes import told
from tokentape.policies.lru import LRU
from tokentape.policies.sliced import SliceMoE
from tokentape.warehouse.tape import BadTape, Store

SIZE = {"capacity": "50%", "scope": "global"}


@pytest.fixture
def store(tmp_path: Path) -> tt.Store:
    made = tt.Store(tmp_path / "tape")
    write_tiny(made.files)
    return made


def test_importing_it_imports_nothing_else() -> None:
    code = "import sys, tokentape; assert not {'numpy', 'polars', 'pyarrow', 'numba', 'tokentape.flows'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(tt.__all__) <= set(dir(tt))
    with pytest.raises(AttributeError, match="it has Run, Store, Tape"):
        tt.replays  # noqa: B018


def test_a_store_shows_its_tapes_and_opens_them(store: tt.Store, tmp_path: Path) -> None:
    (row,) = tt.open(tmp_path / "tape").tapes().to_dicts()
    assert (row["trace_id"], row["origin"], row["n_requests"]) == ("tiny-0001", "synthetic", 3)
    assert store.tape("tiny").read("routing").height > 0
    assert repr(store.tape("tiny")).startswith("Tape tiny-0001: synthetic, tiny on tiny, 3 requests")
    assert repr(store).endswith("tapes: 1")
    assert "tiny-0001" in store._repr_html_()
    refuses("no tape 'other'", store.tape, "other", error=BadTape)
    refuses("no store at", tt.open, tmp_path / "typo", error=FileNotFoundError)
    assert not (tmp_path / "typo").exists()


def test_a_machines_file_that_changed_is_read_again(store: tt.Store, tmp_path: Path) -> None:
    tape, mine, seconds = store.tape("tiny"), tmp_path / "mine.toml", []
    for rate in (1e9, 2e9):
        mine.write_text(
            f'base = "phone-lpddr5x-ufs4"\nname = "mine"\nsource = "assumed"\n[tiers.flash]\npeak_bytes_per_s = {rate}\n'
        )
        made = tt.run(tape, "lru", machine=mine, **SIZE), tt.run_system(tape, "lru_offload", machine=mine)
        seconds.append([run["total_s"] for run in made])
    assert all(slow > fast for slow, fast in zip(*seconds, strict=True))


def test_a_models_config_and_a_tape_that_was_made_anew_are_read_again(store: tt.Store, tmp_path: Path) -> None:
    config, seconds, tape = tmp_path / "mine.json", [], store.tape("tiny")
    sizes = {"num_hidden_layers": 3, "num_experts": 8, "num_attention_heads": 4, "vocab_size": 100, "moe_intermediate_size": 32}
    for width in (64, 256):
        of = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts_per_tok": 2, **sizes}
        config.write_text(json.dumps(of | {"hidden_size": width, "intermediate_size": width}))
        seconds.append(tt.run_system(tape, "no_offload", model=config, machine="h100")["total_s"])
    assert seconds[0] < seconds[1]
    store.files.remove(tape.trace_id)
    write_tiny(store.files, "between")
    tt.run(store.tape("between"), "lru", **SIZE)  # what is kept is of one tape
    write_tiny(store.files, created_utc="2026-11-21T00:00:00Z")
    assert tt.run(store.tape("tiny"), "fifo", **SIZE)["n_lookups"] > 0


def test_gates_of_a_tape_that_was_made_anew_are_read_again(store: tt.Store) -> None:
    hits, routing = [tt.run(store.tape("tiny"), "gate-weighted", **SIZE)["n_hits"]], tiny_tables()["routing"]
    store.files.remove("tiny-0001")
    column, weights = routing.schema.field("gate_weights"), np.random.default_rng(1).uniform(size=(len(routing), 2))
    drawn = routing.drop_columns("gate_weights").append_column(column, pa.array(weights.tolist(), column.type))
    write_tiny(store.files, more={"routing": drawn})
    for _ in range(2):
        hits.append(tt.run(store.tape("tiny"), "gate-weighted", **SIZE)["n_hits"])
        told.cache_clear()  # as of another process
    assert hits[0] != hits[1] == hits[2]


def test_runs_are_those_of_the_command_line_and_stand_side_by_side(store: tt.Store) -> None:
    tape = store.tape("tiny")
    lru, best = tt.run(tape, "lru", **SIZE), tt.run(tape, "belady", **SIZE)
    assert lru["hit_frac"] <= best["hit_frac"]
    assert tt.run(tape, LRU(), **SIZE).run_id == lru.run_id
    assert lru.timeline["step_s"].sum() == pytest.approx(lru["total_s"])
    assert lru.requests.height == 3
    assert set(lru.metrics.columns) == {"metric", "value", "unit", "low", "high", "denominator"}
    assert "lru at 50% global of tiny-0001" in repr(lru)
    assert "hit_frac" in lru._repr_html_()
    beside = tt.compare(lru, best)
    assert beside["policy"].to_list() == ["lru", "belady"]
    assert beside["hit_frac"].to_list() == [lru["hit_frac"], best["hit_frac"]]
    asked = store.sql("select replay_id, hit_frac from policy_summary order by hit_frac, policy desc")
    assert dict(asked.iter_rows()) == {lru.run_id: lru["hit_frac"], best.run_id: best["hit_frac"]}


def test_systems_run_as_at_the_command_line_and_stand_beside_policies(tokentape: Cli) -> None:
    drawn = ("--like", "DeepSeek-V2-Lite", "--requests", "1", "--prompt", "4", "--output", "3", "--no-scores")
    tokentape.ok("synthesize", *drawn)
    store = tt.open()
    (tape,) = map(store.tape, store.tapes()["trace_id"])
    half = {"residency.budget": "50%"}
    of = {"workload": "batch=1", "machine": "workstation-rtx4090-pcie4"}
    lru = tt.run_system(tape, "lru_offload", changes=half, **of)
    lfu = tt.run_system(tape, "lru_offload", changes=half | {"residency": "lfu"}, **of)
    words = f"{tape.trace_id} --system lru_offload --set residency.budget=50% --workload batch=1 --hardware {of['machine']}"
    assert lru.run_id in tokentape.ok("replay", *words.split()).err
    assert (lru.requests.height, lru.timeline["step_s"].sum()) == (1, pytest.approx(lru["total_s"]))
    again = tt.run_system(tape, "lru_offload", changes=half, **of)
    assert (again.run_id, again["total_s"], again.requests.height) == (lru.run_id, lru["total_s"], 0)
    beside = tt.compare(lru, lfu, tt.run(tape, "lru", machine=of["machine"], **SIZE))
    assert beside["system"].to_list() == ["lru_offload", "lru_offload", None]
    assert beside["policy"].to_list() == [None, None, "lru"]
    assert "lru_offload on deepseek-v2-lite" in repr(lru)
    numbers = {"residency.budget": "50%", "schedule.max_seqs": np.int64(1)}
    assert tt.run_system(tape, "lru_offload", changes=numbers, machine=of["machine"])["total_s"] == lru["total_s"]
    for wrong, said in (
        ({"changes": {3: "lfu"}}, "unknown slot '3'"),
        ({"workload": f"output={10**30}"}, f"output={10**30} is no number of 64 bits"),
        ({"workload": "", "changes": {"schedule.max_seqs": "1e30"}}, "max_seqs 1e\\+30 must be .* of 64 bits"),
        ({"workload": {"rate": 1}}, "workload: found dict"),
        ({"changes": ["residency=lfu"]}, "changes: found list"),
    ):
        refuses(said, tt.run_system, tape, **{"system": "lru_offload", **of, **wrong})


def test_a_system_is_no_policy(store: tt.Store) -> None:
    for policy in ("slicemoe", SliceMoE()):
        refuses(
            "slicemoe decides more than what leaves a cache; give a whole system, as --system slicemoe",
            tt.run,
            store.tape("tiny"),
            policy,
            **SIZE,
        )


def test_what_does_not_fit_is_named(store: tt.Store) -> None:
    tape = store.tape("tiny")
    for wrong, said in (
        ({"policy": "lru-all-capacities"}, "unknown policy 'lru-all-capacities'"),
        ({"params": {3: 1}}, "unknown parameter of lru: '3'"),
        ({"policy": LRU(), "params": {"a": 1}}, "a policy object has its own"),
        ({"policy": "lru", "capacity": 0.5}, "capacity 0.5 is not understood; write 50%"),
        ({"policy": Path}, "is no policy; give a name, my.py:MyCache, or an object of a dataclass of a file"),
        ({"policy": Store(None)}, "is no policy"),
        ({"tape": "tiny"}, "tape: found str; give a Tape"),
        ({"params": "a=1"}, 'params: found str; give {"NAME": VALUE}'),
        ({"policy": "random", "seed": 1.0}, "seed: found float; give a whole number"),
        ({"fetch": "blocking"}, "unknown argument of run 'fetch'; did you mean 'fetching'"),
        ({"policy": type("Mine", (LRU,), {"__module__": "__nowhere__"})()}, "is no policy"),
    ):
        refuses(said, tt.run, **{"tape": tape, "policy": "lru", **SIZE, **wrong})
    refuses("store: found Tape; give a Store", tt.study, "baselines", tape)
    refuses("workers: found str; give a whole number", tt.study, "baselines", store, workers="2")
    refuses("unknown study 'baselin'", tt.study, "baselin", store, workers=np.int64(2))
    refuses("statement: found NoneType; give one SELECT", store.sql, None)
    for wrong in ((), ([tt.run(tape, "lru", **SIZE)],)):
        refuses("runs are compared", tt.compare, *wrong)
    with pytest.raises(KeyError, match="the metrics are"):
        tt.run(tape, "lru", **SIZE)["hits"]
