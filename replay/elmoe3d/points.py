"""A point of ELMoE-3D's space, and many of them as arrays: a model on a machine under a scheme, at a batch and a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation
from tokentape.replay.elmoe3d.acceptance import FORMS
from tokentape.replay.elmoe3d.hits import HIT_LAWS
from tokentape.replay.elmoe3d.shape import Drafter, Machine, Shape
from tokentape.replay.elmoe3d.unions import weights_of

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
EAGLE, SLM, QUANT, ELASTIC = SCHEMES = ("EAGLE3", "SLM-SD", "Quant-SD", "Elastic-SD")
CONTEXT_TOKENS = 1024  # of a sequence, in every row of the paper


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Tokens that a step computes per request: nodes of the tree that are verified, and drafted in one step. The paper gives
    neither, so neither has a default."""

    verify_nodes: float
    draft_nodes: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point. Acceptance is `alpha`, which `accepted_form` turns into tokens, or a measured mean `accepted_len` per round
    without the bonus token. compute: None leaves operations out, as the paper's table seems to."""

    shape: Shape
    machine: Machine
    law: ModelLaw
    speculation: Speculation
    scheme: str
    batch: float
    alpha: float | None = None
    accepted_len: float | None = None
    accepted_form: str = "linear"
    context_tokens: float = CONTEXT_TOKENS
    hit_model: str = "paper_law"
    drafter: Drafter | None = None
    compute: Compute | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("scheme", self.scheme, SCHEMES),
            ("hit model", self.hit_model, HIT_LAWS),
            ("form of acceptance", self.accepted_form, FORMS),
        ):
            if value not in known:
                raise ValueError(f"{name} {value!r} is unknown; choose {', '.join(known)}")
        if not 1.0 <= self.batch < float("inf"):
            raise ValueError(f"batch is {self.batch}; it must be at least 1")
        if not 1.0 <= self.context_tokens < float("inf"):
            raise ValueError(f"context_tokens is {self.context_tokens}; it must be at least 1")
        if self.scheme == SLM and self.drafter is None:
            raise ValueError(f"scheme {SLM} needs the small model as drafter")
        if self.scheme == EAGLE and not self.law.head_bytes:
            raise ValueError(f"scheme {EAGLE} needs the head's size; give head_bytes for {self.shape.name}")

    @property
    def accepted(self) -> float:
        """Accepted tokens of a round. Raises ValueError where nothing says: an unknown acceptance is not 0."""
        if self.accepted_len is not None:
            if not 0.0 <= self.accepted_len < float("inf"):
                raise ValueError(f"accepted_len is {self.accepted_len}; it must be at least 0")
            return self.accepted_len
        if self.alpha is None:
            raise ValueError(
                f"{self.shape.name}, {self.scheme}, batch {self.batch:g}: the acceptance is unknown; give alpha or accepted_len"
            )
        if not 0.0 <= self.alpha <= 1.0:
            raise ValueError(f"alpha is {self.alpha}; it must be between 0 and 1")
        of = FORMS[self.accepted_form]
        return float(of(np.array([self.alpha]), np.array([float(self.speculation.n_draft_steps)]))[0])


@dataclass(frozen=True, eq=False)
class Points:
    """n points as (n,) arrays named as in Point and its parts; weights: (n, N) of unions.py; hit_model: (n,) names.

    verify_nodes, draft_nodes: 0 where operations are left out.
    """

    static_bytes: Floats
    embedding_bytes: Floats
    kv_bytes: Floats
    expert_bytes: Floats
    n_layers: Floats
    n_experts: Floats
    is_sliced: Flags
    static_params: Floats
    layer_params: Floats  # of the experts of one token
    moved_bytes: Floats  # partial sums of one token, in all its experts
    hb_bytes: Floats
    hb_bytes_per_s: Floats
    ext_bytes_per_s: Floats
    ops_per_s: Floats
    draft_ops_per_s: Floats
    is_eagle: Flags
    is_slm: Flags
    is_quant: Flags
    batch: Floats
    beta: Floats
    head_bytes: Floats
    slm_bytes: Floats
    slm_read_bytes: Floats
    slm_kv_bytes: Floats
    slm_params: Floats
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

    @property
    def is_elastic(self) -> Flags:
        return ~(self.is_eagle | self.is_slm | self.is_quant)

    def __len__(self) -> int:
        return len(self.batch)


_NO_DRAFTER = Drafter(0.0, 0.0, 0.0, 0.0, 0.0)


def _row(p: Point) -> dict[str, float | bool]:
    shape, machine, spec, drafter = p.shape, p.machine, p.speculation, p.drafter or _NO_DRAFTER
    sequences = p.batch * p.context_tokens
    return {
        "static_bytes": shape.static_bytes,
        "embedding_bytes": shape.embedding_bytes,
        "kv_bytes": shape.kv_bytes_per_token * sequences,
        "expert_bytes": shape.expert_bytes,
        "n_layers": shape.n_layers,
        "n_experts": shape.n_experts,
        "is_sliced": shape.is_sliced,
        "static_params": shape.static_params,
        "layer_params": shape.top_k * shape.expert_params,
        "moved_bytes": shape.n_layers * shape.top_k * shape.partial_sum_bytes,
        "hb_bytes": machine.hb_bytes,
        "hb_bytes_per_s": machine.hb_bytes_per_s,
        "ext_bytes_per_s": machine.ext_bytes_per_s,
        "ops_per_s": machine.ops_per_s,
        "draft_ops_per_s": machine.draft_ops_per_s,
        "is_eagle": p.scheme == EAGLE,
        "is_slm": p.scheme == SLM,
        "is_quant": p.scheme == QUANT,
        "batch": p.batch,
        "beta": p.law.beta,
        "head_bytes": p.law.head_bytes,
        "slm_bytes": drafter.resident_bytes,
        "slm_read_bytes": drafter.read_bytes,
        "slm_kv_bytes": drafter.kv_bytes_per_token * sequences,
        "slm_params": drafter.params,
        "verify_tokens": spec.verify_tokens,
        "draft_tokens": spec.draft_tokens,
        "growth": spec.growth,
        "fade": spec.fade,
        "n_draft_steps": spec.n_draft_steps,
        "accepted_len": p.accepted,
        "verify_nodes": p.compute.verify_nodes if p.compute else 0.0,
        "draft_nodes": p.compute.draft_nodes if p.compute else 0.0,
    }


def as_points(points: Sequence[Point]) -> Points:
    """The points as arrays. Raises ValueError for none, and for a point whose acceptance is unknown."""
    if not points:
        raise ValueError("no points to evaluate")
    rows = [_row(p) for p in points]
    columns = {name: np.array([row[name] for row in rows], bool if name.startswith("is_") else np.float64) for name in rows[0]}
    weights = weights_of([(p.shape.n_experts, p.shape.top_k, p.law.exponent) for p in points])
    assert set(columns) == {field.name for field in fields(Points)} - {"weights", "hit_model"}, "a column was lost"
    return Points(**columns, weights=weights, hit_model=np.array([p.hit_model for p in points]))
