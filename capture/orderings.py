"""Orderings that a live model must show: which precision, router and warm-up beats which, and by how much.

Each is a ratio with a margin, measured on held-out text of the embedded model with several seeds; a seed has windows of its own.
Low precision throughout (whole windows in one pass), or a policy in the loop (capture/live/quality.py). Margins are those of
a smaller reference model and are not moved: where the shipped one misses a margin, the table says so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from tokentape.capture import models
from tokentape.capture.blocks import find_blocks
from tokentape.capture.live.copies import SlicedExperts
from tokentape.capture.live.quality import Cut, on_text, windows
from tokentape.capture.live.routers import Sliced, capacity_of
from tokentape.capture.live.slots import Inside
from tokentape.policies.matryoshka import MAT
from tokentape.policies.sliced import BUDGETS, PRECISIONS, ROUTERS, WARMUPS, SlicedCache, SliceMoE

DATASET = "code"
EARLY_STEPS = 10
BUDGET_CACHE_FRAC, HALF = 0.375, 0.5


@dataclass(frozen=True)
class Effort:
    """How much text of a data set a seed has: n_whole windows, each a prompt and tokens to decode; the loop takes n_windows."""

    n_windows: int = 8
    prompt_tokens: int = 64
    decode_tokens: int = 128
    n_whole: int = 100
    dataset: str = DATASET


class Lab:
    """One seed's measurements on a loaded model, each made once."""

    def __init__(self, loaded: models.Loaded, seed: int, effort: Effort = Effort()) -> None:
        self.loaded, self.seed, self.effort = loaded, seed, effort
        cut = Cut(prompt_tokens=effort.prompt_tokens, decode_tokens=effort.decode_tokens, n_items=effort.n_whole)
        self.texts = windows(loaded, effort.dataset, cut, seed)
        self.whole, self.run, self.acceptance = cache(self._whole), cache(self._run), cache(self._acceptance)
        self._plain = cache(self._logits)

    @torch.inference_mode()
    def _whole(self, pair: str | None = None, scheme: str = "amat") -> float:
        """Perplexity of whole windows with every routed expert at the pair's low width; None: weights as loaded."""
        ids = torch.tensor(self.texts, device=self.loaded.model.device)
        return float(F.cross_entropy(self._logits(pair, scheme)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).exp())

    @torch.inference_mode()
    def _acceptance(self, pair: str, scheme: str) -> float:
        """Mean over tokens of sum_v min(p, q): weights as loaded against every routed expert at the pair's low width."""
        ours, theirs = self._logits(pair, scheme).softmax(-1), self._plain().softmax(-1)
        return float(torch.minimum(ours, theirs).sum(-1).mean())

    @torch.inference_mode()
    def _logits(self, pair: str | None = None, scheme: str = "amat") -> torch.Tensor:
        """(windows, tokens, V) f32."""
        model = self.loaded.model
        ids = torch.tensor(self.texts, device=model.device)
        if pair is None:
            return self._of(ids)
        with SlicedExperts(model, MAT.parse(pair), scheme) as experts:
            top_k = next(iter(find_blocks(model).values())).top_k
            experts.copy_of = dict.fromkeys(experts.experts, torch.ones((ids.numel(), top_k), dtype=torch.bool))
            return self._of(ids)

    def _of(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.loaded.model(input_ids=ids, use_cache=False).logits
        return logits.float()

    def _run(self, system: SliceMoE, cache_frac: float, scheme: str | None, n_decoded: int | None = None) -> dict[str, Any]:
        """Perplexity, miss_frac and the counts of a policy in the loop."""
        effort, model = self.effort, self.loaded.model
        n_decoded = n_decoded or effort.decode_tokens
        run = Cut(prompt_tokens=effort.prompt_tokens, decode_tokens=n_decoded, n_items=effort.n_windows)
        chosen = [ids[: effort.prompt_tokens + n_decoded] for ids in self.texts[: effort.n_windows]]
        slot = Sliced(model, system, capacity_of(model, system.cache, cache_frac), scheme, self.seed)
        return on_text(self.loaded, chosen, run, Inside(model, slot)) | slot.totals | {"miss_frac": slot.miss_frac}

    def routed(self, strength: float) -> dict[str, Any]:
        """Cache-Prior with half of the experts cached, weights as loaded."""
        return self.run(SliceMoE(ROUTERS["cache_prior"](strength), precision=PRECISIONS["high-bit"]()), HALF, None)

    def held(self, pair: str, target_frac: float, precision: str) -> float:
        """Perplexity under a hard miss budget, stock router."""
        mat = MAT.parse(pair)
        budget = BUDGETS["hard"](target_frac)
        system = SliceMoE(cache=SlicedCache(mat.high, mat.low), precision=PRECISIONS[precision](), budget=budget)
        return float(self.run(system, BUDGET_CACHE_FRAC, "amat")["perplexity"])

    def early_misses(self, warmup: str) -> int:
        """MSB slices missed by DBSC in the first steps after the prompt."""
        system = SliceMoE(warmup=WARMUPS[warmup](), free_steps=0)
        return int(self.run(system, BUDGET_CACHE_FRAC, "amat", EARLY_STEPS + 1)["misses"])


@dataclass(frozen=True)
class Ordering:
    """A ratio or difference of measurements and the margin it must keep; `is_below`: stay under it, else reach it or more."""

    assertion: str
    is_below: bool
    margin: float
    ratio: Callable[[Any], float]

    @property
    def bound(self) -> str:
        return f"{'<=' if self.is_below else '>='} {self.margin:g}"

    def holds(self, ratio: float) -> bool:
        return ratio <= self.margin if self.is_below else ratio >= self.margin


def over(measure: str, above: tuple[Any, ...], below: tuple[Any, ...], key: str = "") -> Callable[[Any], float]:
    """A measurement of a Lab by its name over the same of other arguments; key: of what it returns. Raises ValueError over 0."""

    def ratio(lab: Any) -> float:
        ours, theirs = (getattr(lab, measure)(*of) for of in (above, below))
        numbers = (ours[key], theirs[key]) if key else (ours, theirs)
        if not numbers[1]:
            raise ValueError(f"{measure} of {below} has no {key or 'value'} in so little text; give more windows or longer ones")
        return float(numbers[0] / numbers[1])

    return ratio


def _more(above: tuple[str, str], below: tuple[str, str]) -> Callable[[Any], float]:
    """How much more is accepted under one pair and scheme than under another."""
    return lambda lab: lab.acceptance(*above) - lab.acceptance(*below)


def _against_high_bit(pair: str, target_frac: float) -> Ordering:
    ratio = over("held", (pair, target_frac, "high-bit"), (pair, target_frac, "dbsc"))
    return Ordering(f"perplexity high-bit / DBSC, {pair}, hard {100 * target_frac:g} %", False, 2.0, ratio)


# The margins of the reference model's table, rows 1 to 4 and 7 to 10.
ORDERINGS = (
    Ordering("perplexity AMAT / base, 4 to 2 bits", True, 1.15, over("whole", ("MAT42",), ("MAT42", "base_asym"))),
    Ordering("perplexity AMAT / base, 8 to 4 bits", True, 1.02, over("whole", ("MAT84",), ("MAT84", "base_asym"))),
    *(
        Ordering(f"perplexity unshifted {what} / full, {bits}", False, 20, over("whole", (pair, scheme), ()))
        for what, scheme in (("zero point", "trunc_asym"), ("midpoint", "trunc_sym_unshifted"))
        for pair, bits in (("MAT42", "4 to 2"), ("MAT84", "8 to 4"))
    ),
    Ordering(
        "perplexity cut without / with the midpoint, symmetric, 4 to 2",
        False,
        20,
        over("whole", ("MAT42", "trunc_sym"), ("MAT42", "lsb_aug")),
    ),
    Ordering(
        "perplexity symmetric / asymmetric base, 2 bits", False, 1.1, over("whole", ("MAT42", "base_sym"), ("MAT42", "base_asym"))
    ),
    Ordering("misses Cache-Prior 0.2 / 0, half cached", True, 0.65, over("routed", (0.2,), (0.0,), "miss_frac")),
    Ordering("perplexity Cache-Prior 0.2 / 0, half cached", True, 1.03, over("routed", (0.2,), (0.0,), "perplexity")),
    *(_against_high_bit(pair, target_frac) for pair in ("MAT42", "MAT84") for target_frac in (0.01, 0.05, 0.10)),
    Ordering(
        "perplexity DBSC / low-bit, MAT42, hard 20 %",
        True,
        0.97,
        over("held", ("MAT42", 0.20, "dbsc"), ("MAT42", 0.20, "low-bit")),
    ),
    Ordering(f"misses PCW / empty, first {EARLY_STEPS} steps", True, 0.8, over("early_misses", ("pcw",), ("empty",))),
    Ordering(f"misses PCW / last layer, first {EARLY_STEPS} steps", True, 0.95, over("early_misses", ("pcw",), ("last_layer",))),
)

# Rows 5 and 6: what a drafter that reads few bits of the experts would have accepted.
ACCEPTANCE_ORDERINGS = (
    *(
        Ordering(f"acceptance augmented - truncated, {bits}", False, margin, _more((pair, "lsb_aug"), (pair, "trunc_sym")))
        for pair, bits, margin in (("MAT42", "4 to 2 bits", 0.30), ("MAT84", "8 to 4 bits", 0.03))
    ),
    Ordering("acceptance AMAT / full, 8 to 4 bits", True, 1.0, lambda lab: lab.acceptance("MAT84", "amat")),
    Ordering("acceptance AMAT, 8 to 4 - 4 to 2 bits", False, 0.05, _more(("MAT84", "amat"), ("MAT42", "amat"))),
)


def measured(
    loaded: models.Loaded,
    which: Sequence[Ordering],
    lab_of: Callable[[int], Any],
    seeds: Iterable[int] = range(4),
    progress: Callable[[float, float, str], None] = lambda done, total, name: None,
    dataset: str = DATASET,
) -> list[dict[str, Any]]:
    """A row of table `orderings`, less its study, per ordering: mean, low and high over seeds, and whether it holds on every one.

    lab_of: a seed's measurements on `dataset`, which the orderings' ratios are taken from, such as a Lab.
    """
    chosen = list(seeds)
    ratios: list[list[float]] = [[] for _ in which]
    with models.suitable_threads(loaded.model):
        for n, seed in enumerate(chosen):
            lab = lab_of(seed)
            for i, ordering in enumerate(which):
                ratios[i].append(ordering.ratio(lab))
                progress(n * len(which) + i + 1, len(chosen) * len(which), ordering.assertion)
    return [
        {
            "model_id": loaded.source.model_id,
            "dataset": dataset,
            "assertion": ordering.assertion,
            "margin": ordering.bound,
            "mean": sum(found) / len(found),
            "low": min(found),
            "high": max(found),
            "n_seeds": len(found),
            "holds": all(ordering.holds(ratio) for ratio in found),
        }
        for ordering, found in zip(which, ratios, strict=True)
    ]
