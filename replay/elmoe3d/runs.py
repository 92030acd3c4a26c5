"""A step or a round as totals, seconds, tokens, joules by part: of the proposed design (paper section 5), and of its baselines,
the same xPU with EXT alone, with compute inside EXT's devices, or next to some of its channels.

What the paper (section 7) does not give is an argument or a number of the machine's file: nodes verified and drafted per request,
the bandwidth of near-memory compute, what it holds. Every pass and draft of a baseline takes the faster of what is possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tokentape.hw.clock import clock
from tokentape.hw.profile import ENDS, Profile
from tokentape.hw.rates import Rates, rates_of
from tokentape.hw.sourced import Sourced
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows, Work
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import SLICE_FRAC, Group, Points
from tokentape.replay.elmoe3d.timing import NOMINAL, Joules, Outcome, faded, hits, nothing, parts_of, reads_of
from tokentape.replay.elmoe3d.work import Place, divided, expert_rows, head_work, partial_sum_bytes, stacked, static_work
from tokentape.warehouse.geometry import Geometry

LSB_BYTES_PER_PARAM = 0.5  # without scales
ALL_THAT_MAY = Sourced(value=1.0, low=0.0, high=1.0, source="derived: bounds, where no tape says what enters the pool")
Mode = Literal["ar", "sd"]
Holds = Literal["dense", "experts"]
HOME, NEAR = "expert_home", "weights_home"  # roles of EXT and, where channels have compute of their own, of those channels


@dataclass(frozen=True, eq=False)
class Run:
    """A step or a round of n points for the whole batch: (n,) seconds and tokens, joules."""

    seconds: Floats
    tokens: Floats
    joules: Joules

    @property
    def token_s(self) -> Floats:
        return self.seconds / self.tokens

    @property
    def joules_per_token(self) -> Joules:
        return self.joules / self.tokens


def ours(p: Points, found: Outcome, profile: Profile, pool_write_frac: Sourced) -> dict[Mode, Run]:
    """The proposed design, of an outcome with joules. pool_write_frac: of the missed slices that may enter the pool, what does.

    Raises ValueError without the nodes: operations and links depend on them.
    """
    need_nodes(p)
    joules = p.n_draft_steps * found.draft.joules + found.verify.joules + _written(p, found, profile, pool_write_frac)
    sd = Run(found.round_s, p.batch * (1.0 + p.accepted_len), joules)
    return {"ar": Run(found.ar.seconds, p.batch, found.ar.joules), "sd": sd}


def _written(p: Points, found: Outcome, profile: Profile, frac: Sourced) -> Joules:
    """Of entering the pool: at most MSB slices of the experts that verification misses."""
    joules, verify = nothing(len(p)), found.verify
    missed = (1.0 - np.minimum(1.0, 2.0 * verify.hit_frac)) * verify.expert_bytes * SLICE_FRAC
    written = np.where(p.is_elastic & p.is_sliced, missed, 0.0)
    ends = np.array([[getattr(frac, end)] for end in ENDS])
    for of in (of for of in p.groups if of.machine.roles.expert_cache):
        row = Rows(kind="weights", name="written into the pool", tier="expert_cache", bytes=written[of.at, None])
        entering = Work(n_steps=written[of.at].size, n_blocks=1, rows=(row,))
        joules[:, :, of.at] = ends * parts_of(clock(entering, of.machine, profile), of.machine)
    return joules


def need_nodes(p: Points) -> None:
    """Raises ValueError for points that leave operations out."""
    if not np.all(p.verify_nodes > 0.0):
        raise ValueError("the paper gives no number of verified nodes: give compute, with verify_nodes and draft_nodes")


def _rates(machine: HardwareSpec, rows: Rows, profile: Profile) -> Rates:
    lane = profile.lane_of(rows)
    if lane is None:
        raise ValueError(f"cost profile {profile.name} does not count rows of kind {rows.kind}")
    return rates_of(machine, rows, lane, "value")


def s_per_byte(machine: HardwareSpec, rows: Rows, profile: Profile) -> float:
    """Nominal, of what such rows move. Raises ValueError where the profile does not count them."""
    return _rates(machine, rows, profile).s_per_byte


def knee(machine: HardwareSpec, tier: str, profile: Profile) -> float:
    """Operations per byte at which the roofline of experts from the tier of this role bends."""
    rates = _rates(machine, Rows(kind="expert", tier=tier, engine="main"), profile)
    return rates.s_per_byte / rates.s_per_op


def tokens_until_link_binds(g: Geometry, machine: HardwareSpec, profile: Profile) -> int:
    """Most tokens in one expert whose partial sums still cross a link while the expert's LSB slice comes from EXT (section 7)."""
    fetch_s = g.expert_params * LSB_BYTES_PER_PARAM * s_per_byte(machine, Rows(kind="expert", tier="expert_home"), profile)
    link = Rows(kind="feed", tier="expert_cache", target="expert_cache")
    return int(fetch_s / (partial_sum_bytes(g) * s_per_byte(machine, link, profile)))


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
        heads = [_placed(head, p.head_read_bytes[at, None], option) for option in options]
        head_s, head_j = _fastest(of, heads, profile)
        d, (ar, verify) = p.n_draft_steps[at], (slice(0, at.size), slice(at.size, None))
        seconds["ar"][at], seconds["sd"][at] = steps_s[ar], steps_s[verify] + d * head_s
        joules["ar"][:, :, at] = steps_j[:, :, ar]
        joules["sd"][:, :, at] = steps_j[:, :, verify] + d * head_j
    tokens = {"ar": p.batch, "sd": p.batch * (1.0 + p.accepted_len)}
    return {mode: Run(seconds[mode], tokens[mode], joules[mode]) for mode in ("ar", "sd")}


