"""What ELMoE-3D's formulas need of a model and of a machine, as numbers: bytes, counts, rates (paper Tables 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass

from tokentape.hw.spec import HardwareSpec
from tokentape.warehouse.formats import EXPERT_FORMATS, value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes_per_token, static_bytes

KV_FORMAT = "int8"
STATIC_FORMAT, DRAFT_FORMAT = "int8-g32", "int4"  # of the target and of its draft; formats of warehouse.formats
BYTES_PER_PARAM = EXPERT_FORMATS[STATIC_FORMAT]
DRAFT_FRAC = EXPERT_FORMATS[DRAFT_FORMAT] / BYTES_PER_PARAM  # bytes of a 4-bit copy over the INT8 original
PARTIAL_SUM_BYTES = 4  # FP32
SLICED_FORMATS = (STATIC_FORMAT,)  # whose experts split into an MSB and an LSB slice of equal size; MXFP4 is never sliced


@dataclass(frozen=True)
class Shape:
    """A model in bytes. static_bytes: everything but routed experts that a decode step reads; embedding_bytes: the input table,
    which only takes room. A layer counts where it has experts. Windows of the attention are ignored, as the paper's rows do.
    """

    name: str
    static_bytes: float
    embedding_bytes: float
    kv_bytes_per_token: float
    expert_bytes: float
    n_layers: int
    n_experts: int
    top_k: float
    is_sliced: bool
    static_params: float
    expert_params: float
    hidden: int
    intermediate: int

    @property
    def partial_sum_bytes(self) -> float:
        """Moved between PEs for one token in one expert: up and gate gathered, down reduced (paper section 5)."""
        return PARTIAL_SUM_BYTES * (2 * self.intermediate + self.hidden)

    @property
    def all_expert_bytes(self) -> float:
        return self.expert_bytes * self.n_experts * self.n_layers


def shape_of(name: str, geometry: Geometry, expert_format: str = STATIC_FORMAT) -> Shape:
    """A model with INT8 static weights and KV. Raises ValueError for a dense model or an unknown format."""
    if not geometry.moe_layers:
        raise ValueError(f"{name} has no experts; ELMoE-3D speculates on a mixture of experts")
    return Shape(
        name=name,
        static_bytes=static_bytes(geometry, STATIC_FORMAT),
        embedding_bytes=value_bytes(geometry.vocab * geometry.hidden, "fp16"),
        kv_bytes_per_token=kv_bytes_per_token(geometry, KV_FORMAT),
        expert_bytes=geometry.expert_bytes(expert_format)[0],
        n_layers=len(geometry.moe_layers),
        n_experts=geometry.n_experts,
        top_k=geometry.top_k,
        is_sliced=expert_format in SLICED_FORMATS,
        static_params=geometry.non_expert_params,
        expert_params=geometry.expert_params,
        hidden=geometry.hidden,
        intermediate=geometry.expert_intermediate,
    )


@dataclass(frozen=True)
class Drafter:
    """An independent small model. body_bytes at rest and table_bytes of its embedding, FP16; read_bytes a step reads."""

    body_bytes: float
    table_bytes: float
    read_bytes: float
    kv_bytes_per_token: float
    params: float

    @property
    def resident_bytes(self) -> float:
        return self.body_bytes + self.table_bytes


def drafter_of(geometry: Geometry) -> Drafter:
    """A dense model with INT8 weights; its output head is its input table, kept in FP16 and read as INT8."""
    table = geometry.vocab * geometry.hidden
    return Drafter(
        body_bytes=value_bytes(geometry.non_expert_params - table, STATIC_FORMAT),
        table_bytes=value_bytes(table, "fp16"),
        read_bytes=static_bytes(geometry, STATIC_FORMAT),
        kv_bytes_per_token=kv_bytes_per_token(geometry, KV_FORMAT),
        params=geometry.non_expert_params,
    )


@dataclass(frozen=True)
class Machine:
    """A machine of two tiers: HB, coupled to the PEs bank by bank, and EXT, which feeds any of them. Rates are effective ones;
    ops are peaks of all n_units (a multiply-add is two). Without HB (the xPU alone) hb_bytes is 0."""

    name: str
    hb_bytes: float
    hb_bytes_per_s: float
    ext_bytes_per_s: float
    n_units: int
    ops_per_s: float  # W8A8
    draft_ops_per_s: float  # W4A8
    link_bytes_per_s: float  # aggregation of partial sums

    @property
    def rate_frac(self) -> float:
        """EXT over HB."""
        return self.ext_bytes_per_s / self.hb_bytes_per_s

    def roofline(self, n_active: int, tier: str, is_draft: bool = False) -> tuple[float, float]:
        """(bytes/s, operations/s) with n_active PEs: HB brings only their own banks, EXT all its bandwidth.

        Raises ValueError unless 1 <= n_active <= n_units.
        """
        if not 1 <= n_active <= self.n_units:
            raise ValueError(f"n_active is {n_active}; {self.name} has 1 to {self.n_units} PEs")
        share = n_active / self.n_units
        ops = share * (self.draft_ops_per_s if is_draft else self.ops_per_s)
        return (share * self.hb_bytes_per_s if tier == "hb" else self.ext_bytes_per_s), ops


def machine_of(spec: HardwareSpec) -> Machine:
    """From a machine file with tiers `hb` and `ext`, an engine `xpu` and a link `aggregation`, as elmoe3d-8gb.toml has them.

    Raises ValueError naming what the file lacks.
    """
    for kind, held, name in (
        ("tiers", spec.tiers, "hb"),
        ("tiers", spec.tiers, "ext"),
        ("engines", spec.engines, "xpu"),
        ("links", spec.links, "aggregation"),
    ):
        if name not in held:
            raise ValueError(f"machine {spec.name}: {kind}.{name} is missing; base the file on elmoe3d-8gb")
    hb, ext, xpu = spec.tiers["hb"], spec.tiers["ext"], spec.engines["xpu"]
    if xpu.n_units is None or not {"int4", "int8"} <= set(xpu.ops_per_s):
        raise ValueError(f"machine {spec.name}: engines.xpu needs n_units and ops_per_s of int4 and int8")
    return Machine(
        name=spec.name,
        hb_bytes=hb.capacity_bytes.value,
        hb_bytes_per_s=hb.peak_bytes_per_s.value * hb.efficiency_frac.value,
        ext_bytes_per_s=ext.peak_bytes_per_s.value * ext.efficiency_frac.value,
        n_units=int(xpu.n_units.value),
        ops_per_s=xpu.ops_per_s["int8"].value,
        draft_ops_per_s=xpu.ops_per_s["int4"].value,
        link_bytes_per_s=spec.links["aggregation"].peak_bytes_per_s.value,
    )
