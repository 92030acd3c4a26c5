"""What the page of tapes calls things, and what it says where it has nothing to draw."""

from tokentape.dashboards import theme
from tokentape.dashboards.experts.words import CYCLE_WORDS, REPLAY_FIRST, SCOPES

__all__ = ["CYCLE_WORDS", "REPLAY_FIRST", "SCOPES"]
RECORD_FIRST = (
    "Nothing to draw: no tape with routing fits. Run: tokentape capture --model embedded --dataset code, then tokentape load "
    "and tokentape site."
)
FORMS = {
    "recorded": theme.BLUE,
    "independent, as often as recorded": theme.GREEN,
    "independent, all alike": theme.ORANGE,
    "no expert twice": theme.QUIET,
}
CONTEXT = {
    "first": ("the first token", theme.VERMILLION),
    "sinks": ("the next three", theme.ORANGE),
    "heavy": ("the most attended tenth of the rest", theme.PURPLE),
    "others": ("the others", "#C9CED6"),
    "recent": ("the last 32", theme.BLUE),
}
CONTEXT_COLOURS = dict(CONTEXT.values())
BESIDE = "datum.trace === trace || datum.trace === beside"
