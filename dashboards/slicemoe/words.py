"""How the SliceMoE page names and draws configurations, and the words beside a chart."""

from collections.abc import Iterable
from typing import Any

import polars as pl

from tokentape.dashboards import theme
from tokentape.dashboards.engine import known, turn_of

STUDY = "Run: tokentape study slicemoe, then tokentape load and tokentape site."
SEEDS = "Bands: least to most of the seeds."
PROXY = (
    "Output error, of outputs taken as unrelated, is a proxy that a replay can see; the figure of proxies has what it is worth."
)
LOADED = "then tokentape load and tokentape site."
RECORD = "tokentape capture --model embedded --dataset math, then tokentape load and tokentape site."
EVALUATE = (
    "tokentape evaluate --model embedded --datasets code --policy slicemoe --param pair=MAT42 --param precision=dbsc --param "
    "budget=hard --param budget.target_frac=0.05 --seeds 4 (again with precision=high-bit and low-bit, and with other targets)"
)
TEXTS = "Seeds read different texts, so their bands are wide; configurations of one seed read the same."
# Configurations in drawing order. AMAT differs from low-bit in its weights alone: where only costs count, the lines coincide.
LOOKS = {
    "high-bit": (theme.BLUE, "circle", [1, 0]),
    "Cache-Prior": (theme.SKY, "cross", [1, 0]),
    "Cumsum": (theme.SKY, "cross", [1, 0]),
    "low-bit": (theme.ORANGE, "square", [1, 0]),
    "low-bit and AMAT": (theme.ORANGE, "square", [1, 0]),
    "AMAT": (theme.GREEN, "diamond", [4, 4]),
    "DBSC": (theme.VERMILLION, "triangle-up", [1, 0]),
    "DBSC + PCW": (theme.PURPLE, "triangle-down", [1, 0]),
}
WARMUPS = {"empty": "empty", "last_layer": "last layer", "random": "random", "pcw": "PCW"}
WARMUP_NAMES = list(WARMUPS.values())
TAU_COLOURS = [theme.SKY, theme.BLUE, theme.INK]  # rising
SIDES = {"baseline": "square", "ours": "circle"}
ORIGINS = {"paper": "diamond", "replay": "circle"}
SERIES = {"prefill": theme.ORANGE, "early": theme.BLUE}
HEADER = "labelFontSize=14 labelLimit=480 labelFontWeight=600"
LEGEND = "top columns=6 symbolStrokeWidth=0"
SHARES = "type=symlog constant=0.001 free tight"  # from a thousandth on; nothing missed, or nothing allowed, still has a place
BUDGETS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1]  # marks of an axis of allowed misses
LEVELS = [0, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1000, 2000, 5000, 1e4, 1e5]
DECADES = [m * 10**n for n in range(13) for m in (1, 2, 5)]
CONFIGURATIONS = {"amat": "AMAT", "dbsc": "DBSC", "dbsc + pcw": "DBSC + PCW", "cumsum": "Cumsum", "cache_prior": "Cache-Prior"}
ROUTERS = {"cache_prior": "Cache-Prior", "max_rank": "Max-Rank", "cumsum": "Cumsum", "buddy": "BuddyMoE", "lru": "LRU"}
SCHEMES = {
    "base_asym": "asymmetric,|at the low width",
    "amat": "AMAT",
    "amat_mid": "AMAT,|mid-point",
    "base_sym": "symmetric,|at the low width",
    "lsb_aug": "symmetric, cut|to the middle",
    "trunc_asym_floor": "low bits zeroed,|high grid",
    "trunc_sym": "symmetric,|truncated",
    "trunc_sym_unscaled": "symmetric,|scale not shifted",
    "trunc_asym": "zero point|not shifted",
    "trunc_sym_unshifted": "symmetric, mid-|point not shifted",
}
SHAPES = ("circle", "square", "diamond", "triangle-up", *theme.SPARE_SHAPES)  # of pairs
METRICS = {"energy_gain": "energy", "speedup": "speed"}
PROXIES = {"strayed": "output error", "lost": "gate mass lost"}
SAME_FRAC = 0.005  # AMAT moves what low-bit moves but for the prompt: where no gain differs by more, both are one line
BOTH = "low-bit and AMAT"
EARLY_STEPS = 10  # the window that the paper's Fig. 10 is of: when its constraint starts to act


def looks(found: Iterable[str]) -> dict[str, Any]:
    """What files of figures call by name: configurations in drawing order, with their looks; unknown ones take a spare one."""
    names = known(LOOKS, found)
    spare = theme.spares()
    each = [LOOKS[name] if name in LOOKS else (*next(spare), [1, 0]) for name in names]
    return {"names": names, **{key: [look[n] for look in each] for n, key in enumerate(("colours", "shapes", "dashes"))}}


def configured(found: pl.DataFrame, column: str = "configuration") -> pl.DataFrame:
    """Configurations by name, in drawing order."""
    named = found.with_columns(pl.col(column).replace(CONFIGURATIONS))
    return named.sort(turn_of(column, LOOKS), maintain_order=True)
