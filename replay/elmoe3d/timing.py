"""An AR step, a draft step and a verification, for many points at once (paper sections 4 and 6, the forms ours): what they read
where, and what that costs on the machine under a cost profile.

The reference is the same engine with everything in EXT. Nothing overlaps a draft with a verification. The paper gives read
energies of HB and EXT alone: operations, links and static power have ranges, and low and high take all of them together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.hw.clock import BACKGROUND, StepCost, clock
from tokentape.hw.profile import ENDS, Profile
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Work
from tokentape.replay.elmoe3d.laws import HIT_LAWS, chosen_frac, touched
from tokentape.replay.elmoe3d.mapping import Mapping, map_bytes
from tokentape.replay.elmoe3d.points import DRAFT_FORMAT, DRAFT_FRAC, SLICE_FRAC, Flags, Group, Points
from tokentape.replay.elmoe3d.work import Reads, alone, head_work, pass_work, static_work

PAPER = "elmoe3d"  # the cost profile, and the paper among the claims
NOMINAL = ("value",)
PARTS = ("compute", "ext", "hb", "links", "static")
Joules = Floats  # (parts, ends, n), of PARTS at ENDS


@dataclass(frozen=True, eq=False)
class Pass(Reads):
    """A pass over the model: what it reads, its seconds (n,) and, where they are asked for, joules."""

    seconds: Floats
    joules: Joules


@dataclass(frozen=True, eq=False)
class Outcome:
    """n points, (n,) each. xpu_s: an AR step with everything in EXT; phi_ar, phi_sd: tokens per second over the xPU's."""

    mapping: Mapping
    ar: Pass
    draft: Pass
    verify: Pass
    xpu_s: Floats
    accepted_len: Floats
    round_s: Floats
    phi_ar: Floats
    phi_sd: Floats

    @property
    def is_sd_better(self) -> Flags:
        """Speculation pays; ties go to AR."""
        return np.asarray(self.phi_sd > self.phi_ar)


def evaluate(
    p: Points, profile: str | Profile = PAPER, with_joules: bool = False, reads: dict[str, Reads] | None = None
) -> Outcome:
    """Every point. reads: of the passes by name, where they are counted (events.py) and no law's."""
    costs = profiles.load(profile) if isinstance(profile, str) else profile
    mapped = map_bytes(p)
    reads = reads_of(p, mapped) if reads is None else reads
    seconds = {name: np.zeros(len(p)) for name in (*reads, "xpu")}
    joules = {name: nothing(len(p)) for name in seconds}
    for names, of, work in (one for group in p.groups for one in _works(group, p, reads)):
        cost = clock(work, of.machine, costs, ends=ENDS if with_joules else NOMINAL)
        parts = parts_of(cost, of.machine) if with_joules else nothing(work.n_steps)
        each = (np.split(values, len(names), axis=-1) for values in (cost.seconds.value, parts))
        for name, step_s, step_j in zip(names, *each, strict=True):
            seconds[name][of.at], joules[name][:, :, of.at] = step_s, step_j
    found = {name: Pass(**vars(of), seconds=seconds[name], joules=joules[name]) for name, of in reads.items()}
    round_s = p.n_draft_steps * seconds["draft"] + seconds["verify"]
    return Outcome(
        mapping=mapped,
        **found,
        xpu_s=seconds["xpu"],
        accepted_len=p.accepted_len,
        round_s=round_s,
        phi_ar=seconds["xpu"] / seconds["ar"],
        phi_sd=(1.0 + p.accepted_len) * seconds["xpu"] / round_s,
    )


def _works(of: Group, p: Points, reads: dict[str, Reads]) -> Iterator[tuple[tuple[str, ...], Group, Work]]:
    """Of passes that cost alike their names, their points on their machine, and their steps' work, pass by pass."""
    passes, drafts, reference = [reads["ar"], reads["verify"]], [reads["draft"]], replace(of, machine=alone(of.machine))
    yield ("xpu",), reference, pass_work(reference, p, passes[:1])
    yield ("ar", "verify"), of, pass_work(of, p, passes)
    eagle, small, own = (replace(of, at=of.at[kind[of.at]]) for kind in (p.is_eagle, p.is_slm, p.is_self))
    if eagle.at.size:
        yield ("draft",), eagle, head_work(eagle, p, reads["draft"])
    if small.at.size and of.drafter is not None:
        yield ("draft",), small, static_work(replace(small, geometry=of.drafter), p, drafts, phase="draft", home="draft_home")
    if own.at.size:
        yield ("draft",), own, pass_work(own, p, drafts, DRAFT_FORMAT, "draft")


