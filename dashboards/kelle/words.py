"""How the Kelle page names and draws systems, readings, parts of the energy and KV policies."""

from __future__ import annotations

from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import Ask, Control, known

LIVE = Control("live", "Live model")
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
RECENT = ("StreamingLLM", "recent only")
SCORED = ("H2O", "AEP", "AEP (mean score)", "AERP", "AERP (mean score)")  # what evicts by accumulated attention
STUDY = "Run: tokentape study kelle, then tokentape load and tokentape site."
NOT_HERE = f"Nothing to draw: not computed, or too little of it fits into the DRAM under this reading. {STUDY}"
DIGITS = 5  # of a number, as the page carries it
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
PAPER, ZERO, PHYSICAL = "paper", "paper, nothing fitted", "physical"
READINGS = {
    PAPER: "as the paper counts, calibrated",
    ZERO: "as the paper counts, nothing fitted",
    PHYSICAL: "physically counted, calibrated",
}
READING = Control("reading", "Reading", READINGS)
PARTS = {
    "DRAM": theme.QUIET,
    "weight SRAM": theme.BLUE,
    "KV memory": theme.GREEN,
    "refresh": theme.VERMILLION,
    "array and special functions": theme.ORANGE,
    "leakage": theme.PURPLE,
}
WORKLOADS = ("LA", "TQ", "QP", "PG19")  # by length
KNOBS = {"calibrated": theme.VERMILLION, "nothing fitted": theme.BLUE}
ON_CHIP = {name: colour for name, colour in PARTS.items() if name != "DRAM"}
TURN = f"toNumber(({theme.literal({name: str(n) for n, name in enumerate(PARTS)})})[datum.part])"  # a part's place
SIZES = {"4 MB": theme.QUIET, "8 MB": theme.BLUE}
TASKS = {"A-c": theme.BLUE, "A-e": theme.ORANGE, "PQ": theme.PURPLE}
GROUPS = {
    "int16, all bits": theme.BLUE, "fp16, all bits": theme.VERMILLION, "HST": theme.ORANGE, "LST": theme.GREEN,
    "MSB": theme.PURPLE, "LSB": theme.SKY,
}  # fmt: skip
GROUP_WORDS = {"HST": "important tokens (HST)", "LST": "the others (LST)", "MSB": "high bits (MSB)", "LSB": "low bits (LSB)"}
MACHINES = {"kelle-sram": "SRAM", "kelle-edram": "eDRAM"}
WAYS = {"uniform": theme.QUIET, "2DRP": theme.VERMILLION}
FORMS = {"as keys and values": theme.QUIET, "as layer inputs": theme.GREEN}
MODELS = {"llama-3.2-3b": theme.VERMILLION, "llama-2-13b": theme.GREEN}
TENSORS = {"X": theme.BLUE, "Q": theme.ORANGE, "K": theme.GREEN, "V": theme.VERMILLION}
PHASES = {"prompt": theme.ORANGE, "decode": theme.BLUE}
MODES = {
    "paper": ("the paper's latencies", theme.VERMILLION, "triangle-up"),
    "physical": ("the array's own", theme.BLUE, "circle"),
}
MODE_COLOURS = {words: colour for words, colour, _ in MODES.values()}
MODE_SHAPES = {words: shape for words, _, shape in MODES.values()}
ROLES = {
    "calibrate": ("fitted to this number", "diamond"),
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


def named(found: pl.DataFrame) -> pl.DataFrame:
    """With `who`: the policy as it is said, with its variant; ways to refresh are not told apart."""
    words = pl.col("policy").replace(NAMES)
    is_plain = (pl.col("variant") == "") | (pl.col("policy") == "kelle")
    both = pl.when(is_plain).then(words).otherwise(pl.format("{} ({})", words, "variant"))
    alone = pl.col("variant").replace_strict(ALONE, default=None, return_dtype=pl.String)
    return found.with_columns(who=pl.coalesce(alone, both))


def first_of(found: pl.DataFrame, column: str, size: int) -> pl.DataFrame:
    """Rows of the first `size` models or tapes."""
    return found.filter(pl.col(column).is_in(found[column].unique().sort().head(size).implode()))


def whos(found: pl.DataFrame) -> dict[str, Any]:
    """What files of figures call by name: policies in the house order, and which have a dashed line."""
    there = known(LOOKS, found["who"])
    dashed = ", ".join(theme.quote(name) for name in there if name in LOOKS and LOOKS[name][2])
    dash = {"condition": {"test": f"indexof([{dashed}], datum.who) >= 0", "value": [5, 3]}, "value": [1, 0]}
    return {"whos": there, "who_dash": dash}


def in_full(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Rows of the readings that have every value of `column`: a panel each, and none of them empty."""
    return frame.filter(pl.col(column).n_unique().over("reading") == pl.col(column).n_unique())


def readings(ask: Ask) -> list[str]:
    """Readings that anything was computed in, in the order of the menu."""
    held = set(ask("readings")["reading"])
    return [name for name in READINGS if name in held]
