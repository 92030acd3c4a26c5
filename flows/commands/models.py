"""models: the geometry table, or a config.json, with the parameters, bytes and operations that follow; what bits cost weights."""

from __future__ import annotations

from typing import Annotated

from tokentape.flows.console import number, print_table, progress_bar
from tokentape.flows.options import FormatOption, JsonOption, OutOption, argument, format_of, option


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


def quantise_report(
    model: Annotated[str, argument("MODEL", "embedded, a .safetensors file, a directory, or a cached hub id owner/name.")],
    pairs: Annotated[str, option("High and low width in bits, comma-separated.")] = "MAT42,MAT84",
    schemes: Annotated[str, option("Comma-separated, of those in docs/quantise.md. [default: all]")] = "",
    group: Annotated[int, option("Weights along the input that share a scale.")] = 32,
    only: Annotated[str, option("experts: the routed experts' matrices; else a regular expression on tensor names.")] = "experts",
    by: Annotated[str, option("all: one total; layer: a row per layer too.")] = "all",
    device: Annotated[str | None, option("cpu, cuda, mps or auto: calculate there in torch. [default: numpy]")] = None,
    format: FormatOption = "table",
    as_json: JsonOption = False,
    out: OutOption = None,
) -> None:
    """Show what each quantisation scheme costs a checkpoint's weights: error and bytes, low-bit slices against the original.

    Tensors are streamed: a checkpoint larger than memory is fine. Errors are of weights, not of answers: those take a live model.

    \b
    Examples:
      tokentape models quantise embedded
      tokentape models quantise Qwen/Qwen3-30B-A3B --pairs MAT84 --schemes base_asym,amat --by layer --format csv
      tokentape models quantise model.safetensors --only 'mlp.(up|down)_proj' --group 128
    """
    import polars as pl

    from tokentape.capture.quantise_report import report
    from tokentape.policies.matryoshka import MAT, SCHEMES
    from tokentape.warehouse.sql import render

    shape = format_of(format, as_json)  # refused before an hour of reading, not after
    if out is not None and not out.parent.is_dir():
        raise ValueError(f"{out.parent}: no such directory; make it or give another --out")
    wanted = [MAT.parse(name) for name in pairs.split(",") if name.strip()]
    names = [name.strip() for name in schemes.split(",") if name.strip()] or list(SCHEMES)
    with progress_bar("quantise") as show:
        rows = report(model, wanted, names, group, only, by, device, show)
    render(pl.DataFrame(rows), shape, out)
