"""KV eviction policies, one idea per file. The dict maps the name a person types to the class."""

from __future__ import annotations

from policies.kv.full import Full
from policies.kv.importance import AEP, AERP, H2O
from policies.kv.oracle import Oracle
from policies.kv.random_eviction import RandomEviction
from policies.kv.rule import KVPolicy
from policies.kv.snapkv import SnapKV
from policies.kv.streaming import Streaming
from policies.kv.tova import TOVA

__all__ = ["KV_POLICIES", "KVPolicy"]

KV_POLICIES: dict[str, type[KVPolicy]] = {
    "full": Full,
    "streaming": Streaming,
    "h2o": H2O,
    "tova": TOVA,
    "snapkv": SnapKV,
    "random": RandomEviction,
    "aep": AEP,
    "aerp": AERP,
    "oracle": Oracle,
}
