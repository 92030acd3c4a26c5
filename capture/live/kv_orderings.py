"""Orderings that KV eviction and lossy storage must show on the embedded model: what costs more than what, and by how much.

Each is a ratio of perplexities, or of accuracies, with a margin, measured on held-out text with several seeds; a seed has windows
of its own. Margins are those of a smaller reference model and are not moved: where the shipped model misses one, the
table says so.
"""

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from tokentape.capture import models
from tokentape.capture.evaluate import answered, items_of
from tokentape.capture.live.attention import KV
from tokentape.capture.live.copies import LowWeights
from tokentape.capture.live.loop import Sampling, decode
from tokentape.capture.live.quality import Cut, requests_of, run_in, windows
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.storage import NONE, storage_of
from tokentape.capture.orderings import Ordering, over
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.importance import AEP, AERP, H2O
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.refresh import BitRates, Intervals
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.matryoshka import MAT

DATASET = "code"
SINK = 4
BUDGETS = (32, 64)
USUAL = Cut(n_items=24)
EVERYTHING = AEP(None, importance="mean")  # evicts nothing, but scores tokens into HST and LST
# The three sets of intervals of Kelle Table 4, by the harmonic mean in us that it states.
REFRESH_SETS = {
    540: Intervals(180.0, 3600.0, 720.0, 5400.0),
    1050: Intervals(),
    2062: Intervals(720.0, 9000.0, 2880.0, 10800.0),
}


class Lab:
    """One seed's measurements on a loaded model, each made once."""

    def __init__(self, loaded: models.Loaded, seed: int, cut: Cut = USUAL, dataset: str = DATASET) -> None:
        self.loaded, self.seed, self.cut = loaded, seed, cut
        self.texts = np.array(windows(loaded, dataset, cut, seed))
        self.nll = cache(self._nll)

    def _nll(self, policy: KVPolicy, storage: str = "plain", rates: BitRates = NONE) -> np.ndarray:
        """(windows, decode_tokens - 1): of every decoded token whose logits the cache had a part in."""
        model, requests = self.loaded.model, requests_of(self.texts.tolist(), self.cut)
        with self._inside(policy, storage, rates) as inside:
            outcomes = decode(model, requests, Sampling(), frozenset(), self.loaded.pad_id, inside, with_nll=True)
        found = [o.nll for o in outcomes]
        return torch.stack([nll for nll in found if nll is not None])[:, self.cut.prompt_tokens :].double().numpy()

    def _inside(self, policy: KVPolicy, storage: str, rates: BitRates) -> Inside:
        if isinstance(policy, RandomEviction):
            policy = replace(policy, seed=self.seed)
        return Inside(self.loaded.model, KV(self.loaded.model, policy, storage_of(storage, rates, seed=self.seed)))

    def accuracy(self, dataset: str, policy: KVPolicy, storage: str = "plain", rates: BitRates = NONE) -> float:
        """Share of the seed's own items of a data set that are answered right."""
        found = items_of(dataset, self.cut.n_items, self.seed)
        with self._inside(policy, storage, rates) as inside:
            run = partial(run_in, inside=inside)
            return float(answered(self.loaded, found, dataset, lambda done, total, name: None, run)[1]["accuracy"])

    def at_width(self, bits: int, policy: KVPolicy, storage: str, rates: BitRates) -> float:
        """Perplexity with the experts and every linear layer at so many bits, in groups; activations are not rounded."""
        with LowWeights(self.loaded.model, MAT(bits, bits), "high_asym", static=True).in_place():
            return math.exp(self._nll(policy, storage, rates).mean())

    def perplexity(self, policy: KVPolicy = EVERYTHING, storage: str = "plain", rates: BitRates = NONE) -> float:
        return math.exp(self.nll(policy, storage, rates).mean())

    def flipped(self, rates: BitRates, word: str = "int16") -> float:
        """Perplexity over that of the same words without losses."""
        return self.perplexity(EVERYTHING, word, rates) / self.perplexity(EVERYTHING, word)

    def long_range(self, policy: KVPolicy, distance: int) -> float:
        """Perplexity on the targets whose bigram last stood more than `distance` tokens ago."""
        mask = last_bigram(self.texts)[:, self.cut.prompt_tokens + 1 :] > distance
        return math.exp(self.nll(policy)[mask].mean())


def last_bigram(texts: np.ndarray) -> np.ndarray:
    """(windows, n) tokens since the bigram that ends at each position last ended; 0 where it is new. texts (windows, n) ids."""
    since = np.zeros(texts.shape, np.int64)
    for row, ids in zip(since, texts.tolist(), strict=True):
        seen: dict[tuple[int, int], int] = {}
        for at in range(1, len(ids)):
            pair = (ids[at - 1], ids[at])
            row[at] = at - seen.get(pair, at)
            seen[pair] = at
    return since


def _mean_score(budget: int) -> AEP:
    return AEP(budget, sink=SINK, importance="mean")


