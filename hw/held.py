"""Whether what lies in a machine's tiers fits them: the one check of every engine."""

from collections.abc import Mapping

from tokentape.hw.spec import HardwareSpec

WORDS = {
    "weights_home": "weights outside the experts",
    "expert_home": "experts",
    "expert_cache": "the expert cache",
    "kv_home": "keys and values",
    "draft_home": "the draft model",
    "buffers": "activations",
}


def without_cache(machine: HardwareSpec) -> list[str]:
    """What becomes of a cache of experts on a machine without a tier for it, one sentence; none where it has one."""
    if machine.roles.expert_cache:
        return []
    home = machine.roles.expert_home
    return [f"{machine.name} has no tier in front of the experts: they are read from {home}, whatever the cache holds"]


def by_tier(machine: HardwareSpec, held_bytes: Mapping[str, float]) -> dict[str, tuple[float, dict[str, float]]]:
    """Tier -> its room, and bytes of what lies there, in words. held_bytes: by role, of all devices; buffers lie with weights."""
    of_tier: dict[str, tuple[float, dict[str, float]]] = {}
    for role, n_bytes in held_bytes.items():
        name = machine.roles.of("weights_home" if role == "buffers" else role)
        if n_bytes and name:
            room = machine.tiers[name].capacity_bytes.value * machine.n_devices
            of_tier.setdefault(name, (room, {}))[1][WORDS[role]] = n_bytes
    return of_tier


def overfull(machine: HardwareSpec, held_bytes: Mapping[str, float]) -> list[str]:
    """One sentence for every tier that cannot hold what lies in it. held_bytes: see by_tier."""
    found = []
    for name, (room, what) in by_tier(machine, held_bytes).items():
        if sum(what.values()) > room:
            listed = ", ".join(f"{words} {n_bytes / 1e9:.3g} GB" for words, n_bytes in what.items())
            found.append(f"{name} ({room / 1e9:.3g} GB) does not hold what lies in it: {listed}")
    return found
