"""How many bits each expert's replica gets under an average budget. The dicts map the name a person types to the rule."""

from tokentape.policies.bits.by_gate import ByGate
from tokentape.policies.bits.rule import RULE_SIGNATURE, BitRule, assign, budget_bits, chosen_losses, table_loss
from tokentape.policies.bits.splits import BIT_RULES, UNIFORM

__all__ = [
    "BIT_RULES",
    "RULE_SIGNATURE",
    "UNIFORM",
    "WIDTH_RULES",
    "BitRule",
    "ByGate",
    "WidthRule",
    "assign",
    "budget_bits",
    "chosen_losses",
    "table_loss",
]

WidthRule = BitRule | ByGate
WIDTH_RULES: dict[str, BitRule | type[ByGate]] = {**BIT_RULES, "by_gate": ByGate}  # of slot precision
