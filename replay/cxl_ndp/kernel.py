"""The decode of all batches on one system, layer-step by layer-step, over recorded routing. Nothing is sampled or averaged.

Sequences of a batch decode in lockstep; one that has ended drops out.
"""

from __future__ import annotations

import numpy as np

from tokentape.policies.kernels import array, boolean, float64, function, int16, int32, int64, kernel, uint8, void
from tokentape.policies.placement import MIGRATE_SIGNATURE
from tokentape.replay.cxl_ndp.timing import UNIT, layer_step

_F64, _I32 = array(float64, 1), array(int32, 1)
_F64_2D, _I64_2D = array(float64, 2), array(int64, 2)
_F64_3D, _U8_3D = array(float64, 3), array(uint8, 3)
_I16_4D = array(int16, 4)


@kernel(
    void(
        function(MIGRATE_SIGNATURE), _F64, _I16_4D, _I32, _I64_2D, _F64_3D, _U8_3D, _F64_3D, int64, boolean, boolean,
        float64, UNIT, _F64_3D, _F64_2D,
    ),
)  # fmt: skip
def decode(  # type: ignore[no-untyped-def]
    migrate, params, ids, n_decode, groups, average, resident, bits, capacity, fetches, overlaps, moved_bits, unit, of_step,
    of_layer,
):  # fmt: skip
    """Adds every layer-step to of_step (G, T, N_PARTS) and of_layer (L, N_PARTS), zero on entry.

    migrate, params: of a reactive placement. ids (S, T, L, k) i16, n_decode (S,) i32. groups (G, B) i64 sequences of a batch.
    average (G, L, E) f64 and resident (G, L, E) u8: the placement when decoding starts; both are overwritten. bits (G, L, E) f64.
    capacity: experts of a layer on the GPU. The rest: see layer_step.
    """
    n_groups, n_members = groups.shape
    n_layers, n_experts, top_k = resident.shape[1], resident.shape[2], ids.shape[3]
    counts, parts = np.zeros(n_experts, np.int64), np.zeros(of_layer.shape[1])
    for g in range(n_groups):
        for t in range(of_step.shape[1]):
            batch = 0
            for m in range(n_members):
                batch += n_decode[groups[g, m]] > t
            if batch == 0:
                break
            for at in range(n_layers):
                counts[:] = 0
                for m in range(n_members):
                    s = groups[g, m]
                    if n_decode[s] > t:
                        for j in range(top_k):
                            counts[ids[s, t, at, j]] += 1
                n_moved = migrate(counts, average[g, at], resident[g, at], capacity, params)
                parts[:] = 0.0
                layer_step(
                    counts, resident[g, at], bits[g, at], batch, n_moved, fetches, overlaps, moved_bits, unit, parts
                )  # fmt: skip
                of_layer[at] += parts
                of_step[g, t] += parts
