"""Early selections, critical experts, gate curves, coverage and attention of a random tape against a few lines of Python."""

from collections import Counter, defaultdict
from itertools import product, zip_longest

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from small_store import GEOMETRY, write_tape

from tokentape.warehouse import load as loader
from tokentape.warehouse.load import database_path, load
from tokentape.warehouse.sql import query
from tokentape.warehouse.tables import schema
from tokentape.warehouse.tape import Store

TAUS, TABLES, TRACE = (0.35, 0.5, 0.7), ("early_popularity", "critical_experts", "gate_curve", "profiles"), "random"
PROMPTS, N_DECODED, LAYERS, N_EXPERTS, TOP_K = (3, 90), 15, (1, 4), 8, 3

OWN = {"n_layers": 5, "moe_layers": LAYERS, "n_experts": N_EXPERTS, "top_k": TOP_K}


def routed(with_gates: bool = True) -> list[dict]:
    """Two requests of unlike lengths that decode in one batch, the later request first; a row lacks its weights, one is lost."""
    rng = np.random.default_rng(3)
    places = [(request, position, request) for request, n in enumerate(PROMPTS) for position in range(n)]
    places += [(request, PROMPTS[request] + step, 2 + step) for step in range(N_DECODED) for request in (1, 0)]
    rows = [
        {
            "request_id": request,
            "position": position,
            "layer": layer,
            "pass_id": pass_id,
            "expert_ids": rng.choice(N_EXPERTS, TOP_K, replace=False).tolist(),
            "gate_weights": (2.5 * np.sort(rng.dirichlet(np.full(TOP_K, 0.7)))[::-1]).tolist() if with_gates else None,
        }
        for request, position, pass_id in places
        for layer in LAYERS
    ]
    rows[0]["gate_weights"] = None
    rows = [row for row in rows if (row["request_id"], row["position"], row["layer"]) != (0, PROMPTS[0] + 2, LAYERS[0])]
    return sorted(rows, key=lambda row: (row["pass_id"], row["layer"]))


def stored(store: Store, rows: list[dict]) -> Store:
    ids, members = range(2 + N_DECODED), [[0], [1], *[[1, 0]] * N_DECODED]
    passes = {"pass_id": ids, "kind": ["prefill"] * 2 + ["decode"] * N_DECODED, "request_ids": members}
    passes |= {"n_tokens": [*PROMPTS, *[2] * N_DECODED], "policy_state": pa.nulls(len(ids), pa.string())}
    weights = pa.array([row["gate_weights"] for row in rows], pa.list_(pa.float32()))
    routing = pa.Table.from_pylist(rows).set_column(5, "gate_weights", weights)
    flags = {"missing_rows": {"expected": len(rows) + 1, "found": len(rows)}}
    tables = {"passes": pa.table(passes), "routing": routing}
    write_tape(store, TRACE, tables=tables, geometry=GEOMETRY.model_copy(update=OWN), flags=flags)
    return store


def summaries(store: Store, *tables: str) -> list[pl.DataFrame]:
    database = load(store, database_path(store)).database
    return [query(database, f"from {table}").drop("trace_id") for table in tables]


def test_early_selections_are_those_of_the_first_ten_decode_positions(store: Store) -> None:
    counts = Counter(
        (row["layer"], expert)
        for row in routed()
        if 0 <= row["position"] - PROMPTS[row["request_id"]] < 10
        for expert in row["expert_ids"]
    )
    (found,) = summaries(stored(store, routed()), "early_popularity")
    assert found.rows() == [(*key, n) for key, n in sorted(counts.items())]
    assert found["n_selected"].sum() == (2 * len(LAYERS) * 10 - 1) * TOP_K  # the lost row is not made up for by an eleventh step


def test_critical_experts_are_counted_by_layer_tau_and_bin(store: Store) -> None:
    n_routed, n_critical = Counter(), Counter()
    for row in routed():
        first = row["position"] // 4 * 4  # 105 positions in bins of four
        if row["gate_weights"] is not None:
            weights = np.array(row["gate_weights"], np.float32).astype(np.float64)
            for tau in TAUS:
                n_routed[row["layer"], tau, first] += 1
                n_critical[row["layer"], tau, first] += int((weights / weights.sum() > tau).sum())
    (found,) = summaries(stored(store, routed()), "critical_experts")
    assert found.rows() == [(*key, 4, n, n_critical[key]) for key, n in sorted(n_routed.items())]
    assert found["first_position"].n_unique() <= 32


