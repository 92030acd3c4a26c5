"""Expert-cache policies. CACHES maps the name a person types to the class; add a policy with one file and one line."""

from tokentape.policies.belady import Belady, BypassBelady
from tokentape.policies.gate_weighted import GateWeighted
from tokentape.policies.gdsf import GDSF
from tokentape.policies.hobbit import Hobbit
from tokentape.policies.hysteresis import Hysteresis
from tokentape.policies.least_stale import LeastStale
from tokentape.policies.lfru import LFRU
from tokentape.policies.lfu import LFU, LifetimeLFU
from tokentape.policies.lru import FIFO, LRU
from tokentape.policies.protocol import CachePolicy as CachePolicy
from tokentape.policies.random_victim import RandomVictim
from tokentape.policies.scan_resistant import ARC, S3FIFO, SLRU, Sieve
from tokentape.policies.static import Static

CACHES: dict[str, type] = {
    "lru": LRU,
    "lfu": LFU,
    "lfu-lifetime": LifetimeLFU,
    "fifo": FIFO,
    "sieve": Sieve,
    "slru": SLRU,
    "s3-fifo": S3FIFO,
    "arc": ARC,
    "lfru": LFRU,
    "gdsf": GDSF,
    "least-stale": LeastStale,
    "gate-weighted": GateWeighted,
    "hysteresis": Hysteresis,
    "hobbit": Hobbit,
    "static": Static,
    "random": RandomVictim,
    "belady": Belady,
    "belady-bypass": BypassBelady,
}
