"""The work of ELMoE-3D's passes as rows: static weights, keys and values, experts, drafts, each where its decisions have them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokentape.hw.held import without_cache
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Ints, Rows, Work
from tokentape.replay.elmoe3d.points import HEAD_FORMAT, KV_FORMAT, STATIC_FORMAT, Group, Points
from tokentape.replay.tokens import Tokens, blocks_of
from tokentape.replay.transformer import experts_of, steps_of
from tokentape.warehouse.formats import bytes_per_value
from tokentape.warehouse.geometry import Geometry

PARTIAL_SUM_BYTES = 4  # FP32
STATIC_KINDS = ("proj", "router", "shared", "dense_ffn", "head", "kv_read", "draft")  # kinds of what lies beside the experts
# Of experts: role of their tier, role of the engine that computes them, share of their bytes (n,), and how its units share them.
Place = tuple[str, str, Floats, str]


@dataclass(frozen=True, eq=False)
class Reads:
    """What a pass of n points reads, (n,) each. experts: expected distinct ones of a layer; expert_bytes: of them all, over all
    layers; hit_frac: share of those that HB brings; lsb_frac: that EXT brings of the same experts; shared_frac: share of the
    tokens' choices that fall on experts in HB; static_bytes: all else; cold_bytes: of that, from EXT; nodes: tokens computed per
    request."""

    experts: Floats
    expert_bytes: Floats
    hit_frac: Floats
    lsb_frac: Floats
    shared_frac: Floats
    static_bytes: Floats
    cold_bytes: Floats
    nodes: Floats

    @property
    def hb_bytes(self) -> Floats:
        return self.static_bytes - self.cold_bytes + self.hit_frac * self.expert_bytes

    @property
    def ext_bytes(self) -> Floats:
        return self.cold_bytes + (1.0 - self.hit_frac) * self.expert_bytes


def alone(machine: HardwareSpec) -> HardwareSpec:
    """The same engines with everything at the experts' home: the reference, which the paper calls the xPU."""
    home = machine.roles.expert_home
    roles = replace(machine.roles, weights_home=home, kv_home=home, draft_home=home, expert_cache="", kv_cache="")
    return machine if roles == machine.roles else replace(machine, roles=roles)


def stacked(passes: Sequence[Reads], name: str, at: Ints) -> Floats:
    """(passes x points, 1): one pass after the other."""
    return np.concatenate([getattr(reads, name)[at] for reads in passes])[:, None]


def static_work(
    of: Group, p: Points, passes: Sequence[Reads], weight_format: str = STATIC_FORMAT, phase: str = "decode", home: str = ""
) -> Work:
    """Steps of the passes, one after the other, without routed experts. home: role of the tier of the weights, in place of the
    target's."""
    n, at = len(passes), of.at
    tokens = Tokens(
        decodes=np.tile(p.batch[at], n), context=np.tile(p.context_tokens[at], n), nodes=stacked(passes, "nodes", at)[:, 0]
    )
    work = steps_of(of.geometry, of.machine, tokens, (), blocks_of(of.geometry), weight_format, KV_FORMAT)
    if phase != "decode":
        homes = {"weights_home": home or "weights_home"}
        work = replace(work, rows=tuple(replace(row, phase=phase, tier=homes.get(row.tier, row.tier)) for row in work.rows))
    return _overflowing(work, of, stacked(passes, "static_bytes", at), stacked(passes, "cold_bytes", at))


def pass_work(of: Group, p: Points, passes: Sequence[Reads], weight_format: str = STATIC_FORMAT, phase: str = "decode") -> Work:
    """Steps of the passes with their experts, as the design has them."""
    work = static_work(of, p, passes, weight_format, phase)
    return replace(work, rows=(*work.rows, *routed_rows(of, p, passes, phase), *partial_sums(of, p, passes)))


def head_work(of: Group, p: Points, drafts: Reads, phase: str = "draft") -> Work:
    """A draft step of EAGLE's head."""
    n_bytes, cold_bytes = p.head_read_bytes[of.at, None], drafts.cold_bytes[of.at, None]
    ops = 2.0 * (p.batch * drafts.nodes)[of.at, None] * n_bytes / bytes_per_value(HEAD_FORMAT)
    row = Rows(kind="draft", name="head", tier="draft_home", engine="main", phase=phase, bytes=n_bytes, ops=ops, count=1.0)
    return _overflowing(Work(n_steps=of.at.size, n_blocks=1, rows=(row,)), of, n_bytes, cold_bytes)


def _overflowing(work: Work, of: Group, static_bytes: Floats, cold_bytes: Floats) -> Work:
    """With so many of the static bytes, (S, 1) both, read from the experts' home."""
    if not of.machine.roles.expert_cache or not cold_bytes.any():
        return work
    cold = Rows(kind="proj", name="what HB has no room for", tier="expert_home", phase=work.rows[0].phase, bytes=cold_bytes)
    return divided(work, 1.0 - cold_bytes / static_bytes, cold)


