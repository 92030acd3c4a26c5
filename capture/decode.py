"""The project's own generation loop: one prefill pass, then one pass per token, for a batch of requests.

Greedy, sampled (each request with its own generator, so that a request's tokens do not depend on what ran before it) or teacher-
forced. Prompts of unequal length are padded on the left and masked. The last token of a request is never an input: it has no
pass. `on_pass` is told of every forward pass; nothing here knows what it records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from tokentape.capture.models import device_of

NLL_CHUNK_ELEMENTS = 1 << 24  # float32 logits held at once while scoring a long prompt: 64 MiB


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(
                f"sampling: temperature {self.temperature} must be >= 0 (0: greedy), top_p {self.top_p} in (0, 1], "
                f"top_k {self.top_k} >= 0 (0: all)"
            )


@dataclass(frozen=True)
class Request:
    """A prompt and how far to go on: `forced` ids are fed in place of chosen ones where given."""

    request_id: int
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    forced: tuple[int, ...] | None = None
    seed: int = 0

    @property
    def budget(self) -> int:
        return self.max_new_tokens if self.forced is None else min(self.max_new_tokens, len(self.forced))


@dataclass(frozen=True)
class Pass:
    """A forward pass that has just run. Lists run over its members, the requests that still need it."""

    kind: str  # prefill | decode
    request_ids: list[int]
    rows: list[int]  # row of each member in the batch
    starts: list[int]  # first position processed
    counts: list[int]  # positions processed
    pads: list[int]  # padded columns before the member's first token
    width: int  # columns of the batch so far, padding included
    keep: torch.Tensor | None  # (batch * columns of this pass,) bool: what is not padding; None: all


@dataclass
class Outcome:
    """What became of a request: the tokens after the prompt, and nll of inputs 1, 2, ... (prompt, then all outputs)."""

    output_ids: list[int] = field(default_factory=list)
    nll: torch.Tensor | None = None


class Decoder(Protocol):
    """`decode`, or one with a policy in it."""

    def __call__(
        self,
        model: PreTrainedModel,
        requests: Sequence[Request],
        sampling: Sampling,
        stop_ids: frozenset[int],
        pad_id: int,
        *,
        with_nll: bool = False,
    ) -> list[Outcome]: ...


@torch.inference_mode()
def decode(
    model: PreTrainedModel,
    requests: Sequence[Request],
    sampling: Sampling,
    stop_ids: frozenset[int],
    pad_id: int,
    on_pass: Callable[[Pass], None] = lambda done: None,
    before_prefill: Callable[[torch.Tensor | None], None] = lambda mask: None,
    with_nll: bool = False,
) -> list[Outcome]:
    """Runs the batch to its end. `before_prefill` gets the (batch, columns) bool mask of real tokens, or None without padding."""
    device = device_of(model)
    lengths = [len(r.prompt_ids) for r in requests]
    width = max(lengths)
    pads = [width - n for n in lengths]
    ids, mask = _packed(requests, pads, pad_id, device)
    before_prefill(mask)
    out = model(input_ids=ids, use_cache=True, logits_to_keep=0 if with_nll else 1, **_positions(mask))
    every = list(range(len(requests)))
    names = [r.request_id for r in requests]
    on_pass(Pass("prefill", names, every, [0] * len(every), lengths, pads, width, None if mask is None else mask.flatten()))
    scored = [prompt_nll(out.logits, ids)] if with_nll else []
    generators = [torch.Generator().manual_seed(r.seed) for r in requests] if sampling.temperature > 0 else []
    outcomes = [Outcome() for _ in requests]
    alive = [row for row in every if requests[row].budget > 0]
    step = 0
    while alive:
        logits = out.logits[:, -1]
        chosen = _choose(logits, requests, sampling, generators, step, pad_id)
        if with_nll:
            scored.append(_nll(logits, chosen).unsqueeze(1))
        tokens = chosen.tolist()
        for row in alive:
            outcomes[row].output_ids.append(tokens[row])
        step += 1
        alive = [row for row in alive if step < requests[row].budget and not _stops(requests[row], tokens[row], stop_ids)]
        if not alive:
            break
        width += 1
        if mask is not None:
            mask = F.pad(mask, (0, 1), value=True)
        cache = out.past_key_values
        out = model(input_ids=chosen.unsqueeze(1), past_key_values=cache, use_cache=True, **_positions(mask, last=True))
        starts = [lengths[row] + step - 1 for row in alive]
        keep = None if len(alive) == len(every) else _keep(alive, len(every))
        on_pass(Pass("decode", [names[r] for r in alive], alive, starts, [1] * len(alive), [pads[r] for r in alive], width, keep))
    if with_nll:
        nll = torch.cat(scored, dim=1).cpu()  # (batch, columns): column j scores the token in column j + 1
        for row, outcome in enumerate(outcomes):
            outcome.nll = nll[row, pads[row] : pads[row] + lengths[row] - 1 + len(outcome.output_ids)]
    return outcomes


def _packed(
    requests: Sequence[Request], pads: list[int], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(batch, columns) ids padded on the left, and which of them are real; None where all are."""
    ids = torch.tensor([[pad_id] * pad + list(r.prompt_ids) for pad, r in zip(pads, requests, strict=True)], device=device)
    if not any(pads):
        return ids, None
    columns = torch.arange(ids.shape[1], device=device)
    return ids, columns >= torch.tensor(pads, device=device).unsqueeze(1)