def reads_of(p: Points, mapped: Mapping) -> dict[str, Reads]:
    """Of the passes by name."""
    slices = p.is_elastic & p.is_sliced  # each hit brings its MSB half from HB, its LSB half from EXT
    n_verified = p.verify_tokens * p.batch**p.growth
    share = np.where(slices, mapped.slice_share, mapped.share)
    verify_hits = hits(p, share, faded(p), n_verified)
    return {
        "ar": _pass(p, mapped, p.batch, hits(p, mapped.share, p.beta, p.batch), mapped.share, np.ones(len(p))),
        "verify": _pass(p, mapped, n_verified, verify_hits, share, p.verify_nodes, slices),
        "draft": _draft(p, mapped),
    }


def _pass(
    p: Points, mapped: Mapping, n_tokens: Floats, found: Floats, share: Floats, nodes: Floats, slices: Flags | bool = False
) -> Reads:
    """A pass of the target, through the experts that n_tokens independent tokens touch. share: of the experts that lie in HB;
    found: of those touched, whole ones or, of `slices`, their MSB half."""
    experts = touched(p.weights, n_tokens)
    expert_bytes = experts * p.expert_bytes * p.n_layers
    low = np.where(slices, (1.0 - SLICE_FRAC) * found, 0.0)
    shared = chosen_frac(p.weights, share)
    return Reads(experts, expert_bytes, found - low, low, shared, p.static_bytes + p.kv_bytes, mapped.cold_bytes, nodes)


def faded(p: Points) -> Floats:
    """(n,) exponent of the hit law in verification and in the copy's drafts: at batch 1 as in AR, then growing towards 1."""
    return 1.0 - (1.0 - p.beta) * p.batch**-p.fade


def _draft(p: Points, mapped: Mapping) -> Reads:
    """One draft step, by scheme; experts, their bytes and hits are 0 where a small model or a head drafts."""
    n_tokens = p.draft_tokens * p.batch**p.growth
    touches = touched(p.weights, n_tokens)
    # Elastic: confined to its pool, twice as many slices as whole experts; everything is in HB.
    pool = np.where(p.is_sliced, mapped.slice_share, mapped.share) * p.n_experts
    frac = np.where(p.is_sliced, SLICE_FRAC, 1.0)
    # Quant: a 4-bit copy of INT8 experts, or MXFP4 experts as they are.
    has_copy = p.is_quant & p.is_sliced
    copy_frac = np.where(has_copy, DRAFT_FRAC, 1.0)
    copy_share = np.where(has_copy, mapped.copy_share, mapped.share)
    copy_hits = hits(p, copy_share, faded(p), n_tokens)
    experts = np.select([p.is_quant, p.is_elastic], [touches, np.minimum(touches, pool)], 0.0)
    private = np.where(p.is_slm, p.slm_read_bytes + p.slm_kv_bytes, p.head_read_bytes)
    static = np.where(p.is_self, p.static_bytes * DRAFT_FRAC + p.kv_bytes, private)
    return Reads(
        experts=experts,
        expert_bytes=experts * p.expert_bytes * p.n_layers * np.where(p.is_quant, copy_frac, frac),
        hit_frac=np.select([p.is_quant, p.is_elastic], [copy_hits, 1.0], 0.0),
        lsb_frac=np.zeros(len(p)),
        shared_frac=np.where(p.is_elastic, 1.0, chosen_frac(p.weights, copy_share)),
        static_bytes=static,
        cold_bytes=np.minimum(static, np.where(p.is_self, mapped.cold_bytes, mapped.spill_bytes)),
        nodes=p.draft_nodes,
    )


def hits(p: Points, share: Floats, beta: Floats, n_tokens: Floats) -> Floats:
    """(n,) hit rates, each point by its own law; 0..1."""
    found = np.zeros(len(p))
    for name in np.unique(p.hit_model):
        of = p.hit_model == name
        found[of] = HIT_LAWS[str(name)](share[of], beta[of], p.weights[of], n_tokens[of], p.n_experts[of])
    assert np.all((found >= 0.0) & (found <= 1.0 + 1e-12)), "a hit rate is outside 0..1"
    return np.minimum(found, 1.0)


def nothing(n: int) -> Joules:
    """Of n points."""
    return np.zeros((len(PARTS), len(ENDS), n))


def parts_of(cost: StepCost, machine: HardwareSpec) -> Joules:
    """hb: the tier in front of the experts' home, ext: all other memory."""
    found, hb = nothing(cost.seconds.value.size), f"tiers.{machine.roles.expert_cache}"
    of_table = {"tiers": "ext", "engines": "compute"}
    for name, band in cost.joules_of.items():
        kind = {BACKGROUND: "static", hb: "hb"}.get(name) or of_table.get(name.split(".")[0], "links")
        found[PARTS.index(kind)] += band
    return found
