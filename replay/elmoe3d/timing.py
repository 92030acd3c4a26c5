"""Seconds of an AR step, a draft step and a verification, for many points at once (paper sections 4 and 6, the forms ours).

In a pass the static part runs from HB, then the experts run from both tiers at the same time. The reference is the same PEs with
everything in EXT. Nothing overlaps a draft with a verification.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokentape.replay.elmoe3d.hits import HIT_LAWS
from tokentape.replay.elmoe3d.mapping import SLICE_FRAC, Mapping, map_bytes
from tokentape.replay.elmoe3d.points import Flags, Floats, Points
from tokentape.replay.elmoe3d.shape import BYTES_PER_PARAM, DRAFT_FRAC
from tokentape.replay.elmoe3d.unions import touched


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over the model, (n,) each: expected experts of a layer, their bytes over all layers, the share of those bytes that
    HB brings, bytes of either tier with the static part's, and seconds."""

    experts: Floats
    expert_bytes: Floats
    hit_frac: Floats
    hb_bytes: Floats
    ext_bytes: Floats
    seconds: Floats


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

    @property
    def phi(self) -> Floats:
        """Of the better mode."""
        return np.maximum(self.phi_ar, self.phi_sd)


def evaluate(p: Points) -> Outcome:
    """Every point. Asserts that no pass is faster than either tier alone, that the tiers' bytes add up, and that no AR step gains
    more over the xPU than both tiers busy all the time would."""
    mapped = map_bytes(p)
    ar = _ar(p, mapped)
    verify = _verify(p, mapped)
    draft = _draft(p, mapped)
    ops = 2.0 * p.batch * (p.verify_nodes > 0.0)
    busy_s = ops * (p.static_params + p.layer_params * p.n_layers) / p.ops_per_s
    xpu_s = np.maximum((p.static_bytes + p.kv_bytes + ar.expert_bytes) / p.ext_bytes_per_s, busy_s)
    round_s = p.n_draft_steps * draft.seconds + verify.seconds
    phi_ar = xpu_s / ar.seconds
    assert np.all(phi_ar <= (1.0 + p.hb_bytes_per_s / p.ext_bytes_per_s) * (1.0 + 1e-12)), "AR is faster than both tiers together"
    return Outcome(
        mapping=mapped,
        ar=ar,
        draft=draft,
        verify=verify,
        xpu_s=xpu_s,
        accepted_len=p.accepted_len,
        round_s=round_s,
        phi_ar=phi_ar,
        phi_sd=(1.0 + p.accepted_len) * xpu_s / round_s,
    )


def policy_phi(found: Outcome, batch: Floats, tau: float) -> Floats:
    """(n,) speed-up of the paper's policy, speculation from batch tau on. A tau beyond all batches is AR throughout."""
    return np.where(batch >= tau, found.phi_sd, found.phi_ar)


def _ar(p: Points, mapped: Mapping) -> Pass:
    experts = touched(p.weights, p.batch)
    hits = _hits(p, mapped.share, p.beta, p.batch)
    return _pass(p, mapped, experts, hits, p.batch * (p.verify_nodes > 0.0))


def _verify(p: Points, mapped: Mapping) -> Pass:
    n_tokens = p.verify_tokens * p.batch**p.growth
    slices = p.is_elastic & p.is_sliced  # each hit brings its MSB half from HB, its LSB half from EXT
    share = np.where(slices, mapped.slice_share, mapped.share)
    hits = _hits(p, share, faded(p), n_tokens)
    return _pass(p, mapped, touched(p.weights, n_tokens), np.where(slices, SLICE_FRAC * hits, hits), p.batch * p.verify_nodes)


def faded(p: Points) -> Floats:
    """(n,) exponent of the hit law in verification and in the copy's drafts: at batch 1 as in AR, then growing towards 1."""
    return 1.0 - (1.0 - p.beta) * p.batch**-p.fade


