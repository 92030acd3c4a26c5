"""Measured times of one model's layers on one GPU, as LLMServingSim's profiler writes them, packed for the serving engine's loop.

FOLDER/<model>/meta.yaml (model, gpu, alpha_default by degree) and tpN/ with dense.csv (layer, tokens, time_us), per_sequence.csv
(layer, sequences, time_us), attention.csv (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us: prompts and decodes in one
call) and, with experts, moe.csv (tokens, activated_experts, time_us; of several ep the rows of 1: others are of a narrower model,
what a rank holds). Between points times are linear; beyond them they go on as between the last two. `embedding` and
`final_layernorm` are a step's, `layernorm` comes twice in a layer, all others once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from tokentape.hw.work import Floats

_OF_STEP = ("embedding", "final_layernorm")
_AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
# What the pack begins with: where each table starts in it, and alpha: of what attention would take more if every decode's context
# were the longest, the share that it does.
OF_LAYER, OF_ONCE, OF_SEQUENCE, OF_EXPERTS, OF_ATTENTION, ALPHA = range(6)
N_HEAD = 6


@dataclass(frozen=True, eq=False)
class ByModel:
    """pack: N_HEAD numbers, then all tables behind one another (replay/serving/tables.py reads them)."""

    model: str
    device: str
    source: str
    has_experts: bool
    pack: Floats = field(repr=False)


def find(folder: Path, model: str, degree: int = 1, device: str | None = None, weight_format: str = "bf16") -> ByModel | None:
    """The tables of a model (as its hub names it, or as it ships) at a degree of tensor parallelism; None where the folder has no
    tables by model at all. device, weight_format: that they must be of, where both are told. Raises ValueError naming the file
    that is missing, unreadable or of something else."""
    metas = sorted({*folder.glob("meta.yaml"), *folder.glob("*/meta.yaml")})
    if not metas:
        return None
    told = {meta: _told(meta) for meta in metas}
    chosen = [meta for meta, of in told.items() if _same(of["model"], model)]
    if not chosen:
        raise ValueError(f"{folder}: no tables of {model}; there are {', '.join(of['model'] for of in told.values())}")
    of = told[chosen[0]]
    for name, wanted in (("gpu", device), ("variant", weight_format)):
        if wanted and of.get(name, wanted) != wanted:
            raise ValueError(f"{chosen[0]}: {name} is {of[name]}, not {wanted}; give tables of that, or leave --fits out")
    tables = chosen[0].parent / f"tp{degree}"
    if not tables.is_dir():
        raise ValueError(f"{tables}: no such folder; {chosen[0].parent} has no tables of {degree} GPUs that share a layer")
    alphas = re.findall(r"^ {4}(\d+):\n(?: {6}.*\n)*? {6}alpha_default: ([-+\d.e]+)", chosen[0].read_text(encoding="utf-8"), re.M)
    return _read(tables, of, float(dict(alphas).get(str(degree), 0.0)))


def _same(name: str, other: str) -> bool:
    short, wanted = (of.rsplit("/", 1)[-1].lower() for of in (name, other))
    return short == wanted or short.startswith(f"{wanted}-")


def _told(meta: Path) -> dict[str, str]:
    found = dict(re.findall(r"^(\w+): *'?([^'\n]*?)'?$", meta.read_text(encoding="utf-8"), re.M))
    if "model" not in found:
        raise ValueError(f"{meta}: model is missing")
    return found


def _read(folder: Path, meta: dict[str, str], alpha: float) -> ByModel:
    dense, sequences = _table(folder / "dense.csv", "layer", "tokens"), _table(folder / "per_sequence.csv", "layer", "sequences")
    attention, has_experts = _table(folder / "attention.csv", *_AXES), (folder / "moe.csv").is_file()
    once = pl.col("layer").is_in(_OF_STEP)
    parts = [_curve(dense.filter(~once), "tokens"), _curve(dense.filter(once), "tokens"), _curve(sequences, "sequences")]
    parts.append(_plane(_table(folder / "moe.csv", "tokens", "activated_experts")) if has_experts else np.zeros(0))
    parts.append(_grid(attention))
    starts = N_HEAD + np.cumsum([0, *(part.size for part in parts)])[:-1]
    pack = np.concatenate([starts, [alpha], *parts])
    return ByModel(meta["model"], meta.get("gpu", ""), str(folder), has_experts, pack)


def _table(path: Path, *columns: str) -> pl.DataFrame:
    """The rows of a file, the mean of those that are measured again. Raises ValueError naming what is unusable."""
    sizes = [name for name in columns if name != "layer"]
    try:
        found = pl.read_csv(path)
        whole = pl.col("ep") == 1 if "ep" in found.columns else pl.lit(True)
        rows = found.select(*columns, whole=whole, s=pl.col("time_us").cast(pl.Float64) * 1e-6)
        rows = rows.with_columns(pl.col(*sizes).cast(pl.Float64))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; the columns are {', '.join(columns)}, time_us") from None
    is_good = pl.all_horizontal(pl.col(*sizes, "s").is_finite() & (pl.col(*sizes, "s") >= 0.0)).fill_null(False)
    bad = rows.with_row_index("line", 2).filter(~is_good)["line"].to_list()
    rows, none = rows.filter("whole"), f"it has no rows{' of ep 1' * ('ep' in found.columns)}"
    if bad or not rows.height:
        raise ValueError(f"{path}: " + (f"line {bad[0]}: sizes and times are numbers from 0 on" if bad else none))
    return rows.group_by(*columns, maintain_order=True).agg(pl.mean("s"))


def _axis(values: pl.Series) -> Floats:
    """Points in order, with one beyond where there is only one: times stay there as they are."""
    points = np.unique(values.to_numpy())
    return points if points.size > 1 else np.append(points, points + 1.0)


def _along(at: Floats, x: Floats, y: Floats) -> Floats:
    """Linear between points (n,), and beyond the last as between the last two; y (n, ...)."""
    if x.size == 1:
        return np.repeat(y, at.size, axis=0)
    i = np.clip(np.searchsorted(x, at, side="right") - 1, 0, x.size - 2)
    share = ((np.maximum(at, x[0]) - x[i]) / (x[i + 1] - x[i])).reshape(-1, *(1,) * (y.ndim - 1))
    return np.asarray(y[i] + share * (y[i + 1] - y[i]))


def _curve(rows: pl.DataFrame, axis: str) -> Floats:
    """The last point, and the sum of the layers' seconds at 0, 1, 2, ... up to it."""
    last = int(rows[axis].max() or 0)  # type: ignore[arg-type]
    total = np.zeros(last + 1)
    for _, layer in rows.sort(axis).group_by("layer", maintain_order=True):
        n_times = 2.0 if layer["layer"][0] == "layernorm" else 1.0
        total += n_times * _along(np.arange(last + 1.0), layer[axis].to_numpy(), layer["s"].to_numpy())
    return np.append(float(last), total)


