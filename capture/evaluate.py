"""How good a model is, unmodified: bits per byte on documents, exact match on items with an answer.

Documents (code, docs, text files) are scored whole, in windows as long as the model's context (at most 2,048 tokens): each token
once, given the earlier ones of its window; chats in the model's own template, by the bytes of what is said in them. Items with an
answer (math, recall, records with `####` or `answer`) are answered greedily: after a worked solution the integer behind `####`
counts, else the text up to the first line end. `2,125` is `2125`.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from tokentape.capture import models
from tokentape.capture.datasets import ANSWER_MARK, items, prompt_ids
from tokentape.capture.embedded.texts import Item
from tokentape.capture.live.loop import Outcome, Request, Sampling, decode, refuse_nan
from tokentape.capture.live.sampling import perplexity_of
from tokentape.warehouse.tables import TABLES

MAX_WINDOW = 2048
MAX_NEW_TOKENS, SHORT_ANSWER_TOKENS = 96, 8
BATCH_ITEMS = 64
LOGIT_ELEMENTS = 1 << 23  # per batch of windows: 32 MiB of float32
DEFAULT_ITEMS = 500
ALL_DOCUMENTS = 1 << 16  # of a data set, which windows are cut from
_FINAL = re.compile(rf"{ANSWER_MARK}\s*(-?[\d,]+)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")

Report = Callable[[float, float, str], None]  # done, in all, data set


def evaluate(
    model: str,
    datasets: list[str],
    n_items: int | None = None,
    device: str = "auto",
    dtype: str = "auto",
    progress: Report = lambda done, total, name: None,
) -> list[dict[str, Any]]:
    """One row of the table `quality` per data set, `policy` none. n_items: at most so many items or documents of each (500).

    Raises ValueError or OSError with one line for an unknown model or data set.
    """
    loaded = models.load(models.find(model), device, dtype)
    rows = []
    with models.suitable_threads(loaded.model):
        for name in datasets:
            found = items_of(name, DEFAULT_ITEMS if n_items is None else n_items)
            has_answers = found[0].answer is not None
            scores = answered(loaded, found, name, progress)[1] if has_answers else _bits_per_byte(loaded, found, name, progress)
            rows.append(quality_row(loaded, "none", {}, name, 0, scores))
    return rows


def key_of(loaded: models.Loaded, policy: str, parameters: dict[str, Any], dataset: str, seed: int) -> dict[str, Any]:
    """What tells apart rows of tables `quality`, which also has the dtype, and `kv_divergence`."""
    told = json.dumps(parameters, sort_keys=True)
    return {"model_id": loaded.source.model_id, "policy": policy, "parameters": told, "dataset": dataset, "seed": seed}


def quality_row(
    loaded: models.Loaded, policy: str, parameters: dict[str, Any], dataset: str, seed: int, scores: dict[str, Any]
) -> dict[str, Any]:
    """A row of table `quality`; columns that a measurement leaves open are null."""
    of = {"dtype": loaded.dtype} | key_of(loaded, policy, parameters, dataset, seed)
    return dict.fromkeys(TABLES["quality"].nullable) | of | scores


def items_of(dataset: str, n: int, seed: int = 0) -> list[Item]:
    """The seed's own n items; of text all up to them. Raises ValueError where none are left, or only some have an answer."""
    found = items(dataset, n * (seed + 1))
    missing = sum(item.answer is None for item in found)
    if 0 < missing < len(found):
        raise ValueError(f"data set {dataset}: {missing} of {len(found)} items have no answer; give all or none one")
    if not missing and len(found) <= n * seed:
        raise ValueError(f"data set {dataset} has {len(found)} items, none for seed {seed}; ask for fewer items or seeds")
    return found if missing else found[n * seed :]


# ---------------------------------------------------------------------------------------------------------- bits per byte


