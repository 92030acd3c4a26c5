"""The house look: colours, marks and words for each policy, type sizes, and the Vega-Lite configuration every chart gets.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), distinct to colour-blind readers; each policy also has its own
point shape, so that a grey print stays readable. A dashed line is a bound, which sees the future; a dotted one a level to
compare with.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

INK, QUIET, GRID = "#1b1f24", "#5b6470", "#e3e6ea"
BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
NAMED = {"ink": INK, "quiet": QUIET, "grid": GRID, "blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "orange": ORANGE}
NAMED |= {"purple": PURPLE, "sky": SKY}  # as files of figures and of words call them
FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif"
DIGITS = 7  # of a number, as a page carries it: fewer would be rounded again where it is shown
# SVG paths, how a bound looks in a legend, and the dashes they stand for.
TWO_DASHES = "M-1.1,-.17H-.2V.17H-1.1ZM.2,-.17H1.1V.17H.2Z"
THREE_DOTS = "M-1.1,-.17H-.7V.17H-1.1ZM-.2,-.17H.2V.17H-.2ZM.7,-.17H1.1V.17H.7Z"
DASHES: dict[str, list[float]] = {TWO_DASHES: [7, 4], THREE_DOTS: [2.5, 3]}
HEAT = ["#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"]  # light to dark, so that grey keeps the order
PHASE_COLOURS = {"prefill": ORANGE, "decode": BLUE}
# What a paper's number is to us -> words, colour, shape.
ROLES = {
    "calibrate": ("for calibration: a fit may see this number", ORANGE, "diamond"),
    "predict": ("predicted", BLUE, "circle"),
    "report": ("reported only", QUIET, "square"),
}
ROLE_COLOURS = {words: colour for words, colour, _ in ROLES.values()}
HELD = {"holds": (BLUE, "circle"), "missed": (VERMILLION, "diamond")}
HELD_COLOURS = {words: colour for words, (colour, _) in HELD.items()}
HELD_SHAPES = {words: shape for words, (_, shape) in HELD.items()}
ROLE_SHAPES = {words: shape for words, _, shape in ROLES.values()}


@dataclass(frozen=True)
class Look:
    """How a policy is named and drawn. `drops` completes the sentence "when full, the cache drops ..."."""

    label: str
    drops: str
    colour: str
    shape: str


POLICIES: dict[str, Look] = {
    "lru": Look("LRU", "the expert unused for longest", BLUE, "circle"),
    "lfu": Look("LFU (in cache)", "the one least used since it came in", VERMILLION, "square"),
    "lfu-lifetime": Look("LFU (lifetime)", "the one least used since the start", ORANGE, "diamond"),
    "fifo": Look("FIFO", "the one that came in first", GREEN, "triangle-up"),
    "sieve": Look("SIEVE", "the oldest unused since the hand passed", "#44AA99", "M-.5,-.87H.5L1,0L.5,.87H-.5L-1,0Z"),
    "slru": Look("SLRU", "LRU in four segments", "#882255", "M-1,-.4H1V.4H-1Z"),
    "s3-fifo": Look("S3-FIFO", "queues, new experts on probation", "#999933", "M-.4,-1H.4V1H-.4Z"),
    "arc": Look("ARC", "recent against frequent, as ghosts say", "#AA4499", "M0,-1L.8,1L0,.5L-.8,1Z"),
    "lfru": Look("LFRU", "the fewest lookups over age", "#6699CC", "M-1,-1H1L0,1Z"),
    "gdsf": Look("GDSF", "the cheapest to fetch again, by byte", "#997700", "M-1,0L0,-.5L1,0L0,.5Z"),
    "least-stale": Look("least-stale", "of passed layers, what this pass left out", "#994455", "M-1,.6L0,-.6L1,.6Z"),
    "gate-weighted": Look("gate-weighted", "the one of least gate weight", "#004488", "M-.6,-1H.6L1,1H-1Z"),
    "hysteresis": Look("LRU with pins", "the expert unused for longest, no pinned one", "#EE7733", "M-1,-1H0V0H1V1H-1Z"),
    "static": Look("static by frequency", "none: the most used in a profile stay", PURPLE, "triangle-down"),
    "random": Look("random", "any", SKY, "cross"),
    "belady": Look("Belady (bound)", "the one needed last: it sees the future", INK, TWO_DASHES),
    "belady-bypass": Look("Belady + bypass (bound)", "the one needed last, even if new", QUIET, THREE_DOTS),
}
# Policies of a user's own, in the order they are met.
SPARE_COLOURS = ("#8C510A", "#332288", "#117733", "#882255", "#666666")
SPARE_SHAPES = ("triangle-right", "triangle-left", "wedge", "arrow", "square")
# Operations, devices, regimes: whatever has no look of its own, in the order it is met.
PALETTE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, *SPARE_COLOURS)
# Labels of a time or energy axis: 0.02 as 20 ms. d3 joins its prefix to the number.
SI_SECONDS, SI_JOULES = (f"replace(format(datum.value, '~s') + '{unit}', regexp('([kmµn]?{unit})$'), ' $1')" for unit in "sJ")

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": 500, "labelColor": INK, "titleColor": INK,
        "titlePadding": 10, "gridColor": GRID, "domainColor": QUIET, "labelSeparation": 8, "tickColor": QUIET, "labelPadding": 5,
    },
    "header": {"labelFontSize": 13, "labelFontWeight": 600, "labelColor": INK, "titleFontSize": 12.5},
    "legend": {
        "labelFontSize": 12, "titleFontSize": 12.5, "titleFontWeight": 500, "labelColor": INK, "titleColor": INK,
        "labelLimit": 390, "titleLimit": 400, "symbolSize": 90, "symbolStrokeWidth": 2, "rowPadding": 5,
    },
    "line": {"strokeWidth": 2.2},
    "point": {"filled": True, "size": 65, "opacity": 1},
    "title": {"fontSize": 13, "fontWeight": 600, "anchor": "start", "color": INK},
}  # fmt: skip


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each name, repeated where there are more names than colours."""
    return {name: PALETTE[n % len(PALETTE)] for n, name in enumerate(names)}


