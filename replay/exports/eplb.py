"""Physical maps of experts for expert-parallel serving: which logical expert each slot of each rank holds, and how even it is.

The heaviest expert per replica is replicated until the redundant slots are used; then replicas are packed by falling load, each
into the rank that has least and a slot left (deepseek-ai/EPLB, eplb.py: replicate_experts and balanced_packing, one node). Forms:

    sglang         --init-expert-location FILE: {"physical_to_logical_map"} of all layers, dense ones as numbered
                   (sgl-project/sglang, python/sglang/srt/eplb/expert_location.py, compute_initial_expert_location_metadata)
    vllm-ascend    expert_map_path: {"moe_layer_count", "layer_list"} of ranks and their experts (vllm-project/vllm-ascend,
                   vllm_ascend/eplb/adaptor/vllm_adaptor.py, _expert_file_to_tensor)
    vllm           offline maps of vLLM forks: format vllm_offline_eplb_physical_to_logical, version 1, of MoE layers
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.work import Ints
from tokentape.replay.exports.loads import entries
from tokentape.replay.trace import Trace
from tokentape.warehouse.geometry import Geometry

FORMS = ("sglang", "vllm-ascend", "vllm")


def physical_map(counts: Ints, n_ranks: int, n_redundant: int) -> Ints:
    """(MoE layers, slots) the logical expert of every slot, rank after rank, from (MoE layers, E) loads.

    Raises ValueError unless the slots share out evenly.
    """
    n_slots = counts.shape[1] + n_redundant
    if n_ranks < 1 or n_redundant < 0 or n_slots % n_ranks:
        raise ValueError(
            f"{counts.shape[1]} experts and {n_redundant} redundant ones do not share out among {n_ranks} ranks evenly"
        )
    layers, replicas = np.arange(len(counts)), np.ones_like(counts)
    for _ in range(n_redundant):
        replicas[layers, np.argmax(counts / replicas, axis=1)] += 1
    experts = np.array([np.repeat(np.arange(counts.shape[1]), of_layer) for of_layer in replicas])
    loads, ranks = np.take_along_axis(counts / replicas, experts, axis=1), np.empty_like(experts)
    held, n_held = np.zeros((len(counts), n_ranks)), np.zeros((len(counts), n_ranks), np.int64)
    for slot in np.argsort(-loads, axis=1, kind="stable").T:
        lightest = np.argmin(np.where(n_held < n_slots // n_ranks, held, np.inf), axis=1)
        ranks[layers, slot] = lightest
        held[layers, lightest] += loads[layers, slot]
        n_held[layers, lightest] += 1
    return np.take_along_axis(experts, np.argsort(ranks, axis=1, kind="stable"), axis=1)


def as_numbered(counts: Ints) -> Ints:
    """The map without replicas in which ranks take the experts as they are numbered."""
    return np.tile(np.arange(counts.shape[1]), (len(counts), 1))


def held_by(slots: Ints, n_experts: int, n_ranks: int) -> NDArray[np.float64]:
    """(MoE layers, E, ranks) share of an expert's tokens that a rank computes: its replicas share them evenly."""
    share = np.zeros((len(slots), n_experts, n_ranks))
    rank = np.arange(slots.shape[1]) // (slots.shape[1] // n_ranks)
    np.add.at(share, (np.arange(len(slots))[:, None], slots, rank), 1.0)
    return np.asarray(share / share.sum(axis=2, keepdims=True))


def balance(trace: Trace, mapped: Ints, n_ranks: int, phase: str) -> tuple[float, float]:
    """Mean load of the ranks over the largest, 1 where all have the same: of the whole tape, and pass by pass. Means over layers
    and passes by their tokens; replicas of an expert share its tokens evenly."""
    n_experts, by_pass, whole = trace.geometry.n_experts, 0.0, np.zeros((len(mapped), n_ranks))
    shares = held_by(mapped, n_experts, n_ranks)
    for layer, expert, passes in entries(trace, phase):
        for place in np.unique(layer):  # a layer may be without rows, of the phase or of the tape
            of_layer = layer == place
            chosen = np.bincount(passes[of_layer] * n_experts + expert[of_layer], minlength=(passes.max() + 1) * n_experts)
            held = chosen.reshape(-1, n_experts) @ shares[place]
            held = held[held.sum(axis=1) > 0]
            by_pass += float((held.mean(axis=1) / held.max(axis=1) * held.sum(axis=1)).sum())
            whole[place] += held.sum(axis=0)
    whole = whole[whole.sum(axis=1) > 0]
    of_layers = whole.mean(axis=1) / whole.max(axis=1) * whole.sum(axis=1)
    return float(of_layers.sum() / whole.sum()), by_pass / float(whole.sum())


def content(form: str, mapped: Ints, n_ranks: int, geometry: Geometry, model: str) -> dict[str, Any]:
    """What the file of a form (of FORMS) holds, as JSON."""
    n_slots = mapped.shape[1]
    if form == "sglang":
        every = np.tile(np.arange(n_slots) % geometry.n_experts, (geometry.n_layers, 1))
        every[list(geometry.moe_layers)] = mapped
        return {"physical_to_logical_map": every.tolist()}
    if form == "vllm-ascend":
        ranks = mapped.reshape(len(mapped), n_ranks, -1).tolist()
        layers = [
            {
                "layer_id": layer,
                "device_count": n_ranks,
                "device_list": [{"device_id": rank, "device_expert": held} for rank, held in enumerate(of_layer)],
            }
            for layer, of_layer in enumerate(ranks)
        ]
        return {"moe_layer_count": len(mapped), "layer_list": layers}
    return {
        "version": 1,
        "format": "vllm_offline_eplb_physical_to_logical",
        "model_name": model,
        "model_class": geometry.architecture,
        "num_moe_layers": len(mapped),
        "num_logical_experts": geometry.n_experts,
        "num_physical_experts": n_slots,
        "num_redundant_experts": n_slots - geometry.n_experts,
        "physical_to_logical_map": mapped.tolist(),
    }


def read_map(path: Path, geometry: Geometry) -> Ints:
    """(MoE layers, slots) the map in a file of any of FORMS. Raises ValueError naming the file for anything else, for a map of
    another model and for one that leaves an expert out."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if "layer_list" in found:
            rows = [[e for of in layer["device_list"] for e in of["device_expert"]] for layer in found["layer_list"]]
        else:
            rows = found["physical_to_logical_map"]
            rows = [rows[i] for i in geometry.moe_layers] if len(rows) == geometry.n_layers else rows
        mapped = np.array(rows, np.int64)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no map of experts ({error}); write one with `tokentape export eplb`") from None
    every = set(range(geometry.n_experts))
    if len(mapped) != len(geometry.moe_layers) or any(set(row) != every for row in mapped.tolist()):
        raise ValueError(
            f"{path}: not every one of {geometry.n_experts} experts in {len(geometry.moe_layers)} MoE layers has a slot: "
            "is it of this model?"
        )
    return mapped
