"""How the CXL GPU-NDP page names and draws systems, placements and rules."""

from tokentape.dashboards import theme

NAME = PAPER = "cxl_ndp"
STUDY = "Run: tokentape study cxl_ndp, then tokentape load and tokentape site."
MONDE, HOBBIT = "MoNDE", "HOBBIT"
OURS = ("OURS-2", "OURS-3")
SYSTEMS = {
    "OURS-2": theme.VERMILLION,
    "OURS-3": theme.ORANGE,
    MONDE: theme.BLUE,
    "MoNDE never": theme.SKY,
    "MoNDE ema": theme.GREEN,
    "MoNDE always": theme.PURPLE,
    HOBBIT: theme.QUIET,
}
MAIN = ("OURS-2", "OURS-3", MONDE, HOBBIT)
PLACEMENTS = {
    "prefill_guided": "prefill-guided",
    "static_global": "static by frequency",
    "shuffled_prompts": "by another prompt",
    "random": "random",
    "ema": "reactive, EMA",
    "always": "reactive, always",
    "balance": "reactive, balance",
    "never": "never migrate",
    "oracle": "oracle (bound)",
}
RULES = {
    "prefix_split": ("selector (prefix split)", theme.VERMILLION),
    "by_use": ("selector, losses by use", theme.ORANGE),
    "uniform": ("uniform", theme.BLUE),
    "optimum": ("optimum (bound)", theme.INK),
    "greedy": ("greedy", theme.GREEN),
    "reversed": ("reversed order", theme.PURPLE),
}
# Series with a number -> the panel's axis.
AXES = {
    "batch": "batch (requests, log scale)",
    "link bandwidth": "link bandwidth (GB/s, log scale)",
    "ndp macs": "NDP multiply-adds (× the paper's, log scale)",
    "ndp bandwidth": "NDP bandwidth (× the paper's, log scale)",
    "hot experts": "experts of a layer on the GPU (count)",
}
SERIES = {
    "mac rate": "NDP multiply-adds",
    "monde": f"{MONDE}'s migration",
    "placement": "placement",
    "alpha": "alpha (counts against weights)",
    "bits rule": "bit widths",
}
TIERS = {"hbm": "HBM of the GPU", "cxl": "memory of the NDP"}
# Series of AXES as the sentence has them, with the unit of their numbers.
SWEPT = {
    "batch": ("batch", ""), "link bandwidth": ("link", " GB/s"), "ndp macs": ("NDP multiply-adds", " ×"),
    "ndp bandwidth": ("NDP bandwidth", " ×"), "hot experts": ("experts on the GPU", ""),
}  # fmt: skip
WITHIN = {"batch": "batch (requests, log scale)", "link": "link (GB/s, log scale)", "ndp size": "NDP devices (count, log scale)"}
TICKS = [m * 10**n for n in range(7) for m in (1, 3)]
METHODS = {
    "original_fp16": "FP16",
    "ours_3bit_no_selector": "3 bits, uniform",
    "ours_3bit": "3 bits, selector",
    "ours_2bit_no_selector": "2 bits, uniform",
    "ours_2bit": "2 bits, selector",
}
OVER = {"monde": ("decode_gain", MONDE), "hobbit": ("gain_over_hobbit", HOBBIT)}
TASKS = {
    "average": "average", "mmlu": "MMLU", "mathqa": "MathQA", "hellaswag": "HellaSwag", "arc_easy": "ARC easy",
    "arc_challenge": "ARC challenge", "boolq": "BoolQ", "winogrande": "WinoGrande", "piqa": "PIQA",
}  # fmt: skip
STORED = {
    "hot experts": theme.VERMILLION,
    "attention, shared and dense": theme.BLUE,
    "embeddings": theme.SKY,
    "KV": theme.GREEN,
    "FP16 experts": theme.ORANGE,
    "replicas": theme.PURPLE,
}
STORED_NAMES = list(STORED)
VERDICTS = {
    "held": ("inside its bar", theme.GREEN, "circle"),
    "missed": ("outside its bar", theme.VERMILLION, "diamond"),
    "": ("no bar, beside the paper", theme.QUIET, "square"),
}
VERDICT_COLOURS = {words: colour for words, colour, _ in VERDICTS.values()}
VERDICT_SHAPES = {words: shape for words, _, shape in VERDICTS.values()}
KINDS = {
    "attention and KV": theme.QUIET,
    "experts on the GPU": theme.GREEN,
    "experts in the NDP": theme.VERMILLION,
    "activations over the link": theme.SKY,
    "experts over the link": theme.BLUE,
}
PARTS = {
    "prefill": theme.SKY,
    "weights over the link": theme.BLUE,
    "attention and KV": theme.QUIET,
    "experts on the GPU": theme.GREEN,
    "waiting for the NDP": theme.ORANGE,
}
COLUMNS = dict(zip(("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s"), PARTS, strict=True))
PART_OF_COLUMN = theme.literal(COLUMNS)
ALONE, TOGETHER = "a set for each sequence", "one for a batch"
BATCHES = {ALONE: theme.VERMILLION, TOGETHER: theme.BLUE}
COSINES = {
    "own": ("its own prompt", theme.VERMILLION),
    "shuffled": ("another prompt", theme.BLUE),
    "popular": ("all other prompts together", theme.PURPLE),
    "flat": ("nothing in common but even use", theme.QUIET),
}
LINES = dict(COSINES.values())
LINE_WORDS = theme.literal({name: words for name, (words, _) in COSINES.items()})
RULE_COLOURS = dict(RULES.values())
PALE = theme.HEAT[:3]
RUN = "Run: tokentape evaluate --policy cxl_ndp, then tokentape load and tokentape site."
SEEDS = "Bands: least to most of the seeds, which read different texts."
LEGEND = "top columns=6"
SQUARES = "top columns=7 symbolType=square symbolStrokeWidth=0"