def _draft(p: Points, mapped: Mapping) -> Pass:
    """One draft step, by scheme; experts, expert_bytes and hits are 0 where a small model or a head drafts."""
    n_tokens = p.draft_tokens * p.batch**p.growth
    touches = touched(p.weights, n_tokens)
    # Elastic: confined to its pool, twice as many slices as whole experts; everything is in HB.
    pool = np.where(p.is_sliced, mapped.slice_share, mapped.share) * p.n_experts
    frac = np.where(p.is_sliced, SLICE_FRAC, 1.0)
    elastic_experts = np.minimum(touches, pool)
    # Quant: a 4-bit copy of INT8 experts, or MXFP4 experts as they are.
    has_copy = p.is_quant & p.is_sliced
    copy_frac = np.where(has_copy, DRAFT_FRAC, 1.0)
    copy_hits = _hits(p, np.where(has_copy, mapped.copy_share, mapped.share), faded(p), n_tokens)
    is_self = p.is_quant | p.is_elastic
    experts = np.select([p.is_quant, p.is_elastic], [touches, elastic_experts], 0.0)
    expert_bytes = experts * p.expert_bytes * p.n_layers * np.where(p.is_quant, copy_frac, frac)
    hits = np.select([p.is_quant, p.is_elastic], [copy_hits, 1.0], 0.0)
    private = np.where(p.is_slm, p.slm_read_bytes + p.slm_kv_bytes, p.head_bytes)
    static = np.where(is_self, p.static_bytes * DRAFT_FRAC + p.kv_bytes, private)
    cold = np.minimum(static, np.where(is_self, mapped.cold_bytes, mapped.spill_bytes))
    params = np.select([p.is_slm, p.is_eagle], [p.slm_params, p.head_bytes / BYTES_PER_PARAM], p.static_params)
    computed = np.where(is_self, 1.0, 0.0) * p.layer_params * p.n_layers
    ops = 2.0 * p.batch * p.draft_nodes / p.draft_ops_per_s
    static_s = np.maximum((static - cold) / p.hb_bytes_per_s + cold / p.ext_bytes_per_s, ops * params)
    return _of(p, experts, expert_bytes, hits, static, cold, static_s, ops * computed)


def _hits(p: Points, share: Floats, beta: Floats, n_tokens: Floats) -> Floats:
    """(n,) hit rates, each point by its own law; 0..1."""
    found = np.zeros(len(p))
    for name in np.unique(p.hit_model):
        of = p.hit_model == name
        found[of] = HIT_LAWS[str(name)](share[of], beta[of], p.weights[of], n_tokens[of], p.n_experts[of])
    assert np.all((found >= 0.0) & (found <= 1.0 + 1e-12)), "a hit rate is outside 0..1"
    return np.minimum(found, 1.0)


def _pass(p: Points, mapped: Mapping, experts: Floats, hits: Floats, n_tokens: Floats) -> Pass:
    """A pass of the target; n_tokens: computed ones, 0 where operations are left out."""
    static = p.static_bytes + p.kv_bytes
    cold, ops = mapped.cold_bytes, 2.0 * n_tokens / p.ops_per_s
    memory_s = (static - cold) / p.hb_bytes_per_s + cold / p.ext_bytes_per_s
    expert_bytes = experts * p.expert_bytes * p.n_layers
    static_s = np.maximum(memory_s, ops * p.static_params)
    return _of(p, experts, expert_bytes, hits, static, cold, static_s, ops * p.layer_params * p.n_layers)


def _of(
    p: Points,
    experts: Floats,
    expert_bytes: Floats,
    hits: Floats,
    static: Floats,
    cold: Floats,
    static_s: Floats,
    expert_ops_s: Floats,
) -> Pass:
    from_hb, from_ext = hits * expert_bytes, (1.0 - hits) * expert_bytes
    experts_s = np.maximum(np.maximum(from_ext / p.ext_bytes_per_s, from_hb / p.hb_bytes_per_s), expert_ops_s)
    hb_bytes, ext_bytes, seconds = static - cold + from_hb, cold + from_ext, static_s + experts_s
    least = np.maximum(hb_bytes / p.hb_bytes_per_s, ext_bytes / p.ext_bytes_per_s)
    assert np.all(seconds >= least * (1 - 1e-12)), "a pass is faster than a tier"
    assert np.allclose(hb_bytes + ext_bytes, static + expert_bytes, rtol=1e-12), "bytes were lost between the tiers"
    return Pass(experts, expert_bytes, hits, hb_bytes, ext_bytes, seconds)
