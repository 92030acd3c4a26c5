"""Whether what lies in a machine's tiers fits them: the one check of every engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tokentape.hw.spec import HardwareSpec

WORDS = {
    "weights_home": "weights outside the experts",
    "expert_home": "experts",
    "expert_cache": "the expert cache",
    "kv_home": "keys and values",
    "draft_home": "the draft model",
}


def without_cache(machine: HardwareSpec) -> list[str]:
    """What becomes of a cache of experts on a machine without a tier for it, one sentence; none where it has one."""
    if machine.roles.expert_cache:
        return []
    home = machine.roles.expert_home
    return [f"{machine.name} has no tier in front of the experts: they are read from {home}, whatever the cache holds"]


def overfull(machine: HardwareSpec, held_bytes: Mapping[str, float]) -> list[str]:
    """One sentence for every tier that cannot hold what lies in it. held_bytes: by role, of all devices."""
    of_tier: dict[str, dict[str, float]] = defaultdict(dict)
    for role, n_bytes in held_bytes.items():
        if n_bytes and machine.roles.of(role):
            of_tier[machine.roles.of(role)][WORDS[role]] = n_bytes
    found = []
    for name, what in of_tier.items():
        room = machine.tiers[name].capacity_bytes.value * machine.n_devices
        if sum(what.values()) > room:
            listed = ", ".join(f"{words} {n_bytes / 1e9:.3g} GB" for words, n_bytes in what.items())
            found.append(f"{name} ({room / 1e9:.3g} GB) does not hold what lies in it: {listed}")
    return found
