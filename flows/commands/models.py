"""models: the geometry table, or a config.json, and the parameters, bytes and operations that follow from it."""

from __future__ import annotations

from typing import Annotated

from tokentape.flows.console import number, print_table
from tokentape.flows.options import argument


def models_list() -> None:
    """List the models whose geometry ships with the project, their parameters beside the published counts."""
    from tokentape.warehouse import model_tables, models

    headings = model_tables.HEADINGS
    rows = [[number(*cell) for cell in model_tables.cells(model)] for model in models.shipped()]
    print_table("", headings, rows, numbers=headings[1:])


def models_show(
    name: Annotated[str, argument("MODEL", "A shipped model or the path of a config.json.")],
) -> None:
    """Show what follows from a model's geometry: parameters by part, bytes by format, cache and operations per token.

    \b
    Examples:
      tokentape models show qwen3-30b-a3b
      tokentape models show ./my-model/config.json
    """
    from tokentape.warehouse import model_tables, models

    model = models.load(name)
    print_table(model.name, ("", model.name), model_tables.details(model))
