"""Hot experts as KTransformers takes them, in a torch file of tensors alone.

logical_count       i64 (layers, experts), dense layers zeros: --init-expert-location FILE or --kt-expert-frequency-file FILE
                    with --kt-expert-placement-strategy frequency (kvcache-ai/sglang,
                    python/sglang/srt/layers/moe/kt_ep_wrapper.py, _load_activation_frequency)
gpu_experts_masks   bool (layers, experts), True on the GPU: a row is KTMoEWrapper's gpu_experts_mask
                    (kvcache-ai/ktransformers, kt-kernel/python/experts_base.py, generate_gpu_experts_masks)
"""

import io

import numpy as np
from numpy.typing import NDArray

from tokentape.warehouse.geometry import Geometry


def torch_file(counts: NDArray[np.int64], masks: NDArray[np.bool_], geometry: Geometry) -> bytes:
    """The file's bytes, from (MoE layers, E) counts and hot experts."""
    import torch

    tensors = {}
    for name, of_moe in (("logical_count", counts), ("gpu_experts_masks", masks)):
        rows = np.zeros((geometry.n_layers, geometry.n_experts), of_moe.dtype)
        rows[list(geometry.moe_layers)] = of_moe
        tensors[name] = torch.from_numpy(rows)
    stream = io.BytesIO()
    torch.save(tensors, stream)
    return stream.getvalue()
