"""Draft and verify: which tokens are proposed, which experts the drafter may use, what the target accepts.

Arrays in, arrays out: the same kernels run inside a live model (capture/speculation) and over a tape (replay/rounds.py).
"""

from tokentape.policies.speculation.pools import LRU, AsRecorded, Hotness, Oracle, PoolPolicy, Random, Static

POOLS: dict[str, type[PoolPolicy]] = {"hotness": Hotness, "random": Random, "static": Static, "lru": LRU, "oracle": Oracle}
DRAFTS = {**POOLS, "recorded": AsRecorded}  # what a system's draft slot names
DRAFT = (PoolPolicy, AsRecorded)
