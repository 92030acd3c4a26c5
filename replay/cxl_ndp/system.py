"""The systems that are compared, on which machine, by which cost profile, and for which model; what lies on the GPU and in the
experts' home, and whether it fits. A model that does not is warned about, never refused.

Weights are FP16 and KV 16 bit, as the paper has them, whatever format a model ships in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from tokentape.hw.calibrate import Fit
from tokentape.hw.held import without_cache
from tokentape.hw.profile import Lane, Profile
from tokentape.hw.rates import Rates, rates_of
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Rows
from tokentape.policies.names import unknown
from tokentape.policies.placement import PLACEMENTS, ReactivePlacement
from tokentape.policies.placement.reactive import Never
from tokentape.replay.passes import fits_of
from tokentape.replay.tokens import Blocks, blocks_of
from tokentape.replay.transformer import ACTIVATION
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes, parameters

FP16_BITS, FP16_BYTES = 16, 2
REPLICA_BITS = (1, 2, 3, 4)  # held in the NDP's memory beside FP16
MONDE, HOBBIT, OURS = "MoNDE", "HOBBIT", "OURS"
BALANCE = "balance"  # MoNDE's own sharing out of hot and cold experts (policies/placement/reactive.py)
NEAR, IN_PLACE, FETCHED = "near", "in place", "fetched"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every setting of a model has in common. context_tokens: what a decode attends to; hobbit_bits: width that HOBBIT
    fetches misses at, that of its less important experts; ema_beta: of MoNDE ema's average. Raises ValueError for a dense model
    and for a tape that records no widths."""

    machine: HardwareSpec
    profile: Profile
    name: str
    geometry: Geometry
    context_tokens: int = 768
    hobbit_bits: float = 4.0
    ema_beta: float = 0.9

    def __post_init__(self) -> None:
        g = self.geometry
        if not g.moe_layers or not g.expert_params or not g.hidden:
            raise ValueError(f"{self.name}: needs experts of known width; give a mixture of experts with its config.json")
        if not 0 < self.hobbit_bits <= FP16_BITS:
            raise ValueError(f"HOBBIT fetches at {self.hobbit_bits:g} bits; give more than 0 and at most {FP16_BITS}")

    @property
    def expert_bytes(self) -> int:
        return FP16_BYTES * self.geometry.expert_params

    @property
    def activation_bytes(self) -> int:
        """To and from the NDP, of a token on one expert."""
        return 2 * FP16_BYTES * self.geometry.moe_hidden

    @cached_property
    def blocks(self) -> Blocks:
        """Every layer by itself, and the output head."""
        return blocks_of(self.geometry, by_layer=True)

    @cached_property
    def fits(self) -> Mapping[str, Fit]:
        """The machine's fitted operators, for profiles that take them."""
        return fits_of(self.machine, ACTIVATION)

    @property
    def has_near(self) -> bool:
        """An engine computes in the memory that the experts lie in."""
        near, engines = self.machine.roles.near_compute, self.machine.engines
        return bool(near) and (engines[near].memory or self.machine.fast) == self.machine.roles.expert_home

    def elsewhere(self, system: System) -> str:
        """How experts that are not on the GPU compute: NEAR, IN_PLACE by the main engine from their home, or once FETCHED."""
        roles = self.machine.roles
        if not roles.expert_cache:
            return NEAR if self.has_near and not system.fetches else IN_PLACE
        if system.fetches or not (self.has_near or roles.expert_home in roles.reads):
            return FETCHED
        return NEAR if self.has_near else IN_PLACE

    def decided(self, system: System) -> list[str]:
        """What of the system's decisions the machine cannot carry out, one sentence each."""
        roles, how = self.machine.roles, self.elsewhere(system)
        found = without_cache(self.machine)
        if how != NEAR and not system.fetches:
            words = f"read in place from {roles.expert_home}" if how == IN_PLACE else "fetched, at their replicas' bits"
            found.append(f"{self.machine.name} computes nothing where the experts lie: those that are not cached are {words}")
        return found

    def rates(self, rows: Rows) -> Rates:
        """Of rows by themselves."""
        return rates_of(self.machine, rows, self.profile.lane_of(rows) or Lane(name="by themselves"), "value")


@dataclass(frozen=True)
class System:
    """What runs where. reactive: moves experts before a layer-step computes; Never where the placement stands.

    bits: mean width of the NDP's experts, 16 for FP16. fetches: experts that are not on the GPU cross the link at moved_bits in
    every layer-step and compute there; else they compute in the NDP. overlaps: the link works beside GPU and NDP, not before
    them. compute_scales: an NDP multiplier does 16 / bits as much.
    """

    name: str
    bits: float = FP16_BITS
    reactive: ReactivePlacement = Never()  # noqa: RUF009 - frozen
    starts_placed: bool = True
    fetches: bool = False
    moved_bits: float = FP16_BITS
    overlaps: bool = False
    compute_scales: bool = True


def system_of(name: str, made: Setup, **changed: bool) -> System:
    """OURS-3, OURS-2.5, OURS-16, MoNDE, MoNDE never (always, ema), HOBBIT; case does not matter. changed: flags of System.

    Raises ValueError naming the systems.
    """
    kind, _, rest = name.replace("-", " ", 1).partition(" ")
    if kind.lower() == OURS.lower() and rest.replace(".", "", 1).isdigit():
        return ours(float(rest), **changed)
    if kind.lower() == MONDE.lower():
        return monde(made, rest or BALANCE, **changed)
    if name.lower() == HOBBIT.lower():
        return System(name=HOBBIT, fetches=True, moved_bits=made.hobbit_bits, **changed)  # type: ignore[arg-type]
    raise ValueError(f"unknown system {name!r}; known: OURS-BITS such as OURS-3, MoNDE, MoNDE never, always or ema, HOBBIT")


