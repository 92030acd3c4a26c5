"""Routing in every form an importer reads, and a plain second reading of it."""

import base64
import csv
import io
import json
import random
import re
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from importer_requests import Rows, bodies
from importer_spoiling import spoiled_bytes, spoiled_text

from tokentape.warehouse.tape import Tape

P, N, MOE, K = 4, 3, 2, 4


def found_routing(tape: Tape) -> Rows:
    routing = tape.read("routing")
    weights = routing["gate_weights"].to_list()
    residency = routing["residency"].to_list() if "residency" in routing.columns else [None] * len(routing)
    keys = zip(*(routing[name].to_list() for name in ("request_id", "position", "layer")), strict=True)
    values = zip(routing["expert_ids"].to_list(), weights, residency, strict=True)
    rows = {key: tuple(tuple(v) if v is not None else None for v in value) for key, value in zip(keys, values, strict=True)}
    assert len(rows) == len(routing)
    return rows


def f32(values: list[float]) -> tuple[float, ...]:
    return tuple(np.array(values, np.float32).astype(float).tolist())


def bigmoe_routing(raw: bytes) -> Rows:
    lines = [line for line in raw.decode(errors="replace").split("\n") if not line.startswith("#")][1:]
    table = [line.split(",") for line in lines if line.strip()]
    turns = {turn: i for i, turn in enumerate(sorted({int(row[0]) for row in table}))}
    grouped: dict[tuple[int, ...], list[list[str]]] = {}
    for row in table:
        grouped.setdefault((turns[int(row[0])], int(row[2]), int(row[3])), []).append(row)
    return {
        key: (tuple(int(r[5]) for r in rows), f32([float(r[6]) for r in rows]), tuple(int(r[7]) for r in rows))
        for key, rows in grouped.items()
    }


def routed_arrays(rng: random.Random) -> dict[str, np.ndarray]:
    """The arrays of one request, sometimes with a value, type or shape that they should not have."""
    draw = np.random.default_rng(rng.randrange(1 << 30))
    ids = draw.random((P + N - 1, MOE, 16)).argsort(axis=2)[:, :, :K]
    if rng.random() < 0.5:
        ids = np.concatenate((np.zeros((len(ids), 1, K), ids.dtype), ids), axis=1)
    arrays = {"routed_experts": ids, "prompt_token_ids": np.arange(P), "token_ids": np.arange(N)}
    if rng.random() < 0.3:
        arrays |= {"prompt_routed_experts": ids[:P], "routed_experts": ids[P:]}
    if rng.random() < 0.3:
        arrays.pop(rng.choice(("prompt_token_ids", "token_ids")))
    for _ in range(rng.randint(0, 2)):
        name = rng.choice(list(arrays))
        array = arrays[name].copy()
        match rng.randrange(5):
            case 0 if array.size:
                array = array.astype(np.int64)
                array.flat[rng.randrange(array.size)] = rng.choice((-1, 0, 3, 15, 16, 2**16, 2**31, 2**40, 2**62))
            case 1:
                array = array.astype(
                    rng.choice((np.uint8, np.int16, np.uint16, np.int32, np.uint64, ">i4", "<u2", np.float32, bool))
                )
            case 2:
                array = array[: rng.randrange(len(array) + 1)]
            case 3:
                array = np.asfortranarray(array)
            case _:
                array = array.reshape(rng.choice(((-1,), (1, *array.shape), (*array.shape, 1), array.shape[::-1])))
        arrays[name] = array
    return arrays