def divided(work: Work, kept: Floats | float, rest: Rows | None, **where: Any) -> Work:
    """With so much of the static rows' bytes, read where it is told; rest: what is read besides, in the last block."""
    rows = [replace(row, bytes=row.bytes * kept, **where) if row.kind in STATIC_KINDS else row for row in work.rows]
    if rest is not None:
        rows.append(replace(rest, engine="main", blocks=np.array([work.n_blocks - 1])))
    return replace(work, rows=tuple(rows))


def expert_rows(of: Group, p: Points, passes: Sequence[Reads], places: Sequence[Place], phase: str = "decode") -> Iterator[Rows]:
    """Routed experts of the same steps; places: shares are (steps, 1)."""
    experts, nodes = stacked(passes, "experts", of.at), stacked(passes, "nodes", of.at)
    weights = stacked(passes, "expert_bytes", of.at) / len(of.geometry.moe_layers)
    n_tokens = np.tile(p.batch[of.at], len(passes))[:, None] * nodes
    chosen = n_tokens * of.geometry.top_k
    (whole,) = experts_of(of.geometry, of.machine, blocks_of(of.geometry), n_tokens, experts, chosen, weights)
    for tier, engine, share, how in places:
        if share.any():
            part = {name: share * getattr(whole, name) for name in ("bytes", "activation_bytes", "ops")}
            name = f"{whole.name}, {how}" if how else whole.name
            yield replace(whole, name=name, tier=tier, engine=engine, phase=phase, count=1.0 * (share > 0.0), **part)


def routed_rows(of: Group, p: Points, passes: Sequence[Reads], phase: str = "decode") -> tuple[Rows, ...]:
    """Experts of the proposed design (paper section 5): what HB holds, each expert by all units, one after the other (tensor
    parallel); at the same time what EXT brings, LSB slices and missed experts, each by one unit (data parallel). Misses are
    fetched first where the engine does not read in place."""
    roles, hits, low = of.machine.roles, *(stacked(passes, name, of.at) for name in ("hit_frac", "lsb_frac"))
    if roles.expert_cache and roles.expert_home in roles.reads:
        apart = ((low, "LSB slices, data parallel"), (1.0 - hits - low, "data parallel"))
        places = [("expert_cache", "main", hits, "tensor parallel"), *(("expert_home", "main", *of_ext) for of_ext in apart)]
        return tuple(expert_rows(of, p, passes, places, phase))
    tier = "expert_cache" if roles.expert_cache else "expert_home"
    found = tuple(expert_rows(of, p, passes, [(tier, "main", np.ones_like(hits), "")], phase))
    if not roles.expert_cache or np.all(hits == 1.0):
        return found
    touched, n_bytes = (stacked(passes, name, of.at) for name in ("experts", "expert_bytes"))
    missed: dict[str, Any] = {"blocks": blocks_of(of.geometry).moe, "count": 1.0 - hits**touched}  # at once, where any is
    missed["bytes"] = (1.0 - hits) * n_bytes / len(of.geometry.moe_layers)
    return (Rows(kind="fetch", name="fetch missing experts", tier="expert_home", target=tier, phase=phase, **missed), *found)


def partial_sums(of: Group, p: Points, passes: Sequence[Reads]) -> Iterator[Rows]:
    """Between the units that share an expert in HB: up and gate gathered, down reduced (paper section 5)."""
    cache = of.machine.roles.expert_cache
    if cache and of.machine.link(cache, cache):
        n_tokens = np.tile(p.batch[of.at], len(passes))[:, None] * stacked(passes, "nodes", of.at)
        n_tokens = n_tokens * stacked(passes, "shared_frac", of.at)
        yield Rows(
            kind="feed",
            name="partial sums",
            tier="expert_cache",
            target="expert_cache",
            blocks=blocks_of(of.geometry).moe,
            bytes=n_tokens * of.geometry.top_k * partial_sum_bytes(of.geometry),
        )


def partial_sum_bytes(geometry: Geometry) -> float:
    """Of one token in one expert."""
    return PARTIAL_SUM_BYTES * (2 * geometry.expert_intermediate + geometry.moe_hidden)


def findings(machine: HardwareSpec) -> list[str]:
    """Decisions of the design that the machine cannot carry out, and what stands for them; one sentence each."""
    roles = machine.roles
    if not roles.expert_cache or roles.expert_home in roles.reads:
        return without_cache(machine)
    return [
        f"{machine.name} does not compute from {roles.expert_home} in place: what misses is fetched into {roles.expert_cache}"
    ]
