"""A step or a round of decoding as totals: seconds, tokens, bytes by where they come from, operations (paper section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokentape.replay.elmoe3d.points import Floats, Point, Points
from tokentape.replay.elmoe3d.shape import BYTES_PER_PARAM
from tokentape.replay.elmoe3d.timing import Outcome

LSB_BYTES_PER_PARAM = 0.5  # without scales
Mode = Literal["ar", "sd"]


@dataclass(frozen=True, eq=False)
class Run:
    """A step or a round of n points, (n,) each, for the whole batch. near_bytes: read inside or next to the EXT devices;
    link_bytes: partial sums between PEs; written_bytes: the most that may enter the pool, slices of missed experts."""

    seconds: Floats
    tokens: Floats
    hb_bytes: Floats
    ext_bytes: Floats
    near_bytes: Floats
    ops: Floats
    link_bytes: Floats
    written_bytes: Floats

    @property
    def token_s(self) -> Floats:
        return self.seconds / self.tokens


def ours(p: Points, found: Outcome, mode: Mode) -> Run:
    """The proposed design. Raises ValueError without the nodes: operations and links depend on them."""
    need_nodes(p)
    zero = np.zeros(len(p))
    tokens = p.batch if mode == "ar" else p.batch * p.verify_nodes
    moved = tokens * p.moved_bytes
    if mode == "ar":
        return Run(found.ar.seconds, p.batch, found.ar.hb_bytes, found.ar.ext_bytes, zero, target_ops(p, p.batch), moved, zero)
    d, verify, draft = p.n_draft_steps, found.verify, found.draft
    drafted = p.batch * p.draft_nodes
    is_self = p.is_quant | p.is_elastic
    missed = (1.0 - np.minimum(1.0, 2.0 * verify.hit_frac)) * verify.expert_bytes * 0.5
    return Run(
        seconds=found.round_s,
        tokens=p.batch * (1.0 + p.accepted_len),
        hb_bytes=d * draft.hb_bytes + verify.hb_bytes,
        ext_bytes=d * draft.ext_bytes + verify.ext_bytes,
        near_bytes=zero,
        ops=target_ops(p, tokens) + d * np.where(is_self, target_ops(p, drafted), 2.0 * drafted * draft_params(p)),
        link_bytes=moved + np.where(is_self, d * drafted * p.moved_bytes, 0.0),
        written_bytes=np.where(p.is_elastic & p.is_sliced, missed, 0.0),
    )


def draft_params(p: Points) -> Floats:
    """(n,) weights of the head or the small model."""
    return np.where(p.is_slm, p.slm_params, p.head_bytes / BYTES_PER_PARAM)


def target_ops(p: Points, tokens: Floats) -> Floats:
    """(n,) operations of so many tokens in the target, two per weight; attention over the context is not counted."""
    return 2.0 * tokens * (p.static_params + p.layer_params * p.n_layers)


def need_nodes(p: Points) -> None:
    """Raises ValueError for points that leave operations out."""
    if not np.all(p.verify_nodes > 0.0):
        raise ValueError("the paper gives no number of verified nodes: give compute, with verify_nodes and draft_nodes")


def tokens_until_link_binds(point: Point) -> int:
    """Most tokens in one expert whose partial sums still cross a link while the expert's LSB slice comes from EXT (section 7)."""
    shape, machine = point.shape, point.machine
    fetch_s = shape.expert_params * LSB_BYTES_PER_PARAM / machine.ext_bytes_per_s
    return int(fetch_s * machine.link_bytes_per_s / shape.partial_sum_bytes)