def npz_bytes(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(stream, **routed_arrays(rng))
    return spoiled_bytes(stream.getvalue(), rng) if rng.random() < 0.4 else stream.getvalue()


def npy_text(array: np.ndarray) -> str:
    stream = io.BytesIO()
    np.save(stream, array)
    return base64.b64encode(stream.getvalue()).decode()


def server_bytes(rng: random.Random) -> bytes:
    lines = []
    for _ in range(rng.randint(1, 3)):
        arrays = routed_arrays(rng)
        as_list = rng.random() < 0.3
        experts = {name: a.tolist() if as_list else npy_text(a) for name, a in arrays.items() if name.endswith("experts")}
        if not as_list and rng.random() < 0.1:
            raw = spoiled_bytes(base64.b64decode(experts["routed_experts"]), rng)
            experts["routed_experts"] = base64.b64encode(raw).decode()
        ids = {name: arrays[name].tolist() for name in arrays if name.endswith("ids")}
        choice = {"index": 0, "routed_experts": experts["routed_experts"], "token_ids": ids.get("token_ids")}
        body = {"choices": [choice], "usage": {"prompt_tokens": P, "completion_tokens": N}}
        lines.append(
            body
            | {"prompt_token_ids": ids.get("prompt_token_ids"), "prompt_routed_experts": experts.get("prompt_routed_experts")}
        )
    text = "\n".join(map(json.dumps, lines)) + "\n"
    return spoiled_text(text, rng) if rng.random() < 0.5 else text.encode()


def sglang_bytes(rng: random.Random) -> bytes:
    """Responses of one or two requests with int32 of all three layers, sometimes with another number, length or cut."""
    lines = []
    for _ in range(rng.randint(1, 2)):
        draw = np.random.default_rng(rng.randrange(1 << 30))
        ids = draw.random((P + N - 1, 1 + MOE, 16)).argsort(axis=2)[:, :, :K].astype("<i4")
        ids[:, 0] = 0
        if rng.random() < 0.2:
            ids.flat[rng.randrange(ids.size)] = rng.choice((-1, 3, 16, 2**30))
        flat = ids.tobytes()[: rng.choice((None, None, None, -4, -ids[0].nbytes))]
        meta = {"prompt_tokens": P, "completion_tokens": N, "routed_experts": base64.b64encode(flat).decode()}
        lines.append(json.dumps({"text": "", "meta_info": meta}))
    text = "\n".join(lines) + "\n"
    return spoiled_text(text, rng) if rng.random() < 0.5 else text.encode()


def sglang_routing(raw: bytes) -> Rows:
    found = []
    for body in bodies(raw):
        meta = body.get("meta_info")
        if isinstance(meta, dict) and meta.get("routed_experts") is not None:
            n_rows = meta["prompt_tokens"] + meta["completion_tokens"] - 1
            ids = np.frombuffer(base64.b64decode(meta["routed_experts"]), "<i4").reshape(n_rows, 1 + MOE, -1)
            found.append({"routed_experts": ids})
    return rows_of_arrays(found)


def rows_of_arrays(requests: list[dict[str, Any]]) -> Rows:
    rows: Rows = {}
    for request, arrays in enumerate(requests):
        parts = [np.array(arrays[name]) for name in ("prompt_routed_experts", "routed_experts") if arrays.get(name) is not None]
        ids = np.concatenate([part for part in parts if part.size])[:, -MOE:].astype(object)
        known = [arrays.get(name) for name in ("prompt_token_ids", "token_ids")]
        lengths = [None if v is None else len(v) for v in known]
        if None not in lengths:
            ids = ids[: sum(lengths) - 1]
        for position, layers in enumerate(ids):
            rows |= {(request, position, 1 + i): (tuple(map(int, chosen)), None, None) for i, chosen in enumerate(layers)}
    return rows


def npz_routing(raw: bytes) -> Rows:
    with np.load(io.BytesIO(raw)) as file:
        return rows_of_arrays([{name: file[name] for name in file.files}])


def server_routing(raw: bytes) -> Rows:
    requests = []
    for body in bodies(raw):
        for choice in body["choices"]:
            if choice.get("routed_experts") is None:
                continue
            usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
            ids = {
                "prompt_token_ids": choice.get("prompt_token_ids") or body.get("prompt_token_ids"),
                "token_ids": choice.get("token_ids"),
            }
            for name, field in (("prompt_token_ids", "prompt_tokens"), ("token_ids", "completion_tokens")):
                if ids[name] is None and usage.get(field) is not None and len(body["choices"]) == 1:
                    ids[name] = range(usage[field])
            requests.append(
                ids
                | {
                    name: experts(source.get(name))
                    for name, source in (("routed_experts", choice), ("prompt_routed_experts", body))
                }
            )
    return rows_of_arrays(requests)


def experts(value: Any) -> Any:
    return np.load(io.BytesIO(base64.b64decode(value))) if isinstance(value, str) else value


def table_rows(rng: random.Random) -> list[dict[str, Any]]:
    draw = np.random.default_rng(rng.randrange(1 << 30))
    rows = []
    for token in range(4):
        for layer in (1, 2):
            weights = sorted((round(float(w), 3) for w in draw.random(2)), reverse=True)
            ids = draw.permutation(16)[:2].tolist()
            rows.append({"request_id": 5, "position": token, "layer": layer, "expert_ids": ids, "gate_weights": weights})
    return rows


def table_csv(rng: random.Random) -> str:
    lines = [
        ",".join(f'"{value}"' if isinstance(value, list) else str(value) for value in row.values()) for row in table_rows(rng)
    ]
    return "\n".join(["request_id,position,layer,expert_ids,gate_weights", *lines, ""])


def table_jsonl(rng: random.Random) -> str:
    return "\n".join(json.dumps(row) for row in table_rows(rng)) + "\n"


def table_parquet(rng: random.Random) -> bytes:
    frame = pl.DataFrame(table_rows(rng))
    name = rng.choice(frame.columns[:3])
    at, value = rng.randrange(len(frame)), rng.choice((-1, 3, 2**31, 2**32, 2**40))
    if rng.random() < 0.5:
        frame = frame.with_columns(pl.Series(name, [value if i == at else v for i, v in enumerate(frame[name])]))
    if rng.random() < 0.3:
        frame = frame.with_columns(pl.col(name).cast(rng.choice((pl.Float64, pl.String, pl.Boolean, pl.UInt64)), strict=False))
    stream = io.BytesIO()
    frame.write_parquet(stream)
    return spoiled_bytes(stream.getvalue(), rng) if rng.random() < 0.4 else stream.getvalue()


def rows_of_table(rows: list[dict[str, Any]]) -> Rows:
    """Names of columns may be lost to a change: what is not there counts as the importer's help says."""
    found: Rows = {}
    requests: dict[str, int] = {}
    counted: dict[tuple[int, int], int] = {}
    for row in rows:
        ids, weights = (
            None if row.get(name) is None else [float(v) for v in re.findall(r"[^\s,;|\[\]()]+", str(row[name]))]
            for name in ("expert_ids", "gate_weights")
        )
        request = requests.setdefault(str(row.get("request_id", "")), len(requests))
        layer = int(float(row["layer"]))
        position = counted[request, layer] = counted.get((request, layer), -1) + 1
        if row.get("position") is not None:
            position = int(float(row["position"]))
        pairs = sorted(zip(weights or [0.0] * len(ids), ids, strict=True), key=lambda pair: -pair[0])
        found[request, position, layer] = (tuple(int(e) for _, e in pairs), f32([w for w, _ in pairs]) if weights else None, None)
    return found


def csv_table(raw: bytes) -> Rows:
    text = raw.decode("utf-8-sig").lstrip("\r\n")  # DictReader takes an empty line before the header for the header
    return rows_of_table(list(csv.DictReader(io.StringIO(text, newline=""))))


def jsonl_table(raw: bytes) -> Rows:
    return rows_of_table([json.loads(line) for line in raw.decode("utf-8-sig").split("\n") if line.strip()])


def parquet_table(raw: bytes) -> Rows:
    return rows_of_table(pq.read_table(io.BytesIO(raw)).to_pylist())
