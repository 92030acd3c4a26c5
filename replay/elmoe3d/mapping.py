"""First fit into HB (paper section 4): static weights and KV, then what a scheme keeps for itself, then hot experts.

The paper's own settings always leave room for static weights, KV and the input table. Past them (2 GB of HB, a context of 128k)
what does not fit is read from EXT in every step; the input table goes first, since no step reads it (ours).
"""

from dataclasses import dataclass

import numpy as np

from tokentape.hw.work import Floats
from tokentape.replay.elmoe3d.points import DRAFT_FRAC, SLICE_FRAC, Points


@dataclass(frozen=True, eq=False)
class Mapping:
    """Bytes in HB of n points, (n,) each; a machine without a tier in front of the experts' home holds all of them.

    resident_bytes, share: R and x of 8-bit experts in AR and in verification (slices of Elastic take the same room); copy_share:
    of the experts of a separate 4-bit copy. spill_bytes: of EAGLE's head or the small model with its KV, what a draft step reads
    from EXT. cold_bytes: of static weights and KV that do not fit.
    """

    resident_bytes: Floats
    share: Floats
    slice_share: Floats
    copy_share: Floats
    spill_bytes: Floats
    cold_bytes: Floats


def map_bytes(p: Points) -> Mapping:
    """The mapping of every point. Asserts that nothing exceeds HB."""
    private = np.where(p.is_eagle, p.head_bytes, np.where(p.is_slm, p.slm_bytes + p.slm_kv_bytes, 0.0))
    needed = p.static_bytes + p.kv_bytes + p.embedding_bytes
    room = np.maximum(0.0, p.hb_bytes - needed - private)
    all_bytes = p.expert_bytes * p.n_experts * p.n_layers
    has_copy = p.is_quant & p.is_sliced
    resident = np.where(has_copy, 0.0, np.minimum(room, all_bytes))
    copy_static = np.where(has_copy, np.minimum(p.static_bytes * DRAFT_FRAC, room), 0.0)
    copy_all = all_bytes * DRAFT_FRAC
    copy_share = np.where(has_copy, np.clip((room - p.static_bytes * DRAFT_FRAC) / copy_all, 0.0, 1.0), 0.0)
    read = np.select([p.is_slm, p.is_eagle], [p.slm_read_bytes + p.slm_kv_bytes, p.head_read_bytes], 0.0)
    spill = np.clip(needed + np.where(p.is_eagle, read, private) - p.hb_bytes, 0.0, read)  # a head's own table goes first
    cold = np.clip(p.static_bytes + p.kv_bytes - p.hb_bytes, 0.0, None)
    found = Mapping(
        resident_bytes=resident,
        share=resident / all_bytes,
        slice_share=np.where(p.is_sliced & p.is_elastic, np.minimum(1.0, resident / (all_bytes * SLICE_FRAC)), 0.0),
        copy_share=copy_share,
        spill_bytes=spill,
        cold_bytes=cold,
    )
    held = resident + copy_static + copy_share * copy_all
    assert np.all(held <= room * (1 + 1e-12) + 1.0), "more experts than HB has room for"
    return found


def placed(p: Points, mapped: Mapping) -> dict[tuple[str, str], Floats]:
    """(tier, part) -> (n,) bytes at rest, tiers hb and ext; HB's parts, free among them, sum to its capacity.

    Whole experts in HB are copies; MSB slices are not: EXT then holds the LSB slices alone.
    """
    all_bytes = p.expert_bytes * p.n_experts * p.n_layers
    zero = np.zeros(len(p))
    has_copy = p.is_quant & p.is_sliced
    draft = np.select(
        [p.is_eagle, p.is_slm, has_copy], [p.head_bytes, p.slm_bytes, (p.static_bytes + all_bytes) * DRAFT_FRAC], 0.0
    )
    sizes = {
        "static": p.static_bytes,
        "kv": p.kv_bytes,
        "embedding": p.embedding_bytes,
        "draft weights": draft,
        "draft kv": np.where(p.is_slm, p.slm_kv_bytes, zero),
        "experts": mapped.resident_bytes,
    }
    found, left = {}, p.hb_bytes
    for part, size in sizes.items():
        inside = np.minimum(size, left)
        found["hb", part], found["ext", part], left = inside, size - inside, left - inside
    found["hb", "free"] = left
    found["ext", "experts"] = np.where(p.is_sliced & p.is_elastic, all_bytes - mapped.resident_bytes, all_bytes)
    return found
