"""Orderings that a live model must show: which precision, router and warm-up beats which, and by how much.

Each is a ratio with a margin (orderings.toml), measured on held-out text of the embedded model with several seeds; a seed has
windows of its own. Low precision throughout (whole windows in one pass), or a policy in the loop (capture/live/quality.py).
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from tokentape.capture import models
from tokentape.capture.live.copies import LowWeights
from tokentape.capture.live.quality import Cut, on_text, windows
from tokentape.capture.live.routers import Sliced, capacity_of
from tokentape.capture.live.slots import Inside
from tokentape.policies.matryoshka import MAT
from tokentape.policies.resolve import resolve
from tokentape.policies.sliced import SliceMoE

DATASET = "code"


@dataclass(frozen=True, kw_only=True)
class Effort(Cut):
    """A data set, and how many windows of it are scored whole; the loop takes n_items of them."""

    decode_tokens: int = 128
    n_items: int = 8
    n_whole: int = 100
    dataset: str = DATASET


class Lab:
    """One seed's measurements on a loaded model, each made once."""

    def __init__(self, loaded: models.Loaded, seed: int, effort: Effort = Effort()) -> None:
        self.loaded, self.seed, self.effort = loaded, seed, effort
        self.texts = windows(loaded, effort.dataset, replace(effort, n_items=effort.n_whole), seed)
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
        with LowWeights(model, None if pair is None else MAT.parse(pair), scheme, static=False).in_place():
            logits: torch.Tensor = model(input_ids=torch.tensor(self.texts, device=model.device), use_cache=False).logits
        return logits.float()

    def _run(self, cache_frac: float, scheme: str = "amat", n_decoded: int | None = None, **params: Any) -> dict[str, Any]:
        """Perplexity, miss_frac and the counts of slicemoe in the loop. scheme, params: as `evaluate --policy` takes them."""
        model, run = self.loaded.model, replace(self.effort, decode_tokens=n_decoded or self.effort.decode_tokens)
        chosen = [ids[: run.prompt_tokens + run.decode_tokens] for ids in self.texts[: run.n_items]]
        system: SliceMoE = resolve("system", "slicemoe", params)
        capacity_bytes = capacity_of(model, system.cache, cache_frac)
        slot = Sliced(model, system, capacity_bytes, None if scheme == "none" else scheme, self.seed)
        return on_text(self.loaded, chosen, run, Inside(model, slot)) | slot.totals | {"miss_frac": slot.miss_frac}


@dataclass(frozen=True)
class Ordering:
    """What measurements of a Lab come to and the margin that this must keep; `is_below`: stay under it, else reach it or more.

    of: what `measure`, a method of the Lab by its name, is asked for; over: divided by the same of these, of several the largest;
    less: less the same of this; plus: and this. key: of what the measurement returns.
    """

    assertion: str
    is_below: bool
    margin: float
    measure: str
    of: Mapping[str, Any]
    over: Sequence[Mapping[str, Any]] = ()
    less: Mapping[str, Any] | None = None
    plus: float = 0.0
    key: str = ""

    @property
    def bound(self) -> str:
        return f"{'<=' if self.is_below else '>='} {self.margin:g}"

    def holds(self, ratio: float) -> bool:
        return ratio <= self.margin if self.is_below else ratio >= self.margin

    def ratio(self, lab: Any) -> float:
        """Raises ValueError over 0."""

        def asked(of: Mapping[str, Any]) -> float:
            found = getattr(lab, self.measure)(**of)
            return float(found[self.key] if self.key else found)

        found = self.plus + asked(self.of)
        if self.less is not None:
            return found - asked(self.less)
        below = [asked(of) for of in self.over] or [1.0]
        if not max(below):
            of = tuple(self.over[0].values())
            raise ValueError(
                f"{self.measure} of {of} has no {self.key or 'value'} in so little text; give more windows or longer ones"
            )
        return found / max(below)


def listed(kind: str) -> tuple[Ordering, ...]:
    """The orderings of a kind of orderings.toml."""
    made = []
    for told in (group | one for group in LISTED[kind] for one in group["each"]):
        del told["each"]
        both, over, is_below = told.pop("both", {}), told.pop("over", []), "at_most" in told
        told |= {name: both | told[name] for name in ("of", "less") if name in told}
        told["over"] = [both | of for of in (over if isinstance(over, list) else [over])]
        made.append(Ordering(is_below=is_below, margin=told.pop("at_most" if is_below else "at_least"), **told))
    return tuple(made)


LISTED = tomllib.loads(Path(__file__).with_name("orderings.toml").read_text(encoding="utf-8"))
ORDERINGS, ACCEPTANCE_ORDERINGS = listed("experts"), listed("drafts")


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
