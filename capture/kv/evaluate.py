"""What a KV policy does to a live model's quality: perplexity, KL and acceptance on text, exact match on items.

As capture/evaluate_policy.py measures: text in windows, a prompt seen whole, then teacher-forced decoding token by token with the
policy in the loop, compared with the unmodified model on the same tokens; items are answered greedily.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tokentape.capture import models
from tokentape.capture.evaluate import NOT_MEASURED, Report
from tokentape.capture.evaluate_policy import Cut, key_of, on_text, scored, windows
from tokentape.capture.kv.loop import KVLoop
from tokentape.capture.kv.storage import WORDS, Leaking, Plain, Rotated
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.quarot import QuaRot
from tokentape.policies.kv.refresh import BitRates

STORAGES = ("plain", *WORDS, "quarot")


@dataclass(frozen=True)
class KVRun(Cut):
    """A KV policy and how it is tried. name, parameters: as table `quality` holds them. storage: plain, a word that loses bits at
    `rates` (capture/kv/storage.py), quarot (4 bits after a rotation)."""

    policy: KVPolicy
    name: str
    parameters: dict[str, Any]
    storage: str = "plain"
    rates: BitRates = field(default_factory=BitRates)
    resample: bool = False
    bits: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage not in STORAGES:
            raise ValueError(f"storage {self.storage!r} is unknown; choose {', '.join(STORAGES)}")

    def loop(self, loaded: models.Loaded, seed: int, **options: bool) -> KVLoop:
        """The policy in the model; seed: of bit flips and of policies that draw."""
        policy, drawn = self.policy, {"seed": seed}
        if hasattr(policy, "seed"):  # a field of those that draw
            policy = dataclasses.replace(policy, **drawn)
        return KVLoop(loaded.model, policy, self._storage(seed), **options)

    def _storage(self, seed: int) -> Plain:
        if self.storage == "plain":
            return Plain()
        if self.storage == "quarot":
            return Rotated(QuaRot(self.bits))
        return Leaking(self.rates, self.storage, self.resample, seed)


def evaluate_kv(
    loaded: models.Loaded, dataset: str, run: KVRun, seed: int = 0, progress: Report = lambda done, total, name: None
) -> dict[str, Any]:
    """A row of table `quality`. seed: of draws, and which windows or items.

    Raises ValueError for a data set too short for a window, or of which only some items have an answer.
    """
    loop = run.loop(loaded, seed)
    read = lambda told: on_text(loaded, windows(loaded, dataset, run, seed), run, loop, told)  # noqa: E731
    scores = scored(loaded, dataset, run, seed, loop, read, progress)
    return key_of(loaded, run.name, run.parameters, dataset, seed) | NOT_MEASURED | scores | {"kv_bytes": loop.mean_bytes}
