"""What the validation page says of splits, operators and marks."""

from __future__ import annotations

VALIDATE = (
    "Run: tokentape hardware validate FILES --record, where FILES are measured tables, then tokentape load and tokentape site."
)
BARS = "Bar: mean of |predicted / measured - 1|; white tick: median; circle: 95th percentile."
SPLITS = {"fitted": "rows fitted on", "held_out": "rows never seen", "other_device": "device never seen"}
OPERATORS = {"gemm": "GEMM", "moe": "MoE"}
DECADES = [10.0**n for n in range(-9, 4)]
