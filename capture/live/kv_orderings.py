"""Orderings that KV eviction and lossy storage must show on the embedded model: what costs more than what, and by how much.

Each is a ratio of perplexities, or of accuracies, with a margin (capture/orderings.toml), measured on held-out text with several
seeds; a seed has windows of its own.
"""

import math
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch

from tokentape.capture import models
from tokentape.capture.live.copies import LowWeights
from tokentape.capture.live.loop import Sampling, decode
from tokentape.capture.live.quality import Cut, evaluate_inside, requests_of, windows
from tokentape.capture.live.system import SystemTried, kv_alone
from tokentape.capture.orderings import DATASET, listed
from tokentape.policies.kv.refresh import Intervals
from tokentape.policies.matryoshka import MAT

USUAL = Cut(n_items=24)
WHOLE = {"policy": "aep", "budget": "none", "importance": "mean"}  # evicts nothing, but scores tokens into HST and LST
WORD_ORDERINGS = listed("words")
ORDERINGS, PAPER_ORDERINGS = (*WORD_ORDERINGS, *listed("kv")), listed("kelle")


class Lab:
    """One seed's measurements on a loaded model, each made once.

    kept: a KV policy, its parameters and how it stores keys and values, as `evaluate --policy` takes them; without a policy the
    whole cache. is_uniform: one interval for all in place of `intervals`, which takes as many refreshes.
    """

    def __init__(self, loaded: models.Loaded, seed: int, cut: Cut = USUAL, dataset: str = DATASET) -> None:
        self.loaded, self.seed, self.cut = loaded, seed, cut
        self.texts = np.array(windows(loaded, dataset, cut, seed))
        self.nll = cache(self._nll)

    def _nll(self, **kept: Any) -> np.ndarray:
        """(windows, decode_tokens - 1): of every decoded token whose logits the cache had a part in."""
        model, requests = self.loaded.model, requests_of(self.texts.tolist(), self.cut)
        with self._tried(**kept).inside(self.loaded, self.seed) as inside:
            outcomes = decode(model, requests, Sampling(), frozenset(), self.loaded.pad_id, inside, with_nll=True)
        found = [o.nll for o in outcomes]
        return torch.stack([nll for nll in found if nll is not None])[:, self.cut.prompt_tokens :].double().numpy()

    def _tried(self, is_uniform: bool = False, **kept: Any) -> SystemTried:
        given = kept if "policy" in kept else WHOLE | kept
        if is_uniform:
            given["intervals"] = Intervals.parse(given["intervals"]).harmonic_mean_us
        system, stored = kv_alone(given.pop("policy"), given)
        return SystemTried(system, system.name, stored, room=lambda *told: 0, **asdict(self.cut))

    def accuracy(self, dataset: str, **kept: Any) -> float:
        """Share of the seed's own items of a data set that are answered right."""
        return float(evaluate_inside(self.loaded, dataset, self._tried(**kept), self.seed)["accuracy"])

    def at_width(self, bits: int, **kept: Any) -> float:
        """Perplexity with the experts and every linear layer at so many bits, in groups; activations are not rounded."""
        with LowWeights(self.loaded.model, MAT(bits, bits), "high_asym", static=True).in_place():
            return math.exp(self._nll(**kept).mean())

    def perplexity(self, **kept: Any) -> float:
        return math.exp(self.nll(**kept).mean())

    def flipped(self, storage: str = "int16", **lost: Any) -> float:
        """Perplexity of the whole cache over that of the same words without losses."""
        return self.perplexity(storage=storage, **lost) / self.perplexity(storage=storage)

    def long_range(self, distance: int, **kept: Any) -> float:
        """Perplexity on the targets whose bigram last stood more than `distance` tokens ago."""
        mask = last_bigram(self.texts)[:, self.cut.prompt_tokens + 1 :] > distance
        return math.exp(self.nll(**kept)[mask].mean())


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
