"""How the ELMoE-3D page names and draws schemes, platforms, modes and hit models; the sentence beside accuracy."""

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Control

STUDY = "Run: tokentape study elmoe3d, then tokentape load and tokentape site."
HONESTY = (
    "The forms of the model were chosen with the paper's table in view (KV width, embedding format, GiB, several hit laws and "
    "several forms of acceptance): parameter values are out of sample in predicted rows, forms are not."
)
ELASTIC, EAGLE = "Elastic-SD", "EAGLE3"
SCHEMES = {ELASTIC: theme.VERMILLION, EAGLE: theme.BLUE, "Quant-SD": theme.ORANGE, "SLM-SD": theme.GREEN}
OURS = "elmoe3d"
PLATFORMS = {
    OURS: ("ELMoE-3D", theme.VERMILLION),
    "hb-xpu": ("HB-xPU", theme.BLUE),
    "xpu-nmp": ("xPU-NMP", theme.GREEN),
    "xpu-pim": ("xPU-PIM", theme.ORANGE),
    "xpu-logicpim": ("xPU-LogicPIM", theme.PURPLE),
    "xpu": ("xPU", theme.QUIET),
}
PLATFORM_COLOURS = dict(PLATFORMS.values())
SCHEME_NAMES = list(SCHEMES)
MODES = {"ar": "AR", "sd": "SD"}
PANELS = {"ar": "AR: one token a step", "sd": "SD: draft and verify", "best": "the better of the two"}
MODE_NAMES = list(MODES.values())
LAWS = {
    "paper_law": "paper law",
    "physical": "physical bound",
    "che": "Che approximation",
    "lru": "LRU, replayed",
    "events": "events of a tape",
}
LAW_COLOURS = dict(zip(LAWS.values(), (theme.VERMILLION, theme.BLUE, theme.PURPLE, theme.INK, theme.GREEN), strict=True))
LAW_DASHES = {words: [1, 0] if name in ("lru", "events") else [6, 4] for name, words in LAWS.items()}
FORM_DASHES = {"recorded": [1, 0], "power-law": [6, 4], "implied": [1, 3]}
LAW, LEVEL = (
    Control("law", "Hit model", LAWS),
    Control("level", "Level of the fit", {"L0": "L0: one exponent", "L1": "L1: two exponents"}),
)
# Series -> what of a point the sentence tells.
SWEEPS = {"hb-capacity": "{at:g} GiB", "hb-bandwidth": "{at:,.0f} GB/s", "context": "{at:,.0f} tokens"}
MEAN_ERRORS = {words: f"Phi_{words} error, open rows, mean" for words in MODES.values()}  # blocks of the study's checks
LEGEND = "top columns=6"
PLAIN_LEGEND = "top columns=6 symbolType=circle symbolStrokeWidth=0"
STRENGTH = "top symbolType=square"
HEADER = "bold labelLimit=400"
MODE_DASHES = {"AR": [6, 4], "SD": [1, 0]}  # as the paper's Figure 14
LEVEL_SHAPES = {"L1": "circle", "L0": "triangle-up"}
PASSES = {"AR": theme.BLUE, "SD verify": theme.VERMILLION}
PASS_PARTS = {"static": "static weights and KV", "experts": "experts"}
PASS_COLOURS = {
    PASS_PARTS["static"]: theme.BLUE, PASS_PARTS["experts"]: theme.VERMILLION, "HB bends": theme.GREEN, "EXT bends": theme.QUIET,
}  # fmt: skip
PARTS = {
    "static": ("static weights", theme.QUIET),
    "kv": ("KV cache", theme.SKY),
    "embedding": ("input embedding", "#b9c0c9"),
    "draft weights": ("drafter's weights", theme.ORANGE),
    "draft kv": ("drafter's KV", "#f4d58d"),
    "experts": ("experts", theme.BLUE),
    "free": ("free", "#eef0f3"),
}
PLACED = dict(PARTS.values())
JOULES = {
    "static": ("static power", theme.QUIET),
    "ext": ("EXT reads", theme.BLUE),
    "hb": ("HB reads", theme.SKY),
    "compute": ("compute", theme.ORANGE),
    "links": ("links", theme.PURPLE),
}
ENERGY_PARTS = dict(JOULES.values())
TOKENS_OF = {"of different requests": theme.BLUE, "of one request": theme.VERMILLION, "of one prompt": theme.GREEN}
ACCEPTED = {
    "hotness": theme.VERMILLION, "oracle": theme.INK, "lru": theme.BLUE, "static": theme.PURPLE, "random": theme.QUIET,
    "all": theme.GREEN,
}  # fmt: skip
SEEDS = "Bands: least to most of the seeds."

ERRORS, SHARES = "error (%; lower is better)", "share, ratio or rank correlation (%; 100 is best)"
MOST_ERROR = 0.32  # of the axis; larger ones stand at its end
PART_NAMES = PASS_PARTS | {"knee hb": "HB bends", "knee ext": "EXT bends"}
TIERS = {"hb": "HB (fast, small)", "ext": "EXT (LPDDR5, large)"}
CUTS = {
    "lsb_aug": "slice, LSB augmentation", "trunc_sym": "slice, truncated", "round_sym": "rounded",
    "base_sym": "quantised at the width",    "amat": "AMAT", "full": "as loaded",
}  # fmt: skip
