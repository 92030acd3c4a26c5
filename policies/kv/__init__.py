"""KV eviction policies, one idea per file. The dict maps the name a person types to the class."""

from tokentape.policies.kv.importance import AEP, AERP, H2O
from tokentape.policies.kv.quest import Quest
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.rule import KVPolicy
from tokentape.policies.kv.snapkv import SnapKV
from tokentape.policies.kv.streaming import Full, Streaming
from tokentape.policies.kv.tova import TOVA, Oracle

__all__ = ["KELLE", "KV_POLICIES", "TYPED", "KVPolicy"]

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

KELLE = "kelle"  # AERP, whose words lose bits between the refreshes of 2DRP inside a live model
TYPED = KV_POLICIES | {KELLE: AERP, "quest": Quest}
