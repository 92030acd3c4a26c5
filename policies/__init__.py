"""Decisions, one per file. CACHES maps the name a person types to the class; add a policy with one file and one line."""

from policies.belady import Belady, BypassBelady
from policies.lfu import LFU, LifetimeLFU
from policies.lru import FIFO, LRU
from policies.random_victim import RandomVictim
from policies.static import Static

CACHES: dict[str, type] = {
    "lru": LRU,
    "lfu": LFU,
    "lfu-lifetime": LifetimeLFU,
    "fifo": FIFO,
    "static": Static,
    "random": RandomVictim,
    "belady": Belady,
    "belady-bypass": BypassBelady,
}
