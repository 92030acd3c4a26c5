"""The tables of docs/models.md: python -m bench.docs.models docs/models.md rewrites every `<!-- models NAME -->`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.docs import rewritten, table, write
from tokentape.warehouse.model_tables import HEADINGS, attention_of, cells, windows_of
from tokentape.warehouse.models import Model, shipped


def row(model: Model) -> list[str]:
    """A model under HEADINGS, as text."""
    return ["" if value is None else f"{value:{how}}{unit}" for value, how, unit in cells(model)]


def _shape(model: Model) -> tuple[object, ...]:
    g = model.geometry
    experts = (g.n_experts, g.top_k, g.expert_intermediate, g.shared_intermediate or "") if g.n_experts else ("", "", "", "")
    windows, n_windowed = windows_of(g)
    in_layers = f"{windows[0]} in {n_windowed} layers" if windows else ""
    has_dense = g.n_dense > 0
    return (model.name, g.hidden, attention_of(g), *experts, g.dense_intermediate if has_dense else "", g.vocab, in_layers)


def _shapes() -> str:
    experts = ("experts", "top-k", "expert width", "shared width")
    return table(("model", "hidden", "attention", *experts, "dense FFN", "vocabulary", "window"), map(_shape, shipped()))


def _sources() -> str:
    lines = [(m.name, m.source, m.published.source + (f". {m.note}" if m.note else "")) for m in shipped() if m.published]
    return table(("model", "config", "published count"), lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "counts": lambda: table(HEADINGS, map(row, shipped())),
    "shapes": _shapes,
    "sources": _sources,
}


def refreshed(text: str) -> str:
    """The document with its tables as computed now."""
    return rewritten(text, "models ", lambda words, _: "\n" + BLOCKS[words.split()[1]]())


if __name__ == "__main__":
    write("models docs/models.md", sys.argv[1:], refreshed)
