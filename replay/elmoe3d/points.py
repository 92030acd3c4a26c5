"""A point of ELMoE-3D's space, and many of them as arrays: a model on a machine under a scheme, at a batch and a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation
from tokentape.hw.spec import HardwareSpec, MemTier
from tokentape.replay.elmoe3d.acceptance import FORMS
from tokentape.replay.elmoe3d.hits import HIT_LAWS
from tokentape.replay.elmoe3d.unions import weights_of
from tokentape.warehouse.formats import EXPERT_FORMATS, value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_layer_bytes_per_token, static_bytes

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]
EAGLE, SLM, QUANT, ELASTIC = SCHEMES = ("EAGLE3", "SLM-SD", "Quant-SD", "Elastic-SD")
CONTEXT_TOKENS = 1024  # of a sequence, in every row of the paper
KV_FORMAT, STATIC_FORMAT, DRAFT_FORMAT = "int8", "int8-g32", "int4"  # of keys and values, of the target and of its draft
BYTES_PER_PARAM = EXPERT_FORMATS[STATIC_FORMAT]
DRAFT_FRAC = EXPERT_FORMATS[DRAFT_FORMAT] / BYTES_PER_PARAM  # bytes of a 4-bit copy over the INT8 original
SLICED_FORMATS = (STATIC_FORMAT,)  # whose experts split into an MSB and an LSB slice of equal size; MXFP4 is never sliced


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Tokens that a step computes per request: nodes of the tree that are verified, and drafted in one step. The paper gives
    neither, so neither has a default."""

    verify_nodes: float
    draft_nodes: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point. Acceptance is `alpha`, which `accepted_form` turns into tokens, or a measured mean `accepted_len` per round
    without the bonus token. drafter: the small model of SLM-SD, dense. compute: None leaves operations of drafts and verification
    out, as the paper's table seems to. A layer counts where it has experts."""

    model: str
    geometry: Geometry
    machine: HardwareSpec
    law: ModelLaw
    speculation: Speculation
    scheme: str
    batch: float
    alpha: float | None = None
    accepted_len: float | None = None
    accepted_form: str = "linear"
    context_tokens: float = CONTEXT_TOKENS
    hit_model: str = "paper_law"
    drafter: Geometry | None = None
    compute: Compute | None = None
    expert_format: str = STATIC_FORMAT

    def __post_init__(self) -> None:
        for name, value, known in (
            ("scheme", self.scheme, SCHEMES),
            ("hit model", self.hit_model, HIT_LAWS),
            ("form of acceptance", self.accepted_form, FORMS),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is unknown; choose {', '.join(known)}")
        if not self.geometry.moe_layers:
            raise ValueError(f"{self.model} has no experts; ELMoE-3D speculates on a mixture of experts")
        if not 1.0 <= self.batch < float("inf"):
            raise ValueError(f"batch is {self.batch}; it must be at least 1")
        if not 1.0 <= self.context_tokens < float("inf"):
            raise ValueError(f"context_tokens is {self.context_tokens}; it must be at least 1")
        if self.scheme == SLM and self.drafter is None:
            raise ValueError(f"scheme {SLM} needs the small model as drafter")
        if self.scheme == EAGLE and not self.law.head_bytes:
            raise ValueError(f"scheme {EAGLE} needs the head's size; give head_bytes for {self.model}")

    @property
    def accepted(self) -> float:
        """Accepted tokens of a round. Raises ValueError where nothing says: an unknown acceptance is not 0."""
        if self.accepted_len is not None:
            if not 0.0 <= self.accepted_len < float("inf"):
                raise ValueError(f"accepted_len is {self.accepted_len}; it must be at least 0")
            return self.accepted_len
        if self.alpha is None:
            raise ValueError(
                f"{self.model}, {self.scheme}, batch {self.batch:g}: the acceptance is unknown; give alpha or accepted_len"
            )
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha is {self.alpha}; it must be between 0 and 1")
        of = FORMS[self.accepted_form]
        return float(of(np.array([self.alpha]), np.array([float(self.speculation.n_draft_steps)]))[0])


@dataclass(frozen=True, eq=False)
class Group:
    """Points of one model on one machine; at: their indices."""

    machine: HardwareSpec
    geometry: Geometry
    drafter: Geometry | None
    at: Ints


@dataclass(frozen=True, eq=False)
class Points:
    """n points as (n,) arrays named as in Point and its parts; weights: (n, N) of unions.py; hit_model: (n,) names.

    static_bytes: everything but routed experts that a decode step reads; embedding_bytes: the input table, which only takes room.
    hb_bytes: capacity of the experts' cache, infinite where the machine has none. verify_nodes, draft_nodes: 0 where operations
    are left out.
    """

    static_bytes: Floats
    embedding_bytes: Floats
    kv_bytes: Floats
    expert_bytes: Floats
    n_layers: Floats
    n_experts: Floats
    is_sliced: Flags
    hb_bytes: Floats
    is_eagle: Flags
    is_slm: Flags
    is_quant: Flags
    batch: Floats
    context_tokens: Floats
    beta: Floats
    head_bytes: Floats
    slm_bytes: Floats
    slm_read_bytes: Floats
    slm_kv_bytes: Floats
    verify_tokens: Floats
    draft_tokens: Floats
    growth: Floats
    fade: Floats
    n_draft_steps: Floats
    accepted_len: Floats
    verify_nodes: Floats
    draft_nodes: Floats
    weights: Floats
    hit_model: NDArray[np.str_]
    groups: tuple[Group, ...]

    @property
    def is_elastic(self) -> Flags:
        return ~(self.is_eagle | self.is_slm | self.is_quant)

    @property
    def is_self(self) -> Flags:
        """The model drafts for itself."""
        return self.is_quant | self.is_elastic

    def __len__(self) -> int:
        return len(self.batch)


def cache_of(machine: HardwareSpec) -> MemTier:
    """The tier in front of the experts' home; without one, that home."""
    return machine.tiers[machine.roles.expert_cache or machine.roles.expert_home]


@lru_cache
def _sizes(geometry: Geometry, expert_format: str) -> dict[str, float]:
    return {
        "static_bytes": static_bytes(geometry, STATIC_FORMAT),
        "embedding_bytes": value_bytes(geometry.vocab * geometry.hidden, "fp16"),
        "expert_bytes": geometry.expert_bytes(expert_format)[0],
        "n_layers": len(geometry.moe_layers),
        "n_experts": geometry.n_experts,
        "is_sliced": expert_format in SLICED_FORMATS,
    }


@lru_cache
def _drafter(geometry: Geometry | None) -> dict[str, float]:
    """At rest its output head is its input table, kept in FP16 and read as INT8."""
    if geometry is None:
        return {"slm_bytes": 0.0, "slm_read_bytes": 0.0}
    table = geometry.vocab * geometry.hidden
    body = value_bytes(geometry.non_expert_params - table, STATIC_FORMAT)
    return {"slm_bytes": body + value_bytes(table, "fp16"), "slm_read_bytes": static_bytes(geometry, STATIC_FORMAT)}


def as_points(points: Sequence[Point]) -> Points:
    """The points as arrays. Raises ValueError for none, and for a point whose acceptance is unknown."""
    if not points:
        raise ValueError("no points to evaluate")
    keys = [(id(p.machine), id(p.geometry), p.expert_format, id(p.drafter)) for p in points]
    firsts = dict(zip(keys, points, strict=True))  # one of each kind: their parts alone are read
    number = {key: i for i, key in enumerate(firsts)}
    kind = np.array([number[key] for key in keys])
    shared = [
        {
            **_sizes(p.geometry, p.expert_format),
            **_drafter(p.drafter),
            "hb_bytes": cache_of(p.machine).capacity_bytes.value * p.machine.n_devices
            if p.machine.roles.expert_cache
            else np.inf,
        }
        for p in firsts.values()
    ]
    columns: dict[str, Any] = {
        name: np.array([of[name] for of in shared], bool if name.startswith("is_") else np.float64)[kind] for name in shared[0]
    }
    own = {
        "batch": [p.batch for p in points],
        "context_tokens": [p.context_tokens for p in points],
        "accepted_len": [p.accepted for p in points],
        "verify_nodes": [p.compute.verify_nodes if p.compute else 0.0 for p in points],
        "draft_nodes": [p.compute.draft_nodes if p.compute else 0.0 for p in points],
        **{name: [getattr(p.law, name) for p in points] for name in ("beta", "head_bytes")},
        **{field.name: [getattr(p.speculation, field.name) for p in points] for field in fields(Speculation)},
    }
    columns |= {name: np.array(values, np.float64) for name, values in own.items()}
    scheme = np.array([p.scheme for p in points])
    columns |= {"is_eagle": scheme == EAGLE, "is_slm": scheme == SLM, "is_quant": scheme == QUANT}
    for name, of in (("kv_bytes", [p.geometry for p in firsts.values()]), ("slm_kv_bytes", [p.drafter for p in firsts.values()])):
        columns[name] = columns["batch"] * _kv_bytes(of, kind, columns["context_tokens"])
    columns["weights"] = weights_of([(p.geometry.n_experts, p.geometry.top_k, p.law.exponent) for p in points])
    columns["hit_model"] = np.array([p.hit_model for p in points])
    return Points(**columns, groups=_groups(list(firsts.values()), kind))


def _kv_bytes(geometries: Sequence[Geometry | None], kind: Ints, context_tokens: Floats) -> Floats:
    """(n,) of a sequence; a layer with a window keeps no more than the window."""
    found = np.zeros(kind.size)
    for i, of in enumerate(geometries):
        if of is not None:
            chosen = kind == i
            windows, times = np.unique(of.sliding_windows or (0,) * of.n_layers, return_counts=True)
            held = np.minimum(context_tokens[chosen, None], np.where(windows > 0, windows, np.inf))
            found[chosen] = (held * times).sum(axis=1) * kv_layer_bytes_per_token(of, KV_FORMAT)
    return found


def _groups(kinds: Sequence[Point], kind: Ints) -> tuple[Group, ...]:
    """Machines that differ in the capacity of the experts' cache alone are one: a column has that, and it costs nothing."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for i, p in enumerate(kinds):
        capacity = f"tiers.{p.machine.roles.expert_cache}.capacity_bytes"
        told = [(key, of.value, of.low, of.high) for key, of in p.machine.numbers() if key != capacity]
        key = (repr((p.machine.roles, p.machine.n_devices, p.machine.dtype, told)), p.geometry, p.drafter)
        members.setdefault(key, []).append(i)
    return tuple(
        Group(kinds[of[0]].machine, kinds[of[0]].geometry, kinds[of[0]].drafter, np.flatnonzero(np.isin(kind, of)))
        for of in members.values()
    )
