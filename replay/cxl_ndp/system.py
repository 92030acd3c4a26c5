"""What the GPU-NDP cost model takes of a machine's file and of a model's geometry, and the systems that are compared on them.

Weights are FP16 and KV 16 bit, as the paper has them, whatever format a model ships in.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from tokentape.hw.cxl_ndp_knobs import Knobs
from tokentape.hw.sourced import BadSpec
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.names import unknown
from tokentape.policies.placement import PLACEMENTS, ReactivePlacement
from tokentape.policies.placement.reactive import Never
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes

FP16_BITS, FP16_BYTES = 16, 2
REPLICA_BITS = (1, 2, 3, 4)  # held in the NDP's memory beside FP16
MONDE, HOBBIT, OURS = "MoNDE", "HOBBIT", "OURS"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Rates per second. link: one direction, and the latency of one exchange of activations."""

    name: str
    gpu_ops_per_s: float
    hbm_bytes_per_s: float
    hbm_bytes: float
    ndp_ops_per_s: float
    ndp_bytes_per_s: float
    ndp_bytes: float
    link_bytes_per_s: float
    link_latency_s: float

    def on(self, **changed: float) -> Machine:
        """The same machine with other numbers. Raises ValueError for a number that it does not have."""
        known = [field.name for field in fields(Machine) if field.name != "name"]
        unknown = [name for name in changed if name not in known]
        if unknown:
            raise ValueError(f"the machine has no {unknown[0]}; its numbers: {', '.join(known)}")
        return replace(self, **changed)  # type: ignore[arg-type]

    def times(self, n: float) -> Machine:
        """With n NDP devices in place of one: capacity, bandwidth and operations; the link stays."""
        return self.on(**{name: n * getattr(self, name) for name in ("ndp_ops_per_s", "ndp_bytes_per_s", "ndp_bytes")})


def machine_of(spec: HardwareSpec) -> Machine:
    """Of a machine's file with an engine `ndp` that computes in the backing tier. Raises BadSpec.

    Peaks of GPU, HBM and link: their shares are knobs. The NDP's rates are its peaks x efficiency.
    """
    ndp, memory = spec.engines.get("ndp"), spec.tiers.get(spec.backing)
    link = spec.link(spec.backing, spec.fast)
    if ndp is None or memory is None or link is None or ndp.memory != spec.backing:
        raise BadSpec(
            f"{spec.name}: needs an engine `ndp` whose memory is the backing tier, and a link from there to the fast one"
        )
    if spec.dtype not in ndp.ops_per_s:
        raise BadSpec(f"{spec.name}: engines.ndp.ops_per_s.{spec.dtype} is missing")
    fast = spec.tiers[spec.fast]
    return Machine(
        name=spec.name,
        gpu_ops_per_s=spec.compute.ops_per_s[spec.dtype].value,
        hbm_bytes_per_s=fast.peak_bytes_per_s.value,
        hbm_bytes=fast.capacity_bytes.value,
        ndp_ops_per_s=ndp.ops_per_s[spec.dtype].value * ndp.efficiency_frac.value,
        ndp_bytes_per_s=memory.peak_bytes_per_s.value * memory.efficiency_frac.value,
        ndp_bytes=memory.capacity_bytes.value,
        link_bytes_per_s=link.peak_bytes_per_s.value,
        link_latency_s=link.latency_s.value,
    )


@dataclass(frozen=True)
class Shape:
    """Bytes and operations of one layer of a mixture of experts; bytes at FP16, operations per token (a multiply-add is two).

    Attention is the projections' weights; `shared` the shared experts, `dense` the FFN of a layer without experts.
    """

    name: str
    geometry: Geometry

    @property
    def n_layers(self) -> int:
        """With experts."""
        return len(self.geometry.moe_layers)

    @property
    def n_dense_layers(self) -> int:
        return self.geometry.n_layers - self.n_layers

    @property
    def n_experts(self) -> int:
        return self.geometry.n_experts

    @property
    def top_k(self) -> int:
        return self.geometry.top_k

    @property
    def expert_bytes(self) -> int:
        return FP16_BYTES * self.geometry.expert_params

    @property
    def expert_ops(self) -> int:
        return 2 * self.geometry.expert_params

    @property
    def attention_bytes(self) -> int:
        return FP16_BYTES * self.geometry.attention_params

    @property
    def shared_params(self) -> int:
        return self.geometry.ffn_matrices * self.geometry.hidden * self.geometry.shared_intermediate

    @property
    def dense_params(self) -> int:
        return self.geometry.ffn_matrices * self.geometry.hidden * self.geometry.dense_intermediate

    @property
    def activation_bytes(self) -> int:
        """To and from the NDP, of a token on one expert."""
        return 2 * FP16_BYTES * self.geometry.hidden

    def kv_bytes(self, context_tokens: int) -> float:
        """Cached by a sequence in a layer, the mean over layers where some have a window."""
        return kv_bytes(self.geometry, context_tokens, "fp16") / self.geometry.n_layers


