"""Tiny random-weight models of every family: the mechanism of a real one, in milliseconds."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from transformers import PreTrainedModel

from tokentape.capture.live.copies import experts_of, inputs_last
from tokentape.capture.live.loop import Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.policies.scoring import ranking

VOCAB = 97
TOLD = json.loads((Path(__file__).parent / "tiny_families.json").read_text())  # sizes; class, which sizes, and what else
BASE = TOLD["sizes"]["base"]


def config_of(name: str, sizes: str, **told: Any) -> hf.PreTrainedConfig:
    return getattr(hf, name)(**TOLD["sizes"][sizes] | told)


MOE_CONFIGS, DENSE_CONFIGS = (
    {family: partial(config_of, name, sizes, **told) for family, (name, sizes, told) in TOLD[kind].items()}
    for kind in ("with experts", "dense")
)
CONFIGS = MOE_CONFIGS | DENSE_CONFIGS


def build(name: str) -> PreTrainedModel:
    """The family's causal model with weights large enough that routers and attention discriminate."""
    return randomised(hf.AutoModelForCausalLM.from_config(CONFIGS[name]()))


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """The same weights on every run, biases of sigmoid routers included."""
    generator = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in key or "inv_freq" in key or not tensor.is_floating_point():
                continue
            spread = 0.05 if "e_score_correction_bias" in key else 0.3
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * spread)
    return model.eval()


def with_experts(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> PreTrainedModel:
    """The family's model, its expert matrices (E, outputs, inputs) as `change` makes them."""
    model = build(name)
    for module in experts_of(model).values():
        for key in ("gate_up_proj", "down_proj"):
            weights = inputs_last(module, key)
            weights.copy_(change(weights.clone().contiguous()))
    return model


def prompt(n: int = 24, rows: int = 1) -> torch.Tensor:
    return torch.randint(3, VOCAB, (rows, n), generator=torch.Generator().manual_seed(22))


def state_of(model):
    """What must be as it was once nothing is inside: parameters by identity, counts of experts, hooks."""
    return (
        {name: id(p) for name, p in model.named_parameters()},
        [experts.num_experts for experts in experts_of(model).values()],
        [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
    )


def generate(model, batch, *slots):
    """What the requests of a batch put out, greedily, with slots inside; the last column's logits of every pass."""
    seen = []
    with Inside(model, *slots) as inside, model.register_forward_hook(lambda _, args, output: seen.append(output.logits[:, -1])):
        outcomes = decode(model, batch, Sampling(), frozenset(), 0, inside)
    return [o.output_ids for o in outcomes], torch.stack(seen)


def read(store, trace_id):
    """A tape, and its tables."""
    tape = store.open(trace_id)
    return tape, {name: tape.read(name) for name in tape.manifest.tables}


def disagreements(
    ids: np.ndarray,
    scores: np.ndarray,
    rule: str,
    params: Mapping[str, Any],
    layer: int | None = None,
    tolerance: float = 1e-6,
) -> np.ndarray:
    """Rows of `ids` (n, k) that `scores` (n, E) do not explain, as (n,) bool.

    A row agrees when no expert left out ranks above a chosen one by more than `tolerance` (float32 rounding of the engine).
    """
    values = ranking(scores.astype(np.float64), rule, params, layer)
    chosen = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(chosen, ids.astype(np.int64), True, axis=-1)
    worst_in = np.where(chosen, values, np.inf).min(axis=-1)
    best_out = np.where(chosen, -np.inf, values).max(axis=-1)
    wrong: np.ndarray = (best_out > worst_in + tolerance) | (chosen.sum(axis=-1) != ids.shape[1])
    return wrong
