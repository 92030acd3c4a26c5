"""A step or a round of decoding of the proposed design as totals: seconds, tokens, joules by part (paper section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokentape.hw.clock import clock
from tokentape.hw.profile import ENDS, Profile
from tokentape.hw.rates import Rates, rates_of
from tokentape.hw.sourced import Sourced
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Rows
from tokentape.replay.elmoe3d.points import Floats, Points
from tokentape.replay.elmoe3d.timing import Joules, Outcome, nothing, parts_of, total
from tokentape.replay.elmoe3d.work import partial_sum_bytes, pool_writes
from tokentape.warehouse.geometry import Geometry

LSB_BYTES_PER_PARAM = 0.5  # without scales
Mode = Literal["ar", "sd"]


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
        return {part: joules / self.tokens for part, joules in self.joules.items()}


def ours(p: Points, found: Outcome, mode: Mode, profile: Profile, pool_write_frac: Sourced) -> Run:
    """The proposed design, of an outcome with joules. pool_write_frac: of the missed slices that may enter the pool, what does.

    Raises ValueError without the nodes: operations and links depend on them.
    """
    need_nodes(p)
    if mode == "ar":
        return Run(found.ar.seconds, p.batch, found.ar.joules)
    joules = total(
        (p.n_draft_steps, found.draft.joules), (1.0, found.verify.joules), (1.0, _written(p, found, profile, pool_write_frac))
    )
    return Run(found.round_s, p.batch * (1.0 + p.accepted_len), joules)


def written_bytes(p: Points, found: Outcome) -> Floats:
    """(n,) the most that may enter the pool in a round: MSB slices of the experts that verification misses."""
    verify = found.verify
    missed = (1.0 - np.minimum(1.0, 2.0 * verify.hit_frac)) * verify.expert_bytes * 0.5
    return np.where(p.is_elastic & p.is_sliced, missed, 0.0)


def _written(p: Points, found: Outcome, profile: Profile, frac: Sourced) -> Joules:
    joules, written = nothing(len(p)), written_bytes(p, found)
    ends = np.array([[getattr(frac, end)] for end in ENDS])
    for of in (of for of in p.groups if of.machine.roles.expert_cache):
        for part, values in parts_of(clock(pool_writes(written[of.at]), of.machine, profile), of.machine).items():
            joules[part][:, of.at] = ends * values
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
