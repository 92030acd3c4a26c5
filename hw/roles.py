"""Which tier or engine of a machine does what: the roles that work rows name (hw/work.py), in a machine file's [roles].

An absent role is not an error: it changes the decision that needs it (replay/system: without near compute experts are fetched,
without a KV cache tier KV lies with the weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from tokentape.hw.sourced import BadSpec

ENGINE_ROLES = ("main", "near_compute")


@dataclass(frozen=True, kw_only=True)
class Roles:
    """main: the engine of all dense work; near_compute: one beside a memory. The others are tiers: *_home: where something lies;
    expert_cache, kv_cache: the faster tier in front of that home; stage: a buffer that weights pass through; activations: what a
    systolic array reads its inputs from; peer: the tier whose link to itself joins the devices. reads: tiers that the main engine
    computes from in place; from others it fetches."""

    main: str
    weights_home: str
    expert_home: str
    kv_home: str
    draft_home: str
    reads: tuple[str, ...]
    expert_cache: str = ""
    kv_cache: str = ""
    stage: str = ""
    activations: str = ""
    peer: str = ""
    near_compute: str = ""

    def of(self, role: str) -> str:
        """The tier or engine of a role; "" where the machine has none."""
        return str(getattr(self, role))


TIER_ROLES = tuple(f.name for f in fields(Roles) if f.name not in (*ENGINE_ROLES, "reads"))


def roles_of(data: Any, engine: str, fast: str, backing: str, engines: Sequence[str], tiers: Sequence[str], where: str) -> Roles:
    """The [roles] of a file, completed from its engine and its fast and backing tiers. Raises BadSpec naming the key."""
    if not isinstance(data, dict):
        raise BadSpec(f"{where}: roles must be a table [roles], found {data!r}")
    known = tuple(f.name for f in fields(Roles))
    given: dict[str, Any] = {
        "main": engine,
        **dict.fromkeys(("weights_home", "kv_home", "draft_home"), fast),
        "expert_home": backing or fast,
        "expert_cache": fast if backing else "",
        "reads": [fast],
        **data,
    }
    for role, name in given.items():
        if role not in known:
            raise BadSpec(f"{where}: roles: unknown role {role!r}; known: {', '.join(known)}")
        if role == "reads" and not isinstance(name, list):
            raise BadSpec(f"{where}: roles.reads must be a list of tiers, found {name!r}")
        names = name if role == "reads" else [name]
        there = engines if role in ENGINE_ROLES else tiers
        for one in names:
            if one not in there and not (one == "" and role not in ("main", "weights_home", "expert_home", "kv_home")):
                what = "an engine" if role in ENGINE_ROLES else "a tier"
                raise BadSpec(f"{where}: roles.{role} = {one!r} is not {what} of the file ({', '.join(there)})")
    return Roles(**{**given, "reads": tuple(given["reads"])})