def test_gate_curves_are_means_by_rank(store: Store) -> None:
    shares = defaultdict(list)
    for row in routed():
        if row["gate_weights"] is not None:
            for rank, weight in enumerate(sorted(row["gate_weights"], reverse=True), 1):
                phase = "prefill" if row["pass_id"] < 2 else "decode"
                shares[row["layer"], phase, rank].append(weight / sum(row["gate_weights"]))
    (found,) = summaries(stored(store, routed()), "gate_curve")
    assert [row[:3] for row in found.rows()] == sorted(shares)
    assert found["gate_frac"].to_list() == pytest.approx([np.mean(shares[key]) for key in sorted(shares)], abs=1e-7)
    assert found["n_routed"].to_list() == [len(shares[key]) for key in sorted(shares)]


def test_batches_touch_what_their_tokens_chose(store: Store) -> None:
    (found,) = summaries(stored(store, routed()), "profiles")
    for layer, (phase, is_decode) in product(LAYERS, (("prefill", False), ("decode", True))):
        rows = [row for row in routed() if (row["layer"], row["pass_id"] >= 2) == (layer, is_decode)]
        rows.sort(key=lambda row: (row["request_id"], row["position"]))
        steps = [[row["expert_ids"] for row in rows if row["request_id"] == of] for of in (0, 1)]
        turns = zip_longest(*steps) if is_decode else steps  # a token of each request, or a prompt after the other
        tokens = [experts for turn in turns for experts in turn if experts]
        for n in (1, 2, 4, 8, 16):
            batches = [tokens[at : at + n] for at in range(0, len(tokens) - n + 1, n)]
            (row,) = found.filter(metric="coverage_frac", layer=layer, phase=phase, x=n).to_dicts()
            assert row["value"] == pytest.approx(np.mean([len(set().union(*batch)) / N_EXPERTS for batch in batches]))
            assert row["n"] == len(batches)
    assert found["x"].max() == 64  # of 93 tokens in prompts; 128 of them there are not


def test_attention_of_the_last_query_is_parted_by_what_it_looks_at(store: Store) -> None:
    rng, rows, wanted = np.random.default_rng(5), [], Counter()
    for (request, position), head in product(((0, 40), (0, 60), (1, 30)), (0, 1)):
        mass = rng.dirichlet(np.full(position + 1, 0.3)).astype(np.float32)
        told = {"request_id": request, "pass_id": 2, "position": position, "layer": 1, "kv_head": head, "reduction": "row"}
        rows.append(told | {"n_queries": 1, "key_positions": None, "mass": mass.tolist(), "rest": 0.0})
        if position != 40:  # not the last of its request
            rest = np.sort(mass[4 : max(4, position - 31)])[::-1]
            heavy = int(np.ceil(0.1 * rest.size))
            parts = {"first": mass[:1], "sinks": mass[1:4], "recent": mass[max(4, position - 31) :]}
            wanted.update({name: of.sum() / 4 for name, of in (parts | {"heavy": rest[:heavy], "others": rest[heavy:]}).items()})
    rows.append(rows[-1] | {"request_id": 2, "rest": 0.2})  # of its largest masses alone
    passes = stored(store, routed()).open(TRACE).read("passes").to_arrow()
    tables = {"passes": passes, "attention": pa.Table.from_pylist(rows, schema=schema("attention"))}
    write_tape(store, "attentive", tables=tables, geometry=GEOMETRY.model_copy(update=OWN))
    found = summaries(store, "profiles")[0].filter(metric="attention_frac", n=4)
    assert dict(found.select("part", "value").iter_rows()) == pytest.approx(wanted, abs=1e-6)


def test_without_gates_there_are_selections_only(store: Store) -> None:
    stored(store, routed(with_gates=False))
    assert [found.is_empty() for found in summaries(store, *TABLES)] == [False, True, True, False]


def test_threads_change_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(store, routed())
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(loader, "NO_EXTENSIONS", {**loader.NO_EXTENSIONS, "threads": threads})
        found.append(summaries(store, *TABLES))
    assert all(one.equals(four) for one, four in zip(*found, strict=True))
