"""What a sliced-serving policy does to a live model's quality: perplexity, KL and acceptance on text, exact match on items.

Text is cut into windows; the first tokens of each are its prompt (high precision, the model's own routing), the rest are decoded
with the policy in the loop, teacher-forced, one by one, each window with a cache of its own. Every decoded token but the first,
whose logits still come from the prompt, is compared with the unmodified model on the same window.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from tokentape.capture import models
from tokentape.capture.applied import AppliedTape
from tokentape.capture.closed_loop import ClosedLoop, capacity_of
from tokentape.capture.datasets import items
from tokentape.capture.decode import Decoder, Outcome, Pass, Request, Sampling, decode
from tokentape.capture.evaluate import LOGIT_ELEMENTS, NOT_MEASURED, Report, exact_match
from tokentape.policies.sliced import SliceMoE

DEFAULT_WINDOWS = 16
ALL_DOCUMENTS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What a run measures on: for each seed n_items windows of text, or so many items that have an answer."""

    prompt_tokens: int = 64
    decode_tokens: int = 192
    n_items: int = DEFAULT_WINDOWS

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.n_items) < 1 or self.decode_tokens < 2:
            raise ValueError("a window needs a prompt of at least 1 token and 2 to decode")


class Loop(Protocol):
    """A policy inside a model, a context manager: told when a batch begins and of every pass that has run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...

    def begin(self, mask: torch.Tensor | None, n_rows: int = 1) -> None: ...

    def record(self, done: Pass) -> None: ...


@dataclass(frozen=True)
class PolicyRun(Cut):
    """A policy and how it is tried. name, parameters: as table `quality` holds them; cache_frac: share of all experts' bytes at
    the high width; scheme: of the low-bit weights, None: weights as loaded."""

    system: SliceMoE
    name: str
    parameters: dict[str, Any]
    cache_frac: float
    scheme: str | None = "amat"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.cache_frac <= 1.0:
            raise ValueError(f"cache {self.cache_frac} must be a share of the experts' bytes, above 0 and at most 1")


def evaluate_policy(
    loaded: models.Loaded,
    dataset: str,
    run: PolicyRun,
    seed: int = 0,
    progress: Report = lambda done, total, name: None,
    tape: AppliedTape | None = None,
) -> tuple[dict[str, Any], dict[str, int]]:
    """A row of table `quality`, and what the loop counted (capture/closed_loop.py). seed: of draws, and which windows.

    tape: also records natural and applied routing (capture/applied.py); slower, requests run one by one. The caller finishes it.
    Raises ValueError for a data set too short for a window, or of which only some items have an answer.
    """
    model = loaded.model
    loop = ClosedLoop(model, run.system, capacity_of(model, run.system.cache, run.cache_frac), run.scheme, seed)
    read = lambda told: on_text(loaded, windows(loaded, dataset, run, seed), run, loop, told, tape)  # noqa: E731
    scores = scored(loaded, dataset, run, seed, loop, read, progress, tape)
    totals = loop.totals
    counted = {
        "miss_frac": loop.miss_frac,
        "flash_bytes_per_token": totals["flash_bytes"] / max(1, totals["tokens"]),
        "dram_bytes_per_token": totals["dram_bytes"] / max(1, totals["tokens"]),
    }
    return key_of(loaded, run.name, run.parameters, dataset, seed) | NOT_MEASURED | counted | scores, totals


def scored(
    loaded: models.Loaded,
    dataset: str,
    run: Cut,
    seed: int,
    loop: Loop,
    read: Callable[[Callable[[int, int], None]], dict[str, Any]],
    progress: Report,
    tape: AppliedTape | None = None,
) -> dict[str, Any]:
    """Exact match with the policy in the loop where every item of the data set has an answer, else what `read` makes of text."""
    found = items(dataset, run.n_items * (seed + 1))
    with models.suitable_threads(loaded.model):
        if any(item.answer is None for item in found):
            return read(lambda n, of: progress(n, of, dataset))
        with loop:
            return exact_match(loaded, found[-run.n_items :], dataset, progress, in_loop(loop, tape))


def key_of(loaded: models.Loaded, policy: str, parameters: dict[str, Any], dataset: str, seed: int) -> dict[str, Any]:
    """The key of a row of table `quality`."""
    told = json.dumps(parameters, sort_keys=True)
    return {"model_id": loaded.source.model_id, "policy": policy, "parameters": told, "dataset": dataset, "seed": seed}


def in_loop(loop: Loop, tape: AppliedTape | None = None) -> Decoder:
    """capture.decode.decode with the policy in it; nll is there in any case where a tape is."""

    def run(
        model: PreTrainedModel,
        requests: Sequence[Request],
        sampling: Sampling,
        stop_ids: frozenset[int],
        pad_id: int,
        *,
        with_nll: bool = False,
    ) -> list[Outcome]:
        if tape is not None:
            return tape.decode(loop, model, requests, sampling, stop_ids, pad_id)
        begin = lambda mask: loop.begin(mask, len(requests))  # noqa: E731
        return decode(model, requests, sampling, stop_ids, pad_id, loop.record, begin, with_nll)

    return run


def windows(loaded: models.Loaded, dataset: str, run: Cut, seed: int) -> list[list[int]]:
    """The seed's own windows of prompt_tokens + decode_tokens, cut from the documents one after the other.

    Raises ValueError if the data set has none left for this seed.
    """
    size, wanted = run.prompt_tokens + run.decode_tokens, run.n_items * (seed + 1)
    cut: list[list[int]] = []
    for item in items(dataset, ALL_DOCUMENTS):
        ids = list(loaded.tokenizer(item.prompt)["input_ids"])
        cut += [ids[start : start + size] for start in range(0, len(ids) - size + 1, size)]
        if len(cut) >= wanted:
            break
    mine = cut[run.n_items * seed : wanted]
    if not mine:
        raise ValueError(
            f"data set {dataset} has {len(cut)} windows of {size} tokens, none for seed {seed}; ask for fewer or shorter ones"
        )
    return mine


def requests_of(batch: list[list[int]], run: Cut, first: int = 0) -> list[Request]:
    """Windows as teacher-forced requests, numbered from `first`."""
    n = run.prompt_tokens
    return [Request(i, tuple(ids[:n]), run.decode_tokens, forced=tuple(ids[n:])) for i, ids in enumerate(batch, first)]


@torch.inference_mode()
def on_text(
    loaded: models.Loaded,
    chosen: list[list[int]],
    run: Cut,
    loop: Loop,
    progress: Callable[[int, int], None] = lambda done, total: None,
    tape: AppliedTape | None = None,
) -> dict[str, Any]:
    """Perplexity, KL and acceptance of the policy on windows; `loop` counts the rest."""
    vocabulary = loaded.model.config.get_text_config().vocab_size
    per_batch = 1 if tape else max(1, LOGIT_ELEMENTS // (vocabulary * run.decode_tokens))
    nll, kl, acceptance, n_tokens = 0.0, 0.0, 0.0, 0
    for start in range(0, len(chosen), per_batch):
        batch = chosen[start : start + per_batch]
        requests = requests_of(batch, run, start)
        plain, applied = _logits(loaded, batch, requests, loop, tape)
        targets = torch.tensor([ids[run.prompt_tokens + 1 :] for ids in batch], device=plain.device)
        ours, theirs = applied.log_softmax(-1), plain.log_softmax(-1)
        nll += F.nll_loss(ours.flatten(0, 1), targets.flatten(), reduction="sum").item()
        kl += F.kl_div(ours, theirs, reduction="sum", log_target=True).item()
        acceptance += torch.minimum(ours.exp(), theirs.exp()).sum().item()
        n_tokens += targets.numel()
        progress(start + len(batch), len(chosen))
    shares = {"perplexity": math.exp(nll / n_tokens), "kl": kl / n_tokens, "acceptance": acceptance / n_tokens}
    return {**shares, "n_items": len(chosen), "n_tokens": n_tokens}


def _logits(
    loaded: models.Loaded, batch: list[list[int]], requests: list[Request], loop: Loop, tape: AppliedTape | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, decode_tokens - 1, V) f32 each: of the unmodified model, and with the policy, for the same decoded tokens."""
    model = loaded.model
    device = models.device_of(model)
    n_prompt = len(requests[0].prompt_ids)
    plain = model(input_ids=torch.tensor(batch, device=device), use_cache=False).logits[:, n_prompt:-1].float()
    applied: list[torch.Tensor] = []
    handle = model.register_forward_hook(lambda module, args, output: applied.append(output.logits[:, -1].float()))
    try:
        with loop:
            in_loop(loop, tape)(model, requests, Sampling(), frozenset(), loaded.pad_id)
    finally:
        handle.remove()
    return plain, torch.stack(applied[1:], dim=1)
