"""What the validation page says of splits, operators and marks."""

VALIDATE = (
    "Run: tokentape hardware validate FILES --record, where FILES are measured tables, then tokentape load and tokentape site."
)
BARS = "Bar: mean of |predicted / measured - 1|; white tick: median; circle: 95th percentile."
SPLITS = {
    "fitted": "rows fitted on", "held_out": "rows never seen", "other_version": "another version of vLLM",
    "same_generation": "device never seen (by its generation)", "pooled": "device never seen, all together",
    "other_device": "device never seen",
}  # fmt: skip
SPLIT_NAMES = list(SPLITS.values())
OPERATORS = {"gemm": "GEMM", "moe": "MoE"}
DECADES = [10.0**n for n in range(-9, 4)]
CUT = 0.6  # of a bar: larger errors are cut, and told in words
METRICS = {
    "e2e_s": "whole request", "ttft_s": "first token", "itl_s": "between tokens", "tpot_s": "per output token",
    "output_tokens_per_s": "output tokens/s", "tokens_per_s": "tokens/s", "hit_frac": "hits",
    "read_bytes_per_token": "bytes read", "io_s_per_token": "reading", "compute_s_per_token": "computing",
}  # fmt: skip
RESTS_ON = {"closed_form": "nothing fitted", "held_out": "fitted on another run", "fitted": "fitted on this run"}
RESTS = list(RESTS_ON.values())
RECORD = (
    "Run: tokentape validate serving PATH --hardware GPU --record, or validate offload, then tokentape load and tokentape site."
)
DATA = {
    "vllm_experiments": "vLLM experiments (H100)", "vllm_logs": "vLLM logs (RTX PRO 6000)",
    "offload_measured": "experts from flash (OnePlus 15R)",
}  # fmt: skip
