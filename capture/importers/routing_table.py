"""Any table of routing -> tape, by the names of its columns: CSV, JSON lines or Parquet, one file or many.

    layer             absolute layer in the model (files = layers: the file's place among the MoE layers instead)
    experts           ids of the experts a token chose: a list (`[8, 26]`, `8;26`), or one id per row, k rows per token and layer
    weights           the same of gate weights; optional
    request, position optional: without a request all rows are one (files = requests: each file is one); without a position, rows
                      of a request and layer count from 0
    phase             `prefill` or `decode` (also prompt, generation, 0, 1, false, true); or one of the two words for all rows, or
                      `widths`: a pass of one token decodes

What a file cannot say is asked for and written into the manifest: which columns were read, in which order the files, and what the
order of rows means. `requests`: nothing; requests stand one after another as they first appear, a prefill as one pass layer by
layer, then a pass per decoded token. `executed`: rows are as the engine ran them; a pass begins as rows.as_executed says.

presets.toml has the layouts of published formats, each with the place that defines it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tokentape.capture.importers import checks, limits
from tokentape.capture.importers.checks import known_top_k
from tokentape.capture.importers.limits import DEFAULT_MAX_BYTES, BadImport
from tokentape.capture.importers.model_config import moe_config
from tokentape.capture.importers.routing_columns import Layout, Place, part_of
from tokentape.capture.importers.rows import RoutedRows, Source, as_executed, no_widths, write_import
from tokentape.capture.importers.table_files import form_of, table
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store


def import_routing(
    paths: Sequence[str | Path],
    store: Store,
    layout: Layout,
    config_path: str | Path | None = None,
    n_experts: int | None = None,
    expert_bytes: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> str:
    """Imports the files as one tape and returns the trace id; importing them again changes nothing.

    The model is that of config.json, or n_experts per layer (and, if known, bytes of an expert). Raises BadImport, OSError.
    """
    files = [Path(path) for path in paths]
    if (config_path is None) == (n_experts is None) and not (config_path is None and layout.stated):
        raise BadImport("give either the model (--model) or the number of experts per layer; the table does not have them")
    if expert_bytes is not None and (config_path is not None or not 0 < expert_bytes <= limits.MAX_LAYER_BYTES):
        raise BadImport(
            f"bytes of an expert lie in 1..{limits.MAX_LAYER_BYTES} and go with a number of experts; a config has them itself"
        )
    config_raw, model_id, geometry = (b"", "unknown", None) if config_path is None else moe_config(Path(config_path))
    contents = limits.read_all(files, max_bytes)
    named = dict[str, str]()

    def part(number: int, path: Path, raw: bytes) -> pl.DataFrame:
        form = layout.form or form_of(path)
        frame, numbers = table(raw, path, form, layout.where, max_bytes, layout.names)
        return part_of(frame, Place(path, numbers), form, layout, number, geometry, named)

    parts = [part(number, path, raw) for number, (path, raw) in enumerate(zip(files, contents, strict=True))]
    if config_path is None and layout.stated:
        n_experts, model_id = _stated(contents, files, layout.stated, n_experts)
    rows = _ordered(parts, layout)
    settings: dict[str, Any] = {
        "importer": "routing",
        "preset": layout.preset,
        "files": [path.name for path in files],
        "files_are": layout.files,
        "form": layout.form,
        "columns": named,
        "phase": layout.columns.get("phase"),
        **{name: getattr(layout, name) for name in ("order", "top_k", "where")},
        "n_experts": n_experts,
        "expert_bytes": expert_bytes,
    }
    if geometry is None:
        geometry = _bare(rows, n_experts or 0, expert_bytes)
    source = Source(
        path=files[0],
        content=(*contents, config_raw, json.dumps(settings, sort_keys=True).encode()),
        model_id=model_id,
        geometry=Geometry(**{**geometry.model_dump(), "top_k": rows.expert_ids.shape[1]}),
        model_top_k=geometry.top_k if config_path is not None else known_top_k(model_id),
        settings=settings,
        flags=_misread(rows, geometry.n_experts) if layout.columns.get("phase") == "widths" else None,
    )
    return write_import(store, source, rows)


def _stated(raws: Sequence[bytes], paths: Sequence[Path], fields: tuple[str, str], n_experts: int | None) -> tuple[int, str]:
    """Experts per layer, as given or else as the first lines of JSON lines say, and the model. Raises BadImport where they do not
    say them, or not all the same."""
    said = list[tuple[Any, ...]]()
    for raw, path in zip(raws, paths, strict=True):
        line = next((line for _, line in limits.json_lines(raw, path)), None)
        said.append(tuple(line.get(field) if isinstance(line, dict) else None for field in fields))
        if said[-1] not in (said[0], (None, None)):
            raise BadImport(
                f"{path}: line 1 says {said[-1]} of {' and '.join(fields)}, {paths[0]} says {said[0]}; import them apart"
            )
    experts, model = n_experts or said[0][0], said[0][1]
    if experts is None:
        raise BadImport(f"{paths[0]}: line 1 has no {fields[0]}; give --model or --n-experts")
    experts = limits.whole(experts, f"{paths[0]}: {fields[0]}", limits.MAX_EXPERTS, 1)
    return experts, limits.words(model or "unknown", f"{paths[0]}: {fields[1]}")


def _ordered(parts: list[pl.DataFrame], layout: Layout) -> RoutedRows:
    """Rows of `parts`, which are taken out, in the order that the layout states, with their passes; experts by falling weight."""
    frame = pl.concat(parts, how="vertical_relaxed")
    parts.clear()
    if len(frame["ids"].list.len().unique()) > 1:
        raise BadImport("the files differ in experts per token; import them apart")
    names = frame["request"].unique(maintain_order=True)
    request = frame["request"].replace_strict(names, pl.Series(range(len(names))), return_dtype=pl.Int64).to_numpy()
    nth = pl.int_range(pl.len()).over("request", "layer")
    position = frame.select(pl.when(pl.col("position").is_null()).then(nth).otherwise("position")).to_series().to_numpy()
    layer, is_decode = frame["layer"].to_numpy().astype(np.int64), frame["is_decode"].to_numpy()
    ids = _matrix(frame.drop_in_place("ids"))
    weights = _matrix(frame.drop_in_place("weights")) if "weights" in frame.columns else None
    if weights is not None:
        for begin in range(0, len(ids), checks.BLOCK_ROWS):
            block = slice(begin, begin + checks.BLOCK_ROWS)
            falling = np.argsort(-weights[block], axis=1, kind="stable")
            ids[block], weights[block] = (np.take_along_axis(of[block], falling, 1) for of in (ids, weights))
    if layout.order == "executed":
        if layout.columns.get("phase") == "widths" and (layer == layer[0]).all():
            raise BadImport(f"all rows are of layer {layer[0]}: where a pass ends is not known; give another --phase than widths")
        if frame["position"].null_count() or layout.columns.get("phase") == "widths":
            counted, width = _as_run(request, layer, is_decode)
            position = counted if frame["position"].null_count() else position
            is_decode = width == 1 if layout.columns.get("phase") == "widths" else is_decode
        return RoutedRows(request, position, layer, as_executed(request, is_decode, layer, position), is_decode, ids, weights)
    last = np.zeros(len(names), np.int64)  # position of a prompt
    np.maximum.at(last, request, np.where(is_decode, -1, position))
    if (early := is_decode & (position < last[request])).any():
        at = int(np.argmax(early))
        told = f"request {names[int(request[at])]!r}: position {position[at]} is decoded, {last[request[at]]} is of a prompt"
        raise BadImport(f"{told}; where turns follow one another, give --order executed")
    step = np.where(is_decode, position + 1, 0)
    order = np.lexsort((position, layer, step, request))
    request, position, layer, is_decode, step = (column[order] for column in (request, position, layer, is_decode, step))
    starts = (np.diff(request) != 0) | (np.diff(step) != 0)
    pass_id = np.concatenate(([0], np.cumsum(starts)))
    return RoutedRows(request, position, layer, pass_id, is_decode, ids[order], None if weights is None else weights[order])


def _as_run(request: np.ndarray, layer: np.ndarray, is_decode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of rows that state none, and how many tokens their pass has: a pass goes on where its request's last one ended. A
    layer with fewer rows has those of the last tokens: llama.cpp computes no others of a prompt in its last layer."""
    passes = as_executed(request, is_decode, layer, np.zeros_like(layer))
    of_layer = ("pass", "layer")
    rows = pl.DataFrame({"request": request, "pass": passes, "layer": layer})
    rows = rows.with_columns(n=pl.len().cast(pl.Int64).over(of_layer), i=pl.int_range(pl.len()).over(of_layer))
    rows = rows.with_columns(width=pl.col("n").max().over("pass"))
    ends = rows.group_by("pass", "request", maintain_order=True).agg(pl.col("width").first())
    rows = rows.join(ends.select("pass", end=pl.col("width").cum_sum().over("request")), "pass", maintain_order="left")
    return rows.select(pl.col("end") - pl.col("n") + pl.col("i")).to_series().to_numpy(), rows["width"].to_numpy()


