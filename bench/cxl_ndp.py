"""Decode on the GPU-NDP systems: CPU seconds to place and replay 1,008 sequences x 128 steps x 32 layers of Mixtral-8x7B.

The peer is the same replay event by event in plain Python, on a part of them.
"""

from __future__ import annotations

import time

import numpy as np

from tokentape.flows.systems.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.systems.cxl_ndp.points import losses_of
from tokentape.flows.systems.cxl_ndp.settings import Settings, setup
from tokentape.hw.profile import ENDS
from tokentape.replay.cxl_ndp.decode import replay
from tokentape.replay.cxl_ndp.prefill import prefill, request
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Setting, placed_by, run, widths
from tokentape.replay.cxl_ndp.system import ours

N_SEQUENCES, N_STEPS, N_ALONE = 1008, 128, 32


def one_by_one(tape: CXLNDPRouting, hot: np.ndarray, bits: np.ndarray, batch: int) -> float:
    """Seconds that OURS decodes, every expert an event on the clock of its own device: the peer."""
    read_s, token_s, gpu_s = 352321536 / 512e9 / 16, 352321536 / 2.048e12, 352321536 / 3.35e12
    clock = 0.0
    for g in range(tape.n_sequences // batch):
        members = range(g * batch, (g + 1) * batch)
        for t in range(tape.n_steps):
            for layer in range(tape.n_layers):
                counts: dict[int, int] = {}
                for s in members:
                    for e in tape.decode_ids[s, t, layer].tolist():
                        counts[e] = counts.get(e, 0) + 1
                gpu, ndp = clock, clock + 4e-6
                for e, n in counts.items():
                    if hot[g, layer, e]:
                        gpu += max(gpu_s, n * 352321536 / (989.4e12 * 0.5))
                    else:
                        width = bits[g, layer, e]
                        ndp += max(width * read_s, n * token_s * width / 16) + n * 16384 / 32e9
                clock = max(gpu, ndp)
    return clock


def bench() -> dict[str, float]:
    """CPU seconds of every system of the study together, and of the slowest; layer-steps per CPU second, and the peer's."""
    study = Settings.shipped()
    model = study.models[0]
    made = setup(study, model.name)
    tape = cxl_ndp_routing.drawn(made.geometry, N_SEQUENCES, n_steps=N_STEPS)
    setting, losses = Setting(batch=study.batch, hot_experts=model.hot_experts), losses_of(study, made, 0)
    run(tape, made, setting, study.systems, losses, ENDS[:1])  # compiles
    seconds = {}
    for name in study.systems:
        started = time.process_time()
        (decoded,) = run(tape, made, setting, [name], losses, ENDS[:1]).values()
        for context, n_decode in ((128, 256), (512, 1024)):
            prompts = prefill(made, decoded.system, context, setting.batch, setting.hot_experts)
            request(decoded, prompts, n_decode)
        seconds[name] = time.process_time() - started
    placed, system = placed_by(tape, setting), ours(3)
    bits = widths(tape, placed, losses, 3, setting.rule)
    started = time.process_time()
    n_layer_steps = replay(tape, placed, made, system, bits, ends=ENDS[:1]).n_layer_steps
    rate = n_layer_steps / (time.process_time() - started)
    few = CXLNDPRouting(
        tape.trace_id, tape.origin, tape.layers, tape.request_ids[:N_ALONE], tape.prefill_counts[:N_ALONE],
        tape.prefill_weights[:N_ALONE], tape.decode_ids[:N_ALONE], tape.n_decode[:N_ALONE],
    )  # fmt: skip
    started = time.process_time()
    one_by_one(few, placed.hot, bits, setting.batch)
    alone = N_ALONE // setting.batch * N_STEPS * tape.n_layers / (time.process_time() - started)
    total, slowest = sum(seconds.values()), max(seconds.values())
    print(f"GPU-NDP: {len(seconds)} systems in {total:.2f} s of CPU, {rate / 1e6:.2f} M layer-steps/s, peer {alone:,.0f}/s")
    return {
        "cxl_ndp_all_systems_cpu_s": round(total, 3),
        "cxl_ndp_slowest_system_cpu_s": round(slowest, 3),
        "cxl_ndp_layer_steps_per_cpu_s": round(rate),
        "cxl_ndp_python_layer_steps_per_cpu_s": round(alone),
    }