def shape_of(name: str, geometry: Geometry) -> Shape:
    """Raises ValueError for a dense model and for a tape that records no widths."""
    if not geometry.moe_layers or not geometry.expert_params or not geometry.hidden:
        raise ValueError(f"{name}: needs experts of known width; give a mixture of experts with its config.json")
    return Shape(name, geometry)


@dataclass(frozen=True, kw_only=True)
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


def system_of(name: str, knobs: Knobs, shape: Shape, machine: Machine, **changed: bool) -> System:
    """OURS-3, OURS-2.5, OURS-16, MoNDE, MoNDE never (always, balance), HOBBIT; case does not matter. changed: flags of System.

    Raises ValueError naming the systems.
    """
    kind, _, rest = name.replace("-", " ", 1).partition(" ")
    if kind.lower() == OURS.lower() and rest.replace(".", "", 1).isdigit():
        return ours(float(rest), **changed)
    if kind.lower() == MONDE.lower():
        return monde(knobs, shape, machine, rest or "ema", **changed)
    if name.lower() == HOBBIT.lower():
        return hobbit(knobs, **changed)
    raise ValueError(f"unknown system {name!r}; known: OURS-BITS such as OURS-3, MoNDE, MoNDE never, always or balance, HOBBIT")


def decisions(name: str) -> dict[str, str]:
    """What a system decides: OURS places by the prompts and splits its bits, MoNDE migrates, HOBBIT fetches what it misses."""
    kind, _, rest = name.replace("-", " ", 1).partition(" ")
    if kind == OURS:
        width = {} if float(rest) == FP16_BITS else {"precision": f"prefix_split mean_bits={rest}"}
        return {"place": "prefill_guided", **width}
    return {"residency": "fetch on miss"} if name == HOBBIT else {"place": rest or "ema"}


def ours(bits: float, **changed: bool) -> System:
    """Placed once after prefill; experts of `bits` on average in the NDP. Raises ValueError outside 1 to 4 and 16."""
    if not (1 <= bits <= max(REPLICA_BITS) or bits == FP16_BITS):
        raise ValueError(
            f"{bits:g} bits on average: replicas have {REPLICA_BITS[0]} to {REPLICA_BITS[-1]} bits, originals {FP16_BITS}"
        )
    return System(name=f"{OURS}-{bits:g}", bits=bits, **changed)  # type: ignore[arg-type]


def monde(knobs: Knobs, shape: Shape, machine: Machine, policy: str = "ema", **changed: bool) -> System:
    """FP16 everywhere; experts migrate by `policy`: ema, never, always or balance, whose times are this machine's."""
    kinds = {name: kind for name, kind in PLACEMENTS.items() if kind.kind == "reactive"}
    if policy not in kinds:
        raise unknown("migration", policy, kinds)
    parameters = {}
    if policy == "ema":
        parameters = {"beta": knobs.ema_beta}
    elif policy == "balance":
        fetch = machine.ndp_bytes_per_s / (knobs.link_frac * machine.link_bytes_per_s)
        per_token = (shape.expert_ops / machine.ndp_ops_per_s) / (shape.expert_bytes / machine.ndp_bytes_per_s)
        parameters = {"fetch_reads": fetch, "token_reads": per_token}
    reactive = kinds[policy](**parameters)
    name = MONDE if policy == "ema" else f"{MONDE} {policy}"
    return System(name=name, reactive=reactive, starts_placed=reactive.starts_placed, **changed)  # type: ignore


def hobbit(knobs: Knobs, **changed: bool) -> System:
    """GPU only: what a step needs and does not find there is fetched at low precision."""
    return System(name=HOBBIT, fetches=True, moved_bits=knobs.hobbit_bits, **changed)  # type: ignore[arg-type]