def _misread(rows: RoutedRows, n_experts: int) -> dict[str, float]:
    """Flag prompt_misread_frac: parts of prompts (a pass in a layer) that name every expert once before any a second time. Then
    the tracer read one token's ranking of all experts as the next tokens' choices (llama.cpp pull request 28544, before its top-k
    was read by strides), and only the first token of each part is right."""
    parts = np.flatnonzero(np.concatenate(([True], (np.diff(rows.pass_id) != 0) | (np.diff(rows.layer) != 0))))
    n_tokens = n_experts // rows.expert_ids.shape[1]
    parts = parts[(np.diff(parts, append=len(rows)) >= n_tokens) & ~rows.is_decode[parts]]
    if n_tokens < 2 or not len(parts):
        return {}
    named = np.sort(rows.expert_ids[parts[:, None] + np.arange(n_tokens)].reshape(len(parts), -1), axis=1)
    misread = float(np.mean((np.diff(named, axis=1) != 0).all(axis=1)))
    return {"prompt_misread_frac": round(misread, 4)} if misread > 0.5 else {}


def _matrix(lists: pl.Series) -> np.ndarray:
    return lists.explode().to_numpy(writable=True).reshape(len(lists), -1)


def _bare(rows: RoutedRows, n_experts: int, expert_bytes: int | None) -> Geometry:
    """What the table and the caller say of a model without a config: no widths."""
    layers = tuple(int(layer) for layer in np.flatnonzero(np.bincount(rows.layer)))
    k = rows.expert_ids.shape[1]
    if not k <= n_experts <= limits.MAX_EXPERTS:
        raise BadImport(f"{n_experts} experts per layer; the rows choose {k}, and no model has more than {limits.MAX_EXPERTS}")
    return no_widths(
        n_layers=max(layers) + 1,
        moe_layers=layers,
        n_experts=n_experts,
        top_k=k,
        recorded_expert_bytes=(expert_bytes,) * len(layers) if expert_bytes else (),
    )
