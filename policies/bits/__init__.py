"""How many bits each expert's replica gets under an average budget. The dict maps the name a person types to the rule."""

from policies.bits.assign import assign
from policies.bits.greedy import GREEDY
from policies.bits.optimum import OPTIMUM
from policies.bits.prefix_split import PREFIX_SPLIT, REVERSED
from policies.bits.rule import RULE_SIGNATURE, BitRule, budget_bits, chosen_losses, table_loss
from policies.bits.uniform import UNIFORM

__all__ = ["BIT_RULES", "RULE_SIGNATURE", "BitRule", "assign", "budget_bits", "chosen_losses", "table_loss"]

BIT_RULES: dict[str, BitRule] = {
    "prefix_split": PREFIX_SPLIT,
    "uniform": UNIFORM,
    "greedy": GREEDY,
    "optimum": OPTIMUM,
    "reversed": REVERSED,
}
