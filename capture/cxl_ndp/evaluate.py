"""What placement and mixed precision do to a live model's quality: perplexity, agreement and KL on text, exact match on items.

As capture/live/quality.py measures: windows of text, each a prompt at full precision and then teacher-forced decode, every
decoded token but the first compared with the unmodified model on the same window. Placements stand through a decode, so a window
runs in one pass: a token's experts depend on its place in the window alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tokentape.capture import models
from tokentape.capture.applied import AppliedTape
from tokentape.capture.cxl_ndp.replicas import ReplicaExperts
from tokentape.capture.evaluate import LOGIT_ELEMENTS
from tokentape.capture.live.quality import Told, Tried, compared, means, windows
from tokentape.capture.live.routers import Placed
from tokentape.capture.live.slots import Inside
from tokentape.capture.routing import RoutingCapture
from tokentape.policies.mixed import MixedPrecision
from tokentape.policies.placement import Seen

NAME = "cxl_ndp"


@dataclass(frozen=True)
class CXLNDPRun(Tried):
    """A policy and how it is tried. losses: (L, E, 4), what the rule goes by, of tape trace_id; method: of the replicas, which
    `experts` makes once for a model. plain: of the data set and seed, where it has been made before."""

    policy: MixedPrecision
    losses: NDArray[np.float64]
    trace_id: str
    method: str
    experts: Callable[[models.Loaded], ReplicaExperts]
    plain: PlainText | None = None
    name = NAME

    @property
    def parameters(self) -> dict[str, Any]:  # type: ignore[override]
        made_of = {"losses": self.trace_id, "method": self.method}
        return asdict(self.policy) | made_of | {"prompt_tokens": self.prompt_tokens, "decode_tokens": self.decode_tokens}

    def inside(self, loaded: models.Loaded, seed: int) -> Inside:
        return Inside(loaded.model, Placed(loaded.model, self.experts(loaded), self.policy, self.losses))

    def read(
        self, loaded: models.Loaded, dataset: str, seed: int, inside: Inside, told: Told, tape: AppliedTape | None = None
    ) -> dict[str, Any]:
        """In one pass per window: placements stand, so no token waits for another."""
        (placed,) = inside.slots
        assert isinstance(placed, Placed)
        return on_text(self.plain or PlainText(loaded, dataset, self, seed), placed, told)


class PlainText:
    """A seed's windows under the unmodified model: log probabilities of decoded tokens, what prompts and decode selected."""

    @torch.inference_mode()
    def __init__(self, loaded: models.Loaded, dataset: str, run: CXLNDPRun, seed: int) -> None:
        self.model, self.n_prompt = loaded.model, run.prompt_tokens
        self.ids = torch.tensor(windows(loaded, dataset, run, seed), device=models.device_of(loaded.model))
        vocabulary = loaded.model.config.get_text_config().vocab_size
        self.per_batch = max(1, LOGIT_ELEMENTS // (vocabulary * run.decode_tokens))
        n_layers, n_experts = run.losses.shape[:2]
        is_prompt = np.arange(self.ids.shape[1] - 1) < self.n_prompt
        log_probs, found = [], []
        with RoutingCapture(loaded.model, with_scores=False) as routing:
            for rows in self.batches():
                log_probs.append(self.run(rows).log_softmax(-1))
                step, n_rows = routing.take(), rows.stop - rows.start
                shape = (n_layers, n_rows, is_prompt.size, step.ids.shape[2])
                ids, weights = step.ids.numpy().reshape(shape), step.weights.float().numpy().reshape(shape)
                size = (n_rows, n_layers, n_experts)
                found.append(
                    (
                        _by_expert(ids[:, :, is_prompt], size),
                        _by_expert(ids[:, :, is_prompt], size, weights[:, :, is_prompt]),
                        _by_expert(ids[:, :, ~is_prompt], size),
                    )
                )
        self.log_probs = torch.cat(log_probs)  # (windows, decode_tokens - 1, V)
        selections, weights, decoded_too = (np.concatenate(parts) for parts in zip(*found, strict=True))
        self.seen = Seen(selections, weights, decoded_too, (selections + decoded_too).sum(axis=0))

    def batches(self) -> list[slice]:
        n = len(self.ids)
        return [slice(start, min(start + self.per_batch, n)) for start in range(0, n, self.per_batch)]

    def run(self, rows: slice) -> torch.Tensor:
        """Logits (rows, decode_tokens - 1, V) f32 of the decoded tokens but the first, whose own come from the prompt."""
        logits: torch.Tensor = self.model(input_ids=self.ids[rows, :-1], use_cache=False).logits
        return logits[:, self.n_prompt :].float()


def _by_expert(ids: NDArray[Any], size: tuple[int, int, int], weights: NDArray[Any] | None = None) -> NDArray[Any]:
    """(rows, L, E) how often each row chose an expert, or by which weights; ids, weights (L, rows, columns, k)."""
    layer, row = (np.arange(n).reshape(shape) for n, shape in zip(ids.shape, ((-1, 1, 1, 1), (-1, 1, 1)), strict=False))
    keys = (row * size[1] + layer) * size[2] + ids
    return np.bincount(keys.ravel(), None if weights is None else weights.ravel(), minlength=math.prod(size)).reshape(size)


@torch.inference_mode()
def on_text(plain: PlainText, placed: Placed, progress: Told = lambda done, total: None) -> dict[str, Any]:
    """Perplexity, KL, acceptance and agreement of the policy on windows; `placed` counts the rest."""
    sums = Counter[str]()
    targets = plain.ids[:, plain.n_prompt + 1 :]
    with Inside(plain.model, placed):
        placed.place(plain.seen)
        for rows in plain.batches():
            placed.hold(rows, plain.n_prompt)
            ours, theirs = plain.run(rows).log_softmax(-1), plain.log_probs[rows]
            agreement = (ours.argmax(-1) == theirs.argmax(-1)).sum().item()
            sums.update(compared(ours, theirs, targets[rows]) | {"agreement_frac": agreement})
            progress(rows.stop, len(plain.ids))
    return means(sums, len(plain.ids), targets.numel())