@torch.inference_mode()
def _bits_per_byte(loaded: models.Loaded, documents: list[Item], name: str, progress: Report) -> dict[str, Any]:
    tokenizer, model = loaded.tokenizer, loaded.model
    size = min(loaded.source.context or MAX_WINDOW, MAX_WINDOW)
    start_id = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    of_document = (prompt_ids(document, tokenizer, loaded.source.model_id) for document in documents)
    windows: list[tuple[list[int], list[int]]] = []  # inputs and targets, which predict each token of a document once
    for ids in of_document:
        stream = ids if start_id is None or ids[:1] == [start_id] else [start_id, *ids]
        pieces = (stream[start : start + size + 1] for start in range(0, len(stream) - 1, size))
        windows += [(piece[:-1], piece[1:]) for piece in pieces]
    if not windows:
        raise ValueError(f"data set {name}: its documents have fewer than two tokens; nothing to score")
    windows.sort(key=lambda w: -len(w[0]))
    device = models.device_of(model)
    models.refuse_unless_causal(loaded, "give a causal language model")
    per_batch = max(1, LOGIT_ELEMENTS // (size * model.config.get_text_config().vocab_size))
    nats, n_tokens = 0.0, 0
    for start in range(0, len(windows), per_batch):
        batch = windows[start : start + per_batch]
        width = len(batch[0][0])
        # Padding on the right: no earlier token sees it, and its targets are left out.
        inputs = torch.tensor([i + [loaded.pad_id] * (width - len(i)) for i, _ in batch], device=device)
        targets = torch.tensor([t + [-100] * (width - len(t)) for _, t in batch], device=device)
        logits = model(input_ids=inputs, use_cache=False).logits
        nats += F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum").item()
        n_tokens += sum(len(t) for _, t in batch)
        progress(min(start + per_batch, len(windows)), len(windows), name)
    said = (text for d in documents for text in ([turn["content"] for turn in d.turns] or [d.prompt]))
    n_bytes = sum(len(text.encode()) for text in said)
    return {
        "perplexity": perplexity_of(nats / n_tokens, f"data set {name}: its perplexity"),
        "bits_per_byte": nats / math.log(2) / n_bytes,
        "n_items": len(documents),
        "n_tokens": n_tokens,
    }


# ------------------------------------------------------------------------------------------------------------ exact match


Run = Callable[[models.Loaded, Sequence[Request]], list[Outcome]]


def _plain(loaded: models.Loaded, requests: Sequence[Request]) -> list[Outcome]:
    return decode(loaded.model, requests, Sampling(), loaded.stop_ids, loaded.pad_id)


def answered(
    loaded: models.Loaded, found: list[Item], name: str, progress: Report, run: Run = _plain
) -> tuple[list[bool], dict[str, Any]]:
    """Whether each item is answered right, greedily, and the columns of `quality`. run: of the model with something inside it."""
    tokenizer = loaded.tokenizer
    is_worked = any(ANSWER_MARK in (item.solution or "") for item in found)
    room = MAX_NEW_TOKENS if is_worked else SHORT_ANSWER_TOKENS + max(len(item.answer or "") for item in found)
    limit = (loaded.source.context or 1 << 30) - room
    if limit < 1:
        context = loaded.source.context
        raise ValueError(f"data set {name}: answers of {room} tokens exceed the context ({context}); give another model")
    prompts = [tuple(tokenizer(item.prompt)["input_ids"][-limit:]) for item in found]
    order = sorted(range(len(found)), key=lambda i: -len(prompts[i]))  # equal lengths together: little padding
    right, n_tokens = [False] * len(found), 0
    for start in range(0, len(order), BATCH_ITEMS):
        batch = order[start : start + BATCH_ITEMS]
        requests = [Request(n, prompts[i], room) for n, i in enumerate(batch, start)]  # by turns, as a replay counts them
        outcomes = run(loaded, requests)
        refuse_nan(requests, outcomes)
        for i, outcome in zip(batch, outcomes, strict=True):
            said = tokenizer.decode(outcome.output_ids, skip_special_tokens=True)
            assert isinstance(said, str)  # not a list: one sequence was given
            right[i] = is_right(said, found[i].answer or "", is_worked)
            n_tokens += len(prompts[i]) + len(outcome.output_ids)
        progress(start + len(batch), len(order), name)
    return right, {"accuracy": sum(right) / len(found), "n_items": len(found), "n_tokens": n_tokens}


def is_right(said: str, answer: str, is_worked: bool) -> bool:
    """Whether a continuation gives `answer`; commas between thousands do not count."""
    given = answer_in(said, is_worked)
    return given is not None and _THOUSANDS.sub("", given) == _THOUSANDS.sub("", answer.strip())


def answer_in(said: str, is_worked: bool) -> str | None:
    """The answer a continuation gives: the integer behind the first `####`, or the first line. None where there is none."""
    if not is_worked:
        return said.split("\n", 1)[0].strip()
    final = _FINAL.search(said)
    return final.group(1).replace(",", "") if final else None