def _positions(mask: torch.Tensor | None, last: bool = False) -> dict[str, Any]:
    """Mask and positions for a padded batch; nothing where the model's own are right."""
    if mask is None:
        return {}
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return {"attention_mask": mask.long(), "position_ids": positions[:, -1:] if last else positions}


def _keep(alive: list[int], n: int) -> torch.Tensor:
    keep = torch.zeros(n, dtype=torch.bool)
    keep[alive] = True
    return keep


def _stops(request: Request, token: int, stop_ids: frozenset[int]) -> bool:
    return request.forced is None and token in stop_ids


def _choose(
    logits: torch.Tensor,
    requests: Sequence[Request],
    sampling: Sampling,
    generators: list[torch.Generator],
    step: int,
    pad_id: int,
) -> torch.Tensor:
    """(batch,) next token ids."""
    chosen = _sample(logits, sampling, generators) if generators else logits.argmax(-1)
    forced = [r.forced for r in requests]
    if any(ids is not None for ids in forced):
        given = [pad_id if ids is None or step >= len(ids) else ids[step] for ids in forced]
        is_forced = torch.tensor([ids is not None for ids in forced], device=logits.device)
        chosen = torch.where(is_forced, torch.tensor(given, device=logits.device), chosen)
    return chosen


def _sample(logits: torch.Tensor, sampling: Sampling, generators: list[torch.Generator]) -> torch.Tensor:
    """One draw per row, on the host, with each request's generator."""
    probabilities, ids = kept(logits, sampling)
    drawn = torch.cat([torch.multinomial(p, 1, generator=g) for p, g in zip(probabilities, generators, strict=True)])
    return ids.gather(1, drawn.unsqueeze(1)).squeeze(1).to(logits.device)


def kept(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, V) each, on the host: probabilities by falling logit and the tokens they are of; zero for what is cut off.

    Temperature, then top-k, then top-p (the smallest set that reaches it). Rows that are cut do not sum to 1.
    """
    scaled = logits.float().cpu() / sampling.temperature
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ordered[:, sampling.top_k :] = -torch.inf
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    probabilities[before >= sampling.top_p] = 0.0
    return probabilities, ids


def _nll(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.float(), ids, reduction="none")


def prompt_nll(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(batch, columns - 1): nll of each token given the earlier ones, a few columns at a time."""
    batch, width, vocab = logits.shape
    if width == 1:
        return logits.new_zeros((batch, 0), dtype=torch.float32)
    chunk = max(1, NLL_CHUNK_ELEMENTS // (batch * vocab))
    parts = []
    for start in range(0, width - 1, chunk):
        stop = min(start + chunk, width - 1)
        flat = _nll(logits[:, start:stop].flatten(0, 1), ids[:, start + 1 : stop + 1].flatten())
        parts.append(flat.view(batch, -1))
    return torch.cat(parts, dim=1)
