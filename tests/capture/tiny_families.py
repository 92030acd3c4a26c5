"""Tiny random-weight models of every family: the mechanism of a real one, in milliseconds."""

from collections.abc import Callable, Mapping
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
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = BASE | {"moe_intermediate_size": 16, "num_experts_per_tok": 3}
MLA = MOE | {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 4,
    "topk_group": 2,
}

MOE_CONFIGS = {
    "Qwen2Moe": lambda: hf.Qwen2MoeConfig(**MOE, num_experts=8, shared_expert_intermediate_size=24, norm_topk_prob=False),
    "Qwen3Moe": lambda: hf.Qwen3MoeConfig(**MOE, num_experts=8, head_dim=8, norm_topk_prob=True),
    "DeepseekV2": lambda: hf.DeepseekV2Config(**MLA, topk_method="group_limited_greedy", routed_scaling_factor=2.0),
    "DeepseekV2Greedy": lambda: hf.DeepseekV2Config(**MLA | {"n_group": None, "topk_group": None}, topk_method="greedy"),
    "DeepseekV3": lambda: hf.DeepseekV3Config(**MLA, norm_topk_prob=True, routed_scaling_factor=2.5),
    "Mixtral": lambda: hf.MixtralConfig(**BASE, num_local_experts=8, num_experts_per_tok=2),
    "GptOss": lambda: hf.GptOssConfig(**BASE, head_dim=8, num_local_experts=8, num_experts_per_tok=3, sliding_window=8),
    "Glm4Moe": lambda: hf.Glm4MoeConfig(**MOE, head_dim=8, n_routed_experts=8, n_shared_experts=1, n_group=2, topk_group=1),
    "Glm4MoeLite": lambda: hf.Glm4MoeLiteConfig(**MLA | {"n_group": 1, "topk_group": 1}),
    "Olmoe": lambda: hf.OlmoeConfig(**BASE, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True),
    "GraniteMoe": lambda: hf.GraniteMoeConfig(**BASE, num_local_experts=8, num_experts_per_tok=3),
    "Phimoe": lambda: hf.PhimoeConfig(**BASE, num_local_experts=8, num_experts_per_tok=2, sliding_window=64),
}
DENSE_CONFIGS = {
    "Llama": lambda: hf.LlamaConfig(**BASE),
    "Mistral": lambda: hf.MistralConfig(**BASE, sliding_window=8),
    "Qwen2": lambda: hf.Qwen2Config(**BASE),
    "Gemma2": lambda: hf.Gemma2Config(**BASE, head_dim=8, sliding_window=8, attn_logit_softcapping=5.0),
    "OPT": lambda: hf.OPTConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
    ),
}
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