def _options(of: Group, p: Points, holds: Holds) -> list[Places]:
    """All to the xPU; experts where they lie."""
    machine, one = of.machine, np.ones((2 * of.at.size, 1))
    near = machine.engines.get(machine.roles.near_compute)
    if near is None or near.memory == machine.roles.expert_home:
        brought = Places(experts=((HOME, "main", one, ""),))
        return [brought, Places(experts=((HOME, "near_compute", one, ""),))] if near else [brought]
    channels, ext = (machine.tiers[name] for name in (near.memory, machine.roles.expert_home))
    frac = channels.peak_bytes_per_s.value / (channels.peak_bytes_per_s.value + ext.peak_bytes_per_s.value)
    brought = Places(experts=((HOME, "main", (1.0 - frac) * one, ""), (NEAR, "main", frac * one, "")), beside_frac=frac)
    hit_frac = _hits(p, channels.capacity_bytes.value, holds)[:, of.at].reshape(-1, 1)
    experts = ((NEAR, "near_compute", hit_frac, ""), (HOME, "main", 1.0 - hit_frac, ""))
    return [brought, Places(experts=experts, static=(NEAR, "near_compute") if holds == "dense" else (HOME, "main"))]


def _hits(p: Points, near_bytes: float, holds: Holds) -> Floats:
    """(2, n) hit rates of the near channels in AR and in verification."""
    needed = p.static_bytes + p.kv_bytes + p.embedding_bytes if holds == "dense" else 0.0
    share = np.clip((near_bytes - needed) / (p.expert_bytes * p.n_experts * p.n_layers), 0.0, 1.0)
    return np.stack([hits(p, share, p.beta, p.batch), hits(p, share, faded(p), p.verify_tokens * p.batch**p.growth)])


def _placed(work: Work, static_bytes: Floats, places: Places) -> Work:
    """The static rows where they are read."""
    (tier, engine), frac = places.static, places.beside_frac
    beside = Rows(kind="weights", name="interleaved", tier=NEAR, bytes=frac * static_bytes) if frac else None
    return divided(work, 1.0 - frac, beside, tier=tier, engine=engine)


def _fastest(of: Group, options: Sequence[Work], profile: Profile) -> tuple[Floats, Joules]:
    """Seconds and joules of the fastest, step by step."""
    seconds = np.stack([clock(work, of.machine, profile, ends=NOMINAL).seconds.value for work in options])
    best, joules = np.argmin(seconds, axis=0), nothing(seconds.shape[1])
    for i in np.unique(best):
        joules += np.where(best == i, parts_of(clock(options[i], of.machine, profile), of.machine), 0.0)
    return seconds.min(axis=0), joules
