"""The paper's baselines: the same xPU with EXT alone, with compute inside EXT's devices, or next to some of its channels.

What the paper (section 7) does not give is an argument or a number of the machine's file: nodes verified and drafted per request,
the bandwidth of near-memory compute, what it holds. Every pass and draft takes the faster of what is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tokentape.hw.clock import clock
from tokentape.hw.profile import Profile
from tokentape.hw.work import Rows, Work
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import Floats, Group, Points
from tokentape.replay.elmoe3d.runs import Mode, Run, need_nodes
from tokentape.replay.elmoe3d.timing import NOMINAL, Joules, faded, hits, nothing, parts_of, reads_of
from tokentape.replay.elmoe3d.work import STATIC_KINDS, Place, expert_rows, head_work, stacked, static_work

Holds = Literal["dense", "experts"]
HOME, NEAR = "expert_home", "weights_home"  # roles of EXT and, where channels have compute of their own, of those channels


@dataclass(frozen=True, eq=False)
class Places:
    """Where a pass finds what it reads: experts, with shares (n, 1); static weights, keys, values and heads in the tier of a role
    by an engine, but `beside_frac` of their bytes at the same time from the near channels, over which they are interleaved."""

    experts: tuple[Place, ...]
    static: tuple[str, str] = (HOME, "main")
    beside_frac: float = 0.0


def baseline(p: Points, holds: Holds, profile: Profile) -> dict[Mode, Run]:
    """A baseline in AR, and speculating with the head of EAGLE. The points are on its machine; holds: what near channels hold
    first."""
    need_nodes(p)
    reads = reads_of(p, map_bytes(p))
    passes, n = [reads["ar"], reads["verify"]], len(p)
    seconds, joules = {name: np.zeros(n) for name in ("ar", "sd")}, {name: nothing(n) for name in ("ar", "sd")}
    for of in p.groups:
        options, at = _options(of, p, holds), of.at
        whole = [(_placed(static_work(of, p, passes), stacked(passes, "static_bytes", at), option), option) for option in options]
        steps_s, steps_j = _fastest(
            of, [replace(w, rows=(*w.rows, *expert_rows(of, p, passes, o.experts))) for w, o in whole], profile
        )
        head = head_work(of, p, replace(reads["draft"], cold_bytes=np.zeros(n)), phase="verify")
        heads = [_placed(head, p.head_bytes[at, None], option) for option in options]
        head_s, head_j = _fastest(of, heads, profile)
        d, (ar, verify) = p.n_draft_steps[at], (slice(0, at.size), slice(at.size, None))
        seconds["ar"][at], seconds["sd"][at] = steps_s[ar], steps_s[verify] + d * head_s
        for part, values in steps_j.items():
            joules["ar"][part][:, at], joules["sd"][part][:, at] = values[:, ar], values[:, verify] + d * head_j[part]
    tokens = {"ar": p.batch, "sd": p.batch * (1.0 + p.accepted_len)}
    return {mode: Run(seconds[mode], tokens[mode], joules[mode]) for mode in ("ar", "sd")}


def _options(of: Group, p: Points, holds: Holds) -> list[Places]:
    """All to the xPU; experts where they lie."""
    machine, one = of.machine, np.ones((2 * of.at.size, 1))
    near = machine.engines.get(machine.roles.near_compute)
    if near is None or near.memory == machine.roles.expert_home:
        brought = Places(experts=((HOME, "main", one),))
        return [brought, Places(experts=((HOME, "near_compute", one),))] if near else [brought]
    channels, ext = (machine.tiers[name] for name in (near.memory, machine.roles.expert_home))
    frac = channels.peak_bytes_per_s.value / (channels.peak_bytes_per_s.value + ext.peak_bytes_per_s.value)
    brought = Places(experts=((HOME, "main", (1.0 - frac) * one), (NEAR, "main", frac * one)), beside_frac=frac)
    hit_frac = _hits(p, channels.capacity_bytes.value, holds)[:, of.at].reshape(-1, 1)
    experts = ((NEAR, "near_compute", hit_frac), (HOME, "main", 1.0 - hit_frac))
    return [brought, Places(experts=experts, static=(NEAR, "near_compute") if holds == "dense" else (HOME, "main"))]


def _hits(p: Points, near_bytes: float, holds: Holds) -> Floats:
    """(2, n) hit rates of the near channels in AR and in verification."""
    needed = p.static_bytes + p.kv_bytes + p.embedding_bytes if holds == "dense" else 0.0
    share = np.clip((near_bytes - needed) / (p.expert_bytes * p.n_experts * p.n_layers), 0.0, 1.0)
    return np.stack([hits(p, share, p.beta, p.batch), hits(p, share, faded(p), p.verify_tokens * p.batch**p.growth)])


def _placed(work: Work, static_bytes: Floats, places: Places) -> Work:
    """The static rows where they are read."""
    (tier, engine), kept = places.static, 1.0 - places.beside_frac
    rows = [
        replace(row, tier=tier, engine=engine, bytes=row.bytes * kept) if row.kind in STATIC_KINDS else row for row in work.rows
    ]
    beside = Rows(
        kind="weights",
        name="interleaved",
        tier=NEAR,
        engine="main",
        blocks=np.array([work.n_blocks - 1]),
        bytes=places.beside_frac * static_bytes,
    )
    return replace(work, rows=(*rows, *(beside,) * bool(places.beside_frac)))


def _fastest(of: Group, options: Sequence[Work], profile: Profile) -> tuple[Floats, Joules]:
    """Seconds and joules of the fastest, step by step."""
    seconds = np.stack([clock(work, of.machine, profile, ends=NOMINAL).seconds.value for work in options])
    best, joules = np.argmin(seconds, axis=0), nothing(seconds.shape[1])
    for i in np.unique(best):
        for part, values in parts_of(clock(options[i], of.machine, profile), of.machine).items():
            joules[part] += np.where(best == i, values, 0.0)
    return seconds.min(axis=0), joules