def label(policy: str) -> str:
    """Display name; a policy without a look keeps its own name, without the folder of its file."""
    return POLICIES[policy].label if policy in POLICIES else Path(policy).name


def spares(shapes: Sequence[str] = SPARE_SHAPES) -> Iterator[tuple[str, str]]:
    """Colours and shapes of what has no look, without end: no pair comes again before all have come."""
    turns = range(len(shapes))
    return cycle([(colour, shapes[(n + turn) % len(shapes)]) for turn in turns for n, colour in enumerate(SPARE_COLOURS)])


def lines(policies: Iterable[tuple[str, str, bool]]) -> dict[str, Any]:
    """What files of figures call by name: labels of (policy, label, is_bound) triples in the house order, with their looks;
    spelled: a label with what the policy drops, as a Vega expression.

    A policy with several parameter sets has a label for each; all but its first take a spare look.
    """
    turns, drawn, seen = {name: n for n, name in enumerate(POLICIES)}, dict[str, tuple[str, str, str]](), set[str]()
    spare = spares()
    for policy, name, is_bound in sorted(set(policies), key=lambda one: (turns.get(one[0], len(turns)), *one)):
        look = POLICIES.get(policy)
        sentence = f"{look.drops}: {name}" if look else name
        if look and policy not in seen:
            drawn[name] = look.colour, look.shape, sentence
        else:
            colour, shape = next(spare)
            drawn[name] = colour, TWO_DASHES if is_bound else shape, sentence
        seen.add(policy)
    colours, shapes, sentences = (list(of) for of in zip(*drawn.values(), strict=True))
    dashes = [DASHES.get(shape, [1, 0]) for shape in shapes]
    spelled = f"({literal(dict(zip(drawn, sentences, strict=True)))})[datum.label]"
    return {"names": list(drawn), "colours": colours, "shapes": shapes, "dashes": dashes, "spelled": spelled}


def literal(words: Mapping[str, str]) -> str:
    """A Vega object literal: look a word up in it with (literal)[key]."""
    quoted = (f"{quote(k)}: {quote(v)}" for k, v in words.items())
    return "{" + ", ".join(quoted) + "}"


def quote(text: str) -> str:
    """`text` as a Vega string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
