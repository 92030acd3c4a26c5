"""The house look: colours and marks of bounds; of theme.toml how each policy is drawn, and the configuration every chart gets.

Colours are Okabe and Ito's (https://jfly.uni-koeln.de/color/), distinct to colour-blind readers; each policy also has its own
point shape, so that a grey print stays readable. A dashed line is a bound, which sees the future; a dotted one a level to
compare with.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

INK, QUIET, GRID = "#1b1f24", "#5b6470", "#e3e6ea"
BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
DIGITS = 7  # of a number, as a page carries it: fewer would be rounded again where it is shown
# SVG paths, how a bound looks in a legend, and the dashes they stand for.
TWO_DASHES = "M-1.1,-.17H-.2V.17H-1.1ZM.2,-.17H1.1V.17H.2Z"
THREE_DOTS = "M-1.1,-.17H-.7V.17H-1.1ZM-.2,-.17H.2V.17H-.2ZM.7,-.17H1.1V.17H.7Z"
DASHES: dict[str, list[float]] = {TWO_DASHES: [7, 4], THREE_DOTS: [2.5, 3]}
# As files of figures and of words call them.
NAMED: dict[str, str | None] = {
    "ink": INK, "quiet": QUIET, "grid": GRID, "blue": BLUE, "vermillion": VERMILLION, "green": GREEN, "orange": ORANGE,
    "purple": PURPLE, "sky": SKY, "two_dashes": TWO_DASHES, "three_dots": THREE_DOTS, "null": None,
}  # fmt: skip
HEAT = ["#ffffff", "#c6dbef", "#6baed6", "#2171b5", "#08306b"]  # light to dark, so that grey keeps the order
PHASE_COLOURS = {"prefill": ORANGE, "decode": BLUE}


@dataclass(frozen=True)
class Look:
    """How a policy is named and drawn. `drops` completes the sentence "when full, the cache drops ..."."""

    label: str
    drops: str
    colour: str
    shape: str


def read(path: Path) -> dict[str, Any]:
    """A file of the look, with colours and the points of bounds in place of their names."""

    def named(of: Any) -> Any:
        if isinstance(of, dict):
            return {key: named(one) for key, one in of.items()}
        return [named(one) for one in of] if isinstance(of, list) else NAMED.get(of, of)

    return {name: named(of) for name, of in tomllib.loads(path.read_text(encoding="utf-8")).items()}


_LOOK = read(Path(__file__).with_name("theme.toml"))
POLICIES = {name: Look(*row) for name, row in _LOOK["POLICIES"].items()}
CONFIG: dict[str, Any] = _LOOK["CONFIG"]
# Policies of a user's own, in the order they are met.
SPARE_COLOURS = ("#8C510A", "#332288", "#117733", "#882255", "#666666")
SPARE_SHAPES = ("triangle-right", "triangle-left", "wedge", "arrow", "square")
# Operations, devices, regimes: whatever has no look of its own, in the order it is met.
PALETTE = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, *SPARE_COLOURS)
# Labels of a time or energy axis: 0.02 as 20 ms. d3 joins its prefix to the number.
SI_SECONDS, SI_JOULES = (f"replace(format(datum.value, '~s') + '{unit}', regexp('([kmµn]?{unit})$'), ' $1')" for unit in "sJ")


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
