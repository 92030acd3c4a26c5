"""A model's config, a machine of one's own, and operators timed on it."""

import json
from pathlib import Path

import numpy as np
import polars as pl

from tokentape.hw import calibrate, spec
from tokentape.hw.operators import OPERATORS

TINY = {
    "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 100,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
MY_GPU = 'base = "a100"\nname = "my-gpu"\nmeasured_as = "My GPU"\n'


def gemm_rows(n_rows: int = 30, slower: float = 1.3, **columns: object) -> pl.DataFrame:
    """Products on `My GPU`, timed by the GEMM model itself on an A100 that launches and moves `slower` times as slowly."""
    rng = np.random.default_rng(3)
    shapes = {name: 2 ** rng.integers(5, 13, n_rows) for name in ("m", "n", "k")}
    constants = np.array([parameter.start for parameter in OPERATORS["gemm"].parameters])
    seconds = slower * OPERATORS["gemm"].seconds(calibrate.gpu_of(spec.load("a100")), constants, shapes)
    words = {"framework": "VLLM", "version": "0.14.0", "device": "My GPU", "op_name": "gemm", "gemm_dtype": "bfloat16"}
    return pl.DataFrame(
        {**{name: [word] * n_rows for name, word in words.items()}, **shapes, "latency": 1e3 * seconds, **columns}
    )


def write_config(path: Path, **changes: object) -> None:
    """The config of TINY; a change to None leaves the key out."""
    path.write_text(json.dumps({key: value for key, value in {**TINY, **changes}.items() if value is not None}))
