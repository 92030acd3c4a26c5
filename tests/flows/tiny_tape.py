"""A small tape with routing, made from a fixed seed."""

import numpy as np
import polars as pl
import pyarrow as pa

from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tables import schema
from tokentape.warehouse.tape import Store

N_LAYERS, N_EXPERTS, TOP_K = 3, 8, 2
N_PROMPT, N_OUTPUT, N_REQUESTS = 6, 30, 3
WIDTHS = {"hidden": 64, "n_heads": 4, "n_kv_heads": 4, "head_dim": 16, "vocab": 100, "expert_intermediate": 32}
LAYERS = {"n_layers": N_LAYERS, "moe_layers": tuple(range(N_LAYERS)), "n_experts": N_EXPERTS, "top_k": TOP_K}
TINY = Geometry.model_validate({"architecture": "Tiny", **WIDTHS, **LAYERS})
STUDY = """
question = "which?"
capacities = ["50%"]
scopes = ["global"]
hardware = ["phone-lpddr5x-ufs4"]
[[policies]]
name = "lru"
"""


def tiny_tables() -> dict[str, pa.Table]:
    """Three requests of one prefill pass and thirty decode passes; experts drawn with a skew, from a fixed seed."""
    rng = np.random.default_rng(5)
    skew = 1.0 / np.arange(1, N_EXPERTS + 1)
    rows: dict[str, list[dict[str, object]]] = {"requests": [], "tokens": [], "passes": [], "routing": []}
    pass_id = 0
    for request in range(N_REQUESTS):
        rows["requests"].append(
            {"request_id": request, "dataset": "tiny", "arrival_s": 0.0, "n_prompt_tokens": N_PROMPT, "n_output_tokens": N_OUTPUT}
        )
        steps = [range(N_PROMPT), *([N_PROMPT + i] for i in range(N_OUTPUT))]
        for positions in steps:
            kind = "prefill" if len(positions) > 1 else "decode"
            rows["passes"].append({"pass_id": pass_id, "kind": kind, "n_tokens": len(positions), "request_ids": [request]})
            for p in positions:
                at = {"request_id": request, "position": p, "pass_id": pass_id}
                rows["tokens"].append(at | {"token_id": int(rng.integers(100)), "phase": kind, "nll": 1.0})
            for layer in range(N_LAYERS):
                for p in positions:
                    experts = rng.choice(N_EXPERTS, TOP_K, replace=False, p=np.roll(skew, layer) / skew.sum())
                    routed = {"request_id": request, "position": p, "layer": layer, "pass_id": pass_id}
                    rows["routing"].append({**routed, "expert_ids": experts.tolist(), "gate_weights": [0.6, 0.4]})
            pass_id += 1
    return {name: pa.Table.from_pylist(rows[name], schema=schema(name)) for name in rows}


def by_request(tables: dict[str, pa.Table]) -> list[dict[str, pa.Table]]:
    """The tables of each request alone."""
    frames = {name: pl.from_arrow(table) for name, table in tables.items()}
    of = {name: pl.col("request_ids").list.first() if name == "passes" else pl.col("request_id") for name in tables}
    return [{name: frames[name].filter(of[name] == i).to_arrow() for name in tables} for i in range(N_REQUESTS)]


def write_tiny(
    store: Store,
    trace_id: str = "tiny-0001",
    more: dict[str, pa.Table] | None = None,
    is_split: bool = False,
    **changes: object,
) -> None:
    """The tape, finished, under `trace_id`; `more` tables; `changes` are of its manifest. is_split: a shard per request."""
    tables = tiny_tables() | (more or {})
    writer, shards = store.writer(trace_id), by_request(tables) if is_split else [tables]
    for shard, rows in enumerate(shards):
        writer.write_shard(shard, rows)
    fields = {"origin": "synthetic", "source": "tests", "model_id": "tiny", "dataset": "tiny", "geometry": TINY}
    writer.finish(changes.pop("tables", tables), len(shards), **{**fields, "created_utc": "2026-11-20T00:00:00Z", **changes})


def write_losses(store: Store, trace_id: str) -> None:
    """A tape of table losses, of the same geometry."""
    scale = np.random.default_rng(0).lognormal(0.0, 1.0, (N_LAYERS, N_EXPERTS))
    rows = [
        {
            "layer": layer, "expert": expert, "bits": bits, "method": "rtn", "group": 128, "mse": scale[layer, expert] * error,
            "heldout_mse": None, "n_tokens": 100, "topped_up": False,
        }
        for layer in range(N_LAYERS) for expert in range(N_EXPERTS) for bits, error in enumerate((0.36, 0.25, 0.05, 0.01), 1)
    ]  # fmt: skip
    write_tiny(store, trace_id, more={"losses": pa.Table.from_pylist(rows)})
