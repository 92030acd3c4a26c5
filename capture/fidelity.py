"""How far open-loop replay is from what really happens: the same policy on the same text, replayed and inside the model.

Open loop, the scores are those the unmodified model had: a rerouted token does not change what comes after. Closed loop, it does.
Both run the same kernels (policies/sliced) on the same windows, each with a cache of its own.
"""

import numpy as np
import torch

from tokentape.capture import models
from tokentape.capture.evaluate import Report
from tokentape.capture.live.quality import requests_of, run_in, windows
from tokentape.capture.live.routers import FIELDS, Sliced, counted
from tokentape.capture.live.system import SystemTried
from tokentape.capture.routing import RoutingCapture
from tokentape.policies.scoring import gates, ranking
from tokentape.policies.sliced import Controller

Totals = dict[str, float]


def both_loops(
    loaded: models.Loaded, dataset: str, run: SystemTried, seed: int = 0, progress: Report = lambda done, total, name: None
) -> tuple[Totals, Totals, int]:
    """What open-loop replay counts, what the closed loop counts, and the high-precision bytes of one expert.

    Raises ValueError for a data set too short for a window.
    """
    inside = run.inside(loaded, seed)
    (slot,) = inside.slots
    assert isinstance(slot, Sliced)
    replayed: Totals = dict.fromkeys(FIELDS, 0)
    chosen = windows(loaded, dataset, run, seed)
    with models.suitable_threads(loaded.model):
        for i, ids in enumerate(chosen):
            for name, count in _open_loop(loaded, ids, run, slot, seed).items():
                replayed[name] += count
            with inside:
                run_in(loaded, requests_of([ids], run), inside)
            progress(i + 1, len(chosen), dataset)
    return replayed, slot.totals, sum(slot.slices)


@torch.inference_mode()
def _open_loop(loaded: models.Loaded, ids: list[int], run: SystemTried, slot: Sliced, seed: int) -> Totals:
    """One window: the unmodified model's scores through the policy. The last token is never an input."""
    device = models.device_of(loaded.model)
    with RoutingCapture(loaded.model) as routing:
        loaded.model(input_ids=torch.tensor([ids[:-1]], device=device), use_cache=False)
        step = routing.take()
    assert step.scores is not None
    scores, natural = step.scores.float().numpy(), step.ids.numpy()  # (L, n, E), (L, n, k)
    n_layers, n_tokens, n_experts = scores.shape
    values = np.stack([ranking(s, slot.rule, slot.params, layer) for s, layer in zip(scores, slot.blocks, strict=True)])
    dense = np.stack([gates(s, slot.rule) for s in scores])
    controller = Controller(slot.system, n_layers, n_experts, natural.shape[2], *slot.slices, slot.capacity_bytes, seed=seed)
    n_prompt = run.prompt_tokens
    layers = np.arange(n_layers, dtype=np.int32)

    def rows(x: np.ndarray, first: int, last: int, layer_major: bool) -> np.ndarray:
        part = x[:, first:last]
        return np.ascontiguousarray(part if layer_major else part.swapaxes(0, 1)).reshape(-1, x.shape[2])

    controller.prefill(np.repeat(layers, n_prompt), rows(values, 0, n_prompt, True), rows(dense, 0, n_prompt, True))
    controller.end_prefill()
    free = n_prompt + slot.system.free_steps
    totals: Totals = dict.fromkeys(FIELDS, 0)
    for first, last, is_counted in ((n_prompt, min(free, n_tokens), False), (free, n_tokens, True)):
        if last <= first:
            continue
        of_layer = np.tile(layers, last - first)
        events = controller.decode(of_layer, rows(values, first, last, False), rows(dense, first, last, False))
        if is_counted:
            made = counted(events, rows(natural, first, last, False), rows(dense, first, last, False), slot.low_error)
            totals |= {"tokens": last - first} | {name: counts.sum().item() for name, counts in made.items()}
    return totals
