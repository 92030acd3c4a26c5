"""How many bits each expert's replica gets under an average budget. The dicts map the name a person types to the rule."""

from tokentape.policies.bits.assign import assign
from tokentape.policies.bits.by_gate import ByGate
from tokentape.policies.bits.greedy import GREEDY
from tokentape.policies.bits.optimum import OPTIMUM
from tokentape.policies.bits.prefix_split import PREFIX_SPLIT, REVERSED
from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule, budget_bits, chosen_losses, table_loss
from tokentape.policies.bits.uniform import UNIFORM

__all__ = [
    "BIT_RULES",
    "RULE_SIGNATURE",
    "WIDTH_RULES",
    "BitRule",
    "ByGate",
    "WidthRule",
    "assign",
    "budget_bits",
    "chosen_losses",
    "table_loss",
]

BIT_RULES: dict[str, BitRule] = {
    "prefix_split": PREFIX_SPLIT,
    "uniform": UNIFORM,
    "greedy": GREEDY,
    "optimum": OPTIMUM,
    "reversed": REVERSED,
}
WidthRule = BitRule | ByGate
WIDTH_RULES: dict[str, BitRule | type[ByGate]] = {**BIT_RULES, "by_gate": ByGate}  # of slot precision
