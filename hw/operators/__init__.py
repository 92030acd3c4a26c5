"""GPU operator times in closed form with few fitted constants; one file per operator, each with `seconds`, `regime` and `least`.

Knows shapes and a GPU's datasheet numbers, nothing of models, tapes or files.
"""

from __future__ import annotations

from types import ModuleType

from tokentape.hw.operators import decode_attention, gemm, moe, prefill_attention

OPERATORS: dict[str, ModuleType] = {
    "gemm": gemm,
    "moe": moe,
    "prefill_attention": prefill_attention,
    "decode_attention": decode_attention,
}
