"""Request traces and acceptance metrics: files as published, and a plain second reading of them."""

import csv
import io
import json
import random
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from tokentape.warehouse.tape import Tape

Rows = dict[tuple[int, ...], tuple[Any, ...]]


def request_rows(rows: list[tuple[Any, int, int, tuple[int, ...]]]) -> Rows:
    served = sorted((row for row in rows if row[1] and row[2]), key=lambda row: row[0])
    return {(i,): (round(float(row[0] - served[0][0]), 7), *row[1:]) for i, row in enumerate(served)}


def found_requests(tape: Tape) -> Rows:
    table = tape.read("requests")
    blocks = table["prefix_blocks"].to_list() if "prefix_blocks" in table.columns else [()] * len(table)
    columns = (table[name].to_list() for name in ("arrival_s", "n_prompt_tokens", "n_output_tokens"))
    return {(i,): (round(a, 7), p, o, tuple(b)) for i, (a, p, o, b) in enumerate(zip(*columns, blocks, strict=True))}


def csv_requests(raw: bytes) -> Rows:
    rows = [row for row in csv.reader(io.StringIO(raw.decode("utf-8-sig"), newline="")) if row]
    at = [rows[0].index(name) for name in ("TIMESTAMP", "ContextTokens", "GeneratedTokens")]
    found = []
    for row in rows[1:]:
        when, prompt, output = (row[i].strip() for i in at)
        moment = re.fullmatch(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?(.*)", when)
        seconds: Any = 0.0 if moment else float(Decimal(when))
        if moment:
            day, clock, decimals, zone = moment.groups()
            start = datetime.fromisoformat(f"{day}T{clock}{zone.strip() or 'Z'}")
            since = int((start - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
            seconds = since + Decimal(f"0{decimals or '.0'}")
        found.append((seconds, *(int(Decimal(count)) for count in (prompt, output)), ()))
        assert all(Decimal(count) == int(Decimal(count)) for count in (prompt, output))
    return request_rows(found)


def azure_text(rng: random.Random) -> str:
    zone = rng.choice(("", "", "+00:00", "Z", "+02:00"))
    lines = [
        f"2024-05-10 00:00:{i:02}.{rng.randrange(10**6):06}{zone},{rng.randint(0, 5000)},{rng.randint(0, 900)}" for i in range(8)
    ]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""])


def seconds_text(rng: random.Random) -> str:
    lines = [f"{i * rng.random():.3f},{rng.randint(0, 5000)},{rng.randint(0, 900)}" for i in range(8)]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""])


def mooncake_text(rng: random.Random) -> str:
    lines = []
    for i in range(6):
        n_prompt = rng.randint(1, 1500)
        blocks = [rng.randrange(3) for _ in range(-(-n_prompt // 512))]
        lines.append({"timestamp": i * 27, "input_length": n_prompt, "output_length": rng.randint(0, 99), "hash_ids": blocks})
    return "\n".join(map(json.dumps, lines)) + "\n"


def mooncake_requests(raw: bytes) -> Rows:
    rows = [json.loads(line) for line in raw.decode("utf-8-sig").split("\n") if line.strip()]
    prefixes = [[tuple(r["hash_ids"][: i + 1]) for i in range(len(r["hash_ids"]))] for r in rows]
    ids = {prefix: i for i, prefix in enumerate(dict.fromkeys(prefix for of in prefixes for prefix in of))}
    blocks = [tuple(ids[prefix] for prefix in of) for of in prefixes]
    lengths = [(r["timestamp"] / 1000, r["input_length"], r["output_length"]) for r in rows]
    return request_rows([(*of, held) for of, held in zip(lengths, blocks, strict=True)])


def vllm_text(rng: random.Random) -> str:
    stamp = rng.choice(("queued_ts", "arrival_time"))
    lines = [{"request_id": f"r{i}", stamp: 9.5 + i, "input_toks": rng.randint(0, 900), "output_toks": 1 + i} for i in range(6)]
    return "\n".join(map(json.dumps, rng.sample(lines, 6))) + "\n"


def vllm_requests(raw: bytes) -> Rows:
    rows = [json.loads(line) for line in raw.decode("utf-8-sig").split("\n") if line.strip()]
    arrivals = (row.get("queued_ts", row.get("arrival_time")) for row in rows)
    return request_rows([(at, row["input_toks"], row["output_toks"], ()) for at, row in zip(arrivals, rows, strict=True)])


def acceptance_text(rng: random.Random) -> str:
    lines = []
    for _ in range(3):
        accepted = [rng.randint(0, 3) for _ in range(rng.randint(1, 6))]
        stats: dict[str, Any] = {
            "num_spec_steps": len(accepted),
            "num_accepted_draft_tokens": sum(accepted),
            "num_draft_tokens": 3 * len(accepted),
            "num_spec_tokens": 3,
            "acceptance_histogram": [accepted.count(j) for j in range(4)],
        }
        if rng.random() < 0.5:
            stats |= {"per_step_accepted": accepted, "per_step_drafted": [3] * len(accepted)}
        usage = {"prompt_tokens": rng.randint(1, 99), "completion_tokens": rng.randint(1, 99)}
        lines.append({"model": "m", "usage": usage, "metrics": {"speculative_decoding": stats}})
    return json.dumps(lines) if rng.random() < 0.3 else "\n".join(map(json.dumps, lines)) + "\n"


def bodies(raw: bytes) -> list[dict[str, Any]]:
    text = raw.decode("utf-8-sig")
    if text.lstrip().startswith("["):
        found = json.loads(text)
    else:
        try:
            found = [json.loads(text)]
        except ValueError:
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
    return [body["data"] if isinstance(body.get("data"), dict) else body for body in found]


def acceptance_rounds(raw: bytes) -> Rows:
    rows: Rows = {}
    request = 0
    for body in bodies(raw):
        stats = (body.get("metrics") if isinstance(body.get("metrics"), dict) else {}).get("speculative_decoding")
        if not isinstance(stats, dict):
            continue
        steps = stats.get("per_step_accepted")
        if steps is None:
            steps = [j for j, n in reversed(list(enumerate(stats["acceptance_histogram"]))) for _ in range(n)]
        drafted = stats["per_step_drafted"] if "per_step_accepted" in stats and "per_step_drafted" in stats else None
        rows[request, -1] = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        for step, n in enumerate(steps):
            rows[request, step] = (n, drafted[step] if drafted else stats["num_spec_tokens"])
        request += 1
    return rows


def found_rounds(tape: Tape) -> Rows:
    rows: Rows = {(r["request_id"], -1): (r["n_prompt_tokens"], r["n_output_tokens"]) for r in tape.read("requests").to_dicts()}
    return rows | {(r["request_id"], r["round"]): (r["n_accepted"], r["n_drafted"]) for r in tape.read("rounds").to_dicts()}