def decisions(name: str) -> dict[str, str]:
    """What a system decides: OURS places by the prompts and splits its bits, MoNDE migrates, HOBBIT fetches what it misses."""
    kind, _, rest = name.replace("-", " ", 1).partition(" ")
    if kind == OURS:
        width = {} if float(rest) == FP16_BITS else {"precision": f"prefix_split mean_bits={rest}"}
        return {"place": "prefill_guided", **width}
    return {"residency": "fetch on miss"} if name == HOBBIT else {"place": rest or BALANCE}


def ours(bits: float, **changed: bool) -> System:
    """Placed once after prefill; experts of `bits` on average in the NDP. Raises ValueError outside 1 to 4 and 16."""
    if not (1 <= bits <= max(REPLICA_BITS) or bits == FP16_BITS):
        raise ValueError(
            f"{bits:g} bits on average: replicas have {REPLICA_BITS[0]} to {REPLICA_BITS[-1]} bits, originals {FP16_BITS}"
        )
    return System(name=f"{OURS}-{bits:.12g}", bits=bits, **changed)  # type: ignore[arg-type]


def monde(made: Setup, policy: str = BALANCE, **changed: bool) -> System:
    """FP16 everywhere; experts move by `policy`: balance, as published, beside computing; ema, never, always."""
    kinds = {name: kind for name, kind in PLACEMENTS.items() if kind.kind == "reactive"}
    if policy not in kinds:
        raise unknown("migration", policy, kinds)
    parameters = {"ema": {"beta": made.ema_beta}, "balance": _reads(made) if policy == BALANCE else {}}.get(policy, {})
    reactive = kinds[policy](**parameters)
    name = MONDE if policy == BALANCE else f"{MONDE} {policy}"
    changed["overlaps"] = changed.get("overlaps", False) or policy == BALANCE  # what it weighs is link beside memory
    return System(name=name, reactive=reactive, starts_placed=reactive.starts_placed, **changed)  # type: ignore


def _reads(made: Setup) -> dict[str, float]:
    """An expert over the link, and a token's computation, in FP16 reads of one expert where it lies."""
    if not made.machine.roles.expert_cache:  # nothing can be moved
        return {"fetch_reads": float("inf"), "token_reads": 0.0}
    engine = "near_compute" if made.has_near else "main"
    there = made.rates(Rows(kind="expert", tier="expert_home", engine=engine))
    link = made.rates(Rows(kind="fetch", tier="expert_home", target="expert_cache"))
    per_token = 2 * made.geometry.expert_params * there.s_per_op / (made.expert_bytes * there.s_per_byte)
    return {"fetch_reads": link.s_per_byte / there.s_per_byte, "token_reads": per_token}


def parts(made: Setup, hot_experts: int, batch: int) -> list[dict[str, Any]]:
    """Columns tier, part, placed_bytes and tier_bytes, what the tier holds; of the whole model, hot_experts per layer, which are
    no copies where no tier lies in front of their home."""
    g, roles, n_replicas = made.geometry, made.machine.roles, made.machine.data_parallel
    counted, n_moe = parameters(g), len(g.moe_layers)
    all_experts = n_moe * g.n_experts * made.expert_bytes
    others = FP16_BYTES * (counted.attention + counted.shared_ffn + counted.dense_ffn)
    hot_bytes = n_moe * hot_experts * made.expert_bytes if roles.expert_cache else 0
    listed = (
        (roles.expert_cache or roles.expert_home, "hot experts", hot_bytes),
        (roles.weights_home, "attention, shared and dense", n_replicas * others),
        (roles.weights_home, "embeddings", n_replicas * FP16_BYTES * g.vocab * g.hidden * (1 if g.is_tied else 2)),
        (roles.kv_home, "KV", batch * kv_bytes(g, made.context_tokens, "fp16", made.machine.tensor_parallel)),
        (roles.expert_home, "FP16 experts", all_experts),
        (roles.expert_home, "replicas", all_experts * sum(REPLICA_BITS) / FP16_BITS),
    )
    room = {name: tier.capacity_bytes.value * made.machine.n_devices for name, tier in made.machine.tiers.items()}
    columns = ("tier", "part", "placed_bytes", "tier_bytes")
    return [dict(zip(columns, (*of, room[of[0]]), strict=True)) for of in listed]


def notes(made: Setup, hot_experts: int, batch: int) -> list[str]:
    """What does not fit, in one sentence each; and whether the NDP is needed at all."""
    found, listed = [], pl.DataFrame(parts(made, hot_experts, batch))
    for (tier, room), mine in listed.group_by("tier", "tier_bytes", maintain_order=True):
        total = float(mine["placed_bytes"].sum())
        if total > room:
            placed = mine.select("part", "placed_bytes").iter_rows()
            said = ", ".join(f"{part} {n_bytes / 1e9:.1f}" for part, n_bytes in placed if n_bytes)
            found.append(f"{tier} holds {room / 1e9:.0f} GB, {total / 1e9:.1f} are wanted ({said})")
    hot, *others, experts, _ = listed.to_dicts()
    home = made.machine.roles.weights_home
    beside = sum(part["placed_bytes"] for part in others if part["tier"] == home)
    if hot["tier"] != experts["tier"] and hot["tier"] == home and beside + experts["placed_bytes"] <= hot["tier_bytes"]:
        found.append("all experts fit the GPU at FP16: this model needs no NDP")
    return found
