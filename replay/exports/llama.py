"""For llama.cpp: which layers' experts go to the GPU (`-ot`), and routing as its tracer writes it, which its expert cache takes.

llama.cpp keeps the experts of a layer in three tensors, blk.N.ffn_{gate,up,down}_exps, or two where gate and up are one, so that
a layer is the least that -ot moves; of several patterns the first that is found in a tensor's name counts (ggml-org/llama.cpp,
src/llama-model-loader.cpp, tensor_buft_overrides; common/arg.cpp: <tensor name pattern>=<buffer type>,...). A profile for
--moe-cache-profile is a trace `pos,layer,id0,id1,...` with pos < 0 in the prompt (thecodacus/llama.cpp,
tools/moe-trace/moe-trace.cpp, line 7).
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from tokentape.replay.exports.loads import entries
from tokentape.replay.trace import PREFILL, Trace

EXPERTS = r"\.ffn_(gate|up|down|gate_up)_exps\."


def experts_read(trace: Trace, phase: str) -> NDArray[np.float64]:
    """(MoE layers,) distinct experts that a pass reads, a mean over its passes."""
    n_experts, n_layers = trace.geometry.n_experts, len(trace.geometry.moe_layers)
    read, n_passes = np.zeros(n_layers), 0
    for layer, expert, passes in entries(trace, phase):
        distinct = np.unique((passes * n_layers + layer) * n_experts + expert)
        read += np.bincount(distinct // n_experts % n_layers, minlength=n_layers)
        n_passes += np.unique(passes).size
    return read / n_passes


def layers_within(read: NDArray[np.float64], expert_bytes: tuple[int, ...], n_experts: int, n_bytes: int) -> list[int]:
    """Indices of the layers whose experts fit into so many bytes, those first of which a pass reads most. Rising."""
    taken, left = list[int](), n_bytes
    for place in np.argsort(-read, kind="stable").tolist():
        if expert_bytes[place] * n_experts <= left:
            taken.append(place)
            left -= expert_bytes[place] * n_experts
    return sorted(taken)


def override_tensors(layers: list[int], device: str) -> str:
    """Arguments that put the experts of these layers (as the model numbers them) onto a device, all others beside the CPU."""
    held = [f'-ot "blk\\.({"|".join(map(str, layers))}){EXPERTS}={device}"'] if layers else []
    return " ".join([*held, f'-ot "{EXPERTS}=CPU"'])


def trace_csv(trace: Trace, n_prompt: dict[int, int]) -> str:
    """Rows `pos,layer,id0,id1,...` in the order executed, requests one after another; n_prompt: prompt tokens of each."""
    n_rows, written, moe_layers = 0, defaultdict[int, list[str]](list), np.array(trace.geometry.moe_layers)
    for _, part in trace.parts:
        at = part.row_position - np.array([n_prompt[request] for request in part.row_request.tolist()])
        wrong = np.flatnonzero((at < 0) != (part.pass_kind[part.row_pass] == PREFILL))
        if wrong.size:
            told = f"row {n_rows + wrong[0]} is at {at[wrong[0]]:+} of its prompt's end"
            raise ValueError(f"tape {trace.trace_id}: {told}; import or record it again")
        n_rows += part.row_pass.size
        ids, layers = np.split(part.ids, part.offsets[1:-1]), moe_layers[part.row_layer]
        for request, pos, layer, chosen in zip(part.row_request.tolist(), at.tolist(), layers.tolist(), ids, strict=True):
            written[request].append(f"{pos},{layer},{','.join(map(str, chosen.tolist()))}\n")
    return "".join(line for request in sorted(written) for line in written[request])
