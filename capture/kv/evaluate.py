"""How a KV policy is tried inside a live model: with its storage, and the bits that this loses."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tokentape.capture import models
from tokentape.capture.kv.storage import Leaking, Plain, Rotated
from tokentape.capture.live.attention import KV
from tokentape.capture.live.quality import Tried
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.quarot import STORAGES, QuaRot
from tokentape.policies.kv.refresh import BitRates


@dataclass(frozen=True)
class KVRun(Tried):
    """A KV policy and how it is tried. storage: plain, a word that loses bits at `rates` (capture/kv/storage.py), quarot (4 bits
    after a rotation)."""

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

    def slot(self, loaded: models.Loaded, seed: int, **options: bool) -> KV:
        """The policy alone; seed: of bit flips and of policies that draw."""
        policy, drawn = self.policy, {"seed": seed}
        if hasattr(policy, "seed"):  # a field of those that draw
            policy = dataclasses.replace(policy, **drawn)
        return KV(loaded.model, policy, self._storage(seed), **options)

    def _storage(self, seed: int) -> Plain:
        if self.storage == "plain":
            return Plain()
        if self.storage == "quarot":
            return Rotated(QuaRot(self.bits))
        return Leaking(self.rates, self.storage, self.resample, seed)
