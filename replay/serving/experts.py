"""Time of a layer's experts from measured kernels instead of fitted shares: a table for the serving engine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.calibrate import Fit, gpu_of
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.serving.step import POINTS_PER_OCTAVE
from tokentape.warehouse.geometry import Geometry

OCTAVES, N_SHARES = 20, 33  # up to a million tokens; shares of the experts in steps of a 32nd


def expert_times(geometry: Geometry, machine: HardwareSpec, fit: Fit) -> NDArray[np.float64]:
    """(OCTAVES x POINTS_PER_OCTAVE + 1, N_SHARES) seconds of the routed experts of one layer, on each of the machine's devices.

    Row i: 2^(i / POINTS_PER_OCTAVE) tokens; column j: j / (N_SHARES - 1) of the experts touched. fit: the `moe` operator's
    (hw/calibrate.py), of the machine's GPU and an engine's kernels; devices share an expert's width. Between the points the
    engine interpolates, which smooths the kernel's steps. Raises ValueError for the fit of another operator or a model without
    experts.
    """
    if fit.operator != "moe":
        raise ValueError(f"expert times need the fit of operator moe, got {fit.operator}")
    if not geometry.moe_layers:
        raise ValueError(f"{geometry.architecture} has no experts to time")
    tokens = 2.0 ** (np.arange(OCTAVES * POINTS_PER_OCTAVE + 1) / POINTS_PER_OCTAVE)
    active = np.maximum(1.0, np.linspace(0.0, 1.0, N_SHARES) * geometry.n_experts)
    shapes = {
        "num_tokens": np.repeat(tokens, N_SHARES),
        "active_experts": np.tile(active, tokens.size),
        "hidden_size": np.full(tokens.size * N_SHARES, float(geometry.hidden)),
        "inter_size": np.full(tokens.size * N_SHARES, float(geometry.expert_intermediate)),
        "topk": np.full(tokens.size * N_SHARES, float(geometry.top_k)),
        "num_experts": np.full(tokens.size * N_SHARES, float(geometry.n_experts)),
        "moe_tp_size": np.full(tokens.size * N_SHARES, float(machine.n_devices)),
    }
    return fit.seconds(gpu_of(machine, fit.setup.dtype), shapes).reshape(tokens.size, N_SHARES)
