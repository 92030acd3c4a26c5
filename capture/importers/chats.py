"""Chats of a data set -> a tape of requests alone: one per answer, its prompt all turns before it, lengths in a model's tokens.

Read as `datasets` or a file has them, by the name of the list of turns:

    conversation    role, content    allenai/WildChat-1M (turns or chats have a timestamp), lmsys/lmsys-chat-1m (no times)
    conversations   from, value      ShareGPT as vLLM's benchmarks read it (vllm/benchmarks/datasets.py)
    messages        role, content    what chat models are trained on

A prompt is written by the model's chat template; blocks of its tokens that begin alike have one id, so that prefix caches replay.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tokentape.capture import datasets
from tokentape.capture.importers.column_limits import span
from tokentape.capture.importers.limits import BadImport, finite
from tokentape.capture.importers.rows import NO_MODEL, Source, prefix_blocks, write_tape
from tokentape.capture.rows import request_table
from tokentape.warehouse.tape import Store

TURNS = {"conversation": ("role", "content"), "messages": ("role", "content"), "conversations": ("from", "value")}
ROLES = {"human": "user"} | dict.fromkeys(("gpt", "bot", "chatgpt", "bing", "bard"), "assistant")
BLOCK_TOKENS = 16  # of vLLM's prefix cache
Turn = Mapping[str, Any]


def import_chats(
    name: str, store: Store, tokenizer: Any, model_id: str, n: int, split: str | None = None, subset: str | None = None
) -> str:
    """The first `n` chats as one trace; returns its id. tokenizer: of transformers, with or without a chat template.

    Arrivals are those of the answers' turns, else of their chats, else all 0 (the manifest's settings say which). Raises
    BadImport naming the record, ValueError for an unknown data set, OSError where the hub cannot be reached.
    """
    rows, seen, left_out = list[tuple[float | None, int, int, list[int]]](), dict[tuple[int, Hashable], int](), 0
    kinds = set[str]()
    for number, record in enumerate(islice(datasets.records(name, split, subset), n)):
        for turns, answer in _answers(record, f"{name} record {number}"):
            output = tokenizer.encode(answer["content"], add_special_tokens=False)
            said = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
            prompt: list[int] = []  # of a chat without an answer nothing is asked
            if output and tokenizer.chat_template:
                prompt = datasets.chat_ids(tokenizer, said, f"{name} record {number}")
            elif output:
                prompt = list(tokenizer.encode("\n".join(turn["content"] for turn in said)))
            if not prompt:
                left_out += 1
                continue
            kinds.add("turn" if "timestamp" in answer else "chat" if "timestamp" in record else "none")
            came = answer.get("timestamp", record.get("timestamp"))
            parts = (tuple(prompt[start : start + BLOCK_TOKENS]) for start in range(0, len(prompt), BLOCK_TOKENS))
            rows.append((_seconds(came, f"{name} record {number}"), len(prompt), len(output), prefix_blocks(parts, seen)))
    if not rows:
        raise BadImport(f"{name}: no chat with an answer; give one with turns of a user and an assistant")
    arrivals = "none" if any(row[0] is None for row in rows) else "chat" if "chat" in kinds else "turn"
    came_s = np.zeros(len(rows)) if arrivals == "none" else np.array([row[0] for row in rows])
    order = np.argsort(came_s, kind="stable")
    rows, came_s = [rows[i] for i in order], span(pl.Series(came_s[order]), name).to_numpy()
    settings = {"importer": "chats", "dataset": name, "split": split, "subset": subset, "max_chats": n, "tokenizer": model_id}
    settings |= {"arrivals": arrivals, "prefix_block_tokens": BLOCK_TOKENS}
    _, n_prompt, n_output, blocks = zip(*rows, strict=True)
    content = json.dumps([settings, came_s.tolist(), [row[1:] for row in rows]], sort_keys=True).encode()
    source = Source(Path(f"{name.replace('/', '-')}.chats"), (content,), model_id, NO_MODEL, None, settings, dataset=name)
    flags = {"empty_requests": {"left_out": left_out, "rows": len(rows) + left_out}} if left_out else {}
    return write_tape(store, source, {"requests": request_table(n_prompt, n_output, name, came_s, blocks=blocks)}, flags)


def _answers(record: Turn, where: str) -> Iterator[tuple[list[Turn], Turn]]:
    """Every turn of the assistant, with those before it."""
    field = next((name for name in TURNS if record.get(name) is not None), None)
    if field is None:
        raise BadImport(
            f"{where}: none of {', '.join(TURNS)} (it has {', '.join(record) or 'nothing'}); give chats, a list of turns each"
        )
    role, content = TURNS[field]
    turns: list[Turn] = []
    for turn in record[field] if isinstance(record[field], list) else [None]:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(of), str) for of in (role, content)):
            raise BadImport(f"{where}: a turn of {field} has no text in {role} and {content}; give chats, a list of turns each")
        said = {"role": ROLES.get(turn[role], turn[role]), "content": turn[content]}
        said |= {"timestamp": turn["timestamp"]} if turn.get("timestamp") is not None else {}
        if said["role"] == "assistant" and turns:
            yield list(turns), said
        turns.append(said)


def _seconds(came: Any, where: str) -> float | None:
    """Since 1970; a moment without a zone is UTC's."""
    if came is None or isinstance(came, float | int):
        return None if came is None else finite(came, f"{where}: timestamp")
    try:
        moment = came if isinstance(came, datetime) else datetime.fromisoformat(came)
    except (TypeError, ValueError) as error:
        raise BadImport(f"{where}: timestamp {came!r} is no date and time; leave the field out, or give seconds") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