def _against_uniform(mean_us: int) -> Ordering:
    """2DRP over one interval for all, which takes as many refreshes."""
    intervals = REFRESH_SETS[mean_us]
    ratio = over("flipped", (BitRates.of(intervals),), (BitRates.of(Intervals.uniform(intervals.harmonic_mean_us)),))
    return Ordering(f"perplexity 2DRP / uniform, {mean_us} us, int16", True, 1.0, ratio)


def _against_streaming(budget: int) -> Ordering:
    ratio = over("long_range", (_mean_score(budget), budget), (Streaming(budget, sink=SINK), budget))
    return Ordering(f"perplexity mean score / StreamingLLM, long range, {budget}", True, 0.95, ratio)


def _worst(budget: int) -> Ordering:
    """Random eviction over the worst of the others."""
    others = (_mean_score(budget), Streaming(budget, sink=SINK), Streaming(budget, sink=0), RandomEviction(budget, sink=SINK))
    unprotected = RandomEviction(budget, sink=0, recent=0)
    return Ordering(
        f"perplexity unprotected random / worst other, {budget}",
        False,
        1.01,
        lambda lab: lab.perplexity(unprotected) / max(lab.perplexity(policy) for policy in others),
    )


# Margins of the reference model's table, rows 11 to 15, and of the paper's tolerance to losses.
WORD_ORDERINGS = (
    Ordering("perplexity int16 losses 1e-3 / none", True, 1.03, lambda lab: lab.flipped(BitRates.uniform(1e-3))),
    Ordering("perplexity int16 losses 2e-3 / none", True, 1.05, lambda lab: lab.flipped(BitRates.uniform(2e-3))),
    Ordering("perplexity fp16 losses 1e-4 / none", False, 2.0, lambda lab: lab.flipped(BitRates.uniform(1e-4), "fp16")),
)
# What Tables 2 to 6 of Kelle say of large models, of this one: a policy, its words and what they lose. Table 2's caches are
# of 64 tokens, Table 3 goes from budget to budget, Table 4 is under eviction, Table 5 is of answers, Table 6 of narrow weights.
_KELLE = {n: (AERP(n, sink=SINK), "int16", BitRates.of(Intervals())) for n in (16, 32, 64, 128)}
_TABLE_2 = {"Kelle": _KELLE[64], "H2O": (H2O(64),), "StreamingLLM": (Streaming(64, sink=SINK),), "4-bit": (EVERYTHING, "quarot")}


def _paper(table: int, ours: str, than: str, mine: tuple[Any, ...], theirs: tuple[Any, ...], by: str = "perplexity") -> Ordering:
    what = "accuracy" if by == "accuracy" else "perplexity"
    return Ordering(f"{what}, Table {table}: {ours} / {than}", True, 1.0, over(by, mine, theirs))


PAPER_ORDERINGS = (
    *(_paper(2, "whole cache", name, (EVERYTHING,), of) for name, of in _TABLE_2.items()),
    *(_paper(2, name, "StreamingLLM", _TABLE_2[name], _TABLE_2["StreamingLLM"]) for name in ("H2O", "Kelle")),
    *(_paper(3, f"Kelle {n}", str(n // 2), _KELLE[n], _KELLE[n // 2]) for n in (128, 64, 32)),
    *(
        _paper(
            4,
            f"2DRP, 128, {mean_us} us",
            "uniform",
            (_KELLE[128][0], "int16", BitRates.of(of)),
            (_KELLE[128][0], "int16", BitRates.of(Intervals.uniform(of.harmonic_mean_us))),
        )
        for mean_us, of in REFRESH_SETS.items()
    ),
    *(
        _paper(5, f"Kelle {n}", f"whole cache, {of}", (of, *_KELLE[n]), (of, EVERYTHING), "accuracy")
        for of, n in (("recall", 128), ("math", 64))
    ),
    _paper(6, "Kelle 128, weights of 8 bits", "4 bits", (8, *_KELLE[128]), (4, *_KELLE[128]), "at_width"),
)
_OF_HST, _OF_LST = BitRates(hst_msb=1e-3, hst_lsb=1e-3), BitRates(lst_msb=1e-3, lst_lsb=1e-3)
ORDERINGS = (
    *WORD_ORDERINGS,
    Ordering(
        "perplexity MSB - LSB losses 1e-2 / none, plus 1",
        False,
        1.05,
        lambda lab: 1 + lab.flipped(BitRates(hst_msb=1e-2, lst_msb=1e-2)) - lab.flipped(BitRates(hst_lsb=1e-2, lst_lsb=1e-2)),
    ),
    Ordering("perplexity HST / LST losses 1e-3", False, 1.0, over("flipped", (_OF_HST,), (_OF_LST,))),
    *map(_against_uniform, REFRESH_SETS),
    *map(_worst, BUDGETS),
    *map(_against_streaming, BUDGETS),
)