def _plane(rows: pl.DataFrame) -> Floats:
    """The last number of tokens, numbers of active experts, and the seconds (tokens 0, 1, 2, ..., experts)."""
    experts, last = _axis(rows["activated_experts"]), int(rows["tokens"].max())  # type: ignore[arg-type]
    seconds = _brought(rows, [np.arange(last + 1.0), experts], ("tokens", "activated_experts"))
    return np.concatenate([[last, experts.size], experts, seconds.ravel()])


def _grid(rows: pl.DataFrame) -> Floats:
    """The four axes, each after its length, and the seconds over all of them."""
    axes = [_axis(rows[name]) for name in _AXES]
    return np.concatenate([*(np.append(float(axis.size), axis) for axis in axes), _brought(rows, axes, _AXES).ravel()])


def _brought(rows: pl.DataFrame, axes: Sequence[Floats], names: Sequence[str]) -> Floats:
    """Seconds over axes, to which those of the rows are brought one by one: each part was measured on axes of its own."""
    if not names:
        return rows["s"].to_numpy()[:1][0]  # type: ignore[no-any-return]
    parts = [(key[0], of) for key, of in rows.sort(names[0]).group_by(names[0], maintain_order=True)]
    values = np.stack([np.asarray(_brought(of, axes[1:], names[1:])) for _, of in parts])
    return _along(axes[0], np.array([key for key, _ in parts]), values)
