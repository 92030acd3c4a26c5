"""GPU operator times in closed form with few fitted constants, one file per operator.

Knows shapes and a GPU's datasheet numbers, nothing of models, tapes or files.
"""

from tokentape.hw.operators.collectives import ALL_REDUCE, GATHER, LINK
from tokentape.hw.operators.decode_attention import DECODE_ATTENTION
from tokentape.hw.operators.gemm import GEMM
from tokentape.hw.operators.moe import MOE
from tokentape.hw.operators.operator import Gpu, Operator, Parameter
from tokentape.hw.operators.prefill_attention import PREFILL_ATTENTION

__all__ = ["COLLECTIVES", "LINK", "OPERATORS", "Gpu", "Operator", "Parameter"]

OPERATORS = {o.name: o for o in (GEMM, MOE, PREFILL_ATTENTION, DECODE_ATTENTION, ALL_REDUCE, GATHER)}
COLLECTIVES = ("all_reduce", "gather")  # timed by the link between GPUs, which tables do not tell
