"""How the Kelle page names and draws systems, readings, parts of the energy and KV policies."""

from tokentape.dashboards import theme

NAMES = {
    "full": "whole cache",
    "streaming": "StreamingLLM",
    "h2o": "H2O",
    "tova": "TOVA",
    "snapkv": "SnapKV",
    "random": "random",
    "aep": "AEP",
    "aerp": "AERP",
    "kelle": "Kelle",
    "oracle": "oracle (bound)",
}
WHOLE, FOUR_BITS = "whole cache", "whole cache (4-bit)"
ALONE = {"recent only": "recent only", "2DRP alone": "whole cache (2DRP)"}  # variants that say more than their policy
# Name -> colour, shape, whether its line is dashed.
LOOKS: dict[str, tuple[str, str, bool]] = {
    WHOLE: (theme.INK, "circle", False),
    FOUR_BITS: (theme.QUIET, "square", True),
    "whole cache (2DRP)": (theme.VERMILLION, "square", True),
    "StreamingLLM": (theme.GREEN, "triangle-up", False),
    "recent only": ("#117733", "triangle-down", True),
    "H2O": (theme.ORANGE, "diamond", False),
    "TOVA": (theme.PURPLE, "square", False),
    "SnapKV": ("#8C510A", "triangle-right", False),
    "AEP": (theme.SKY, "circle", False),
    "AEP (mean score)": ("#882255", "circle", True),
    "AERP": (theme.BLUE, "cross", True),
    "AERP (mean score)": ("#332288", "cross", True),
    "Kelle": (theme.VERMILLION, "triangle-up", False),
    "random": (theme.QUIET, "triangle-left", False),
    "random (unprotected)": ("#999999", "diamond", True),
    "oracle (bound)": (theme.INK, "square", True),
}
DASHED = [name for name, (_, _, is_dashed) in LOOKS.items() if is_dashed]
RECENT = ("StreamingLLM", "recent only")
SCORED = ("H2O", "AEP", "AEP (mean score)", "AERP", "AERP (mean score)")  # what evicts by accumulated attention
STUDY = "Run: tokentape study kelle, then tokentape load and tokentape site."
NOT_HERE = f"Nothing to draw: not computed, or too little of it fits into the DRAM under this reading. {STUDY}"
NAME = "kelle"
BASELINE, KELLE = "Original+SRAM", "Kelle+eDRAM"
SYSTEMS = {
    BASELINE: theme.QUIET,
    "Original+eDRAM": theme.PURPLE,
    "AEP+SRAM": theme.SKY,
    "AERP+SRAM": theme.BLUE,
    KELLE: theme.VERMILLION,
}
# Names are those of answers.mode, so that claims and charts share a menu.
READINGS = {"paper": "as the paper counts", "physical": "physically counted"}
PARTS = {
    "DRAM": theme.QUIET,
    "weight SRAM": theme.BLUE,
    "KV and inputs": theme.GREEN,
    "refresh": theme.VERMILLION,
    "array and special functions": theme.ORANGE,
    "leakage": theme.PURPLE,
}
WORKLOADS = ("LA", "TQ", "QP", "PG19")  # by length
ON_CHIP = {name: colour for name, colour in PARTS.items() if name != "DRAM"}
TURN = f"toNumber(({theme.literal({name: str(n) for n, name in enumerate(PARTS)})})[datum.part])"  # a part's place
SIZES = {"4 MB": theme.QUIET, "8 MB": theme.BLUE}
TASKS = {"A-c": theme.BLUE, "A-e": theme.ORANGE, "PQ": theme.PURPLE}
FLIPPED = {
    "all bits": "all bits alike (Fig. 8a)", "HST": "by token (Fig. 8b)", "LST": "by token (Fig. 8b)", "MSB": "by bit (Fig. 8c)",
    "LSB": "by bit (Fig. 8c)",
}  # fmt: skip
GROUPS = {
    "int16, all bits": theme.BLUE, "fp16, all bits": theme.VERMILLION, "HST": theme.ORANGE, "LST": theme.GREEN,
    "MSB": theme.PURPLE, "LSB": theme.SKY,
}  # fmt: skip
GROUP_WORDS = {"HST": "important tokens (HST)", "LST": "the others (LST)", "MSB": "high bits (MSB)", "LSB": "low bits (LSB)"}
MACHINES = {"kelle-sram": "SRAM", "kelle-edram": "eDRAM"}
WAYS = {"uniform": theme.QUIET, "2DRP": theme.VERMILLION}
FORMS = {"as keys and values": theme.QUIET, "as layer inputs": theme.GREEN}
MODELS = {"llama-3.2-3b": theme.VERMILLION, "llama-2-13b": theme.GREEN}
CURVES = [theme.SKY, theme.ORANGE, theme.VERMILLION, theme.PURPLE, *theme.SPARE_COLOURS * 4]
CHIP = {"array": "array", "special functions": "special functions", "edram": "eDRAM", "sram": "SRAM", "dram": "DRAM"}
TENSORS = {"X": theme.BLUE, "Q": theme.ORANGE, "K": theme.GREEN, "V": theme.VERMILLION}
PHASES = {"prompt": theme.ORANGE, "decode": theme.BLUE}
MODES = {
    "paper": ("the paper's latencies", theme.VERMILLION, "triangle-up"),
    "physical": ("the array's own", theme.BLUE, "circle"),
}
MODE_COLOURS = {words: colour for words, colour, _ in MODES.values()}
MODE_SHAPES = {words: shape for words, _, shape in MODES.values()}
ROLES = {
    "calibrate": ("for calibration", "diamond"),
    "predict": ("predicted", "circle"),
    "report": ("no published number", "square"),
}
TABLE_ROLES = dict(ROLES.values())
ERRORS = "Error bars: ±20 %, which is typical, and ±35 %, the worst met (assumed)"
SEEDS = "Bands: least to most of the seeds, which read different texts."
RANGE = "Means over seeds, which read different texts; the tooltip of a mark has the least and the most of them."
REPLAY = (
    "Run: tokentape study kelle, or tokentape capture with --tables requests,tokens,passes,attention and tokentape decide kv "
    "TRACE --policy aerp --param budget=64 (again with other policies and budgets), then tokentape load and tokentape site."
)
LEGEND = "top columns=6"
SQUARES = "top columns=6 symbolType=square symbolStrokeWidth=0"
WHO_LEGEND = "top columns=5 symbolStrokeWidth=0"
WHO_COLOURS = {name: colour for name, (colour, _, _) in LOOKS.items()}
WHO_SHAPES = {name: shape for name, (_, shape, _) in LOOKS.items()}
HEADER = "bold labelLimit=400"
