"""Coverage of experts by batch: the paper's Table 1, independent draws, and what the store's tapes recorded, band by band."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.flows.grid import load_trace
from tokentape.flows.systems.layered_prefill.settings import PAPER
from tokentape.replay.coverage import PHASES, recorded_by_layer
from tokentape.replay.serving.coverage import IndependentCoverage, PublishedCoverage, published_coverage
from tokentape.replay.trace import Trace
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.load import claims
from tokentape.warehouse.tape import Store

Floats = NDArray[np.float64]
BANDS = ("first third", "middle third", "last third")
MEASURED_ON = "qwen3-30b-a3b"


def coverage_rows(store: Store, correlation: float) -> list[dict[str, Any]]:
    """Rows of coverage_points. correlation: of the fit, prefill tokens that touch as many experts as one decode token."""
    published = published_coverage(claims().to_pylist(), correlation)
    geometry = models.load(MEASURED_ON).geometry
    sizes = np.asarray(2.0 ** np.arange(11))
    rows: list[dict[str, Any]] = []
    for tokens_of in PHASES:
        forms = forms_at(published, geometry, tokens_of, sizes)
        for form, shares in forms.items():
            error = shares / forms["paper_table"] - 1.0 if tokens_of == "decode" else None  # Table 1 is of decodes
            rows += _rows(PAPER, MEASURED_ON, form, tokens_of, "all", sizes, shares, error=error)
    for tape in store.readable():
        if tape.has("routing") and tape.geometry.moe_layers:
            rows += _of_tape(load_trace(store, tape.trace_id), tape.manifest.model_id, published)
    return rows


def error_lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    """A line per tape or paper and kind of token: mean error of each form over all numbers of tokens, all layers together."""
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["recorded_err_frac"] is not None and row["layer_band"] == "all":
            of = errors.setdefault((row["source"], row["tokens_of"]), {})
            of.setdefault(row["form"], []).append(abs(row["recorded_err_frac"]))
    return [
        f"coverage by {tokens_of} tokens of {source}, mean error: "
        + ", ".join(f"{form} {100 * np.mean(of):.1f} %" for form, of in forms.items() if any(of))
        for (source, tokens_of), forms in errors.items()
    ]


def forms_at(published: PublishedCoverage, geometry: Geometry, tokens_of: str, n_tokens: Floats) -> dict[str, Floats]:
    """Shares touched by n_tokens (m,) as the closed forms state them for a model; beyond their tables the last one holds."""
    found = {}
    for form, source in (("paper_table", published), ("independent", IndependentCoverage())):
        table = source.tables(geometry)[1 if tokens_of == "decode" else 0][:, 0]
        found[form] = table[np.minimum(n_tokens.astype(np.int64), len(table) - 1)]
    return found


def _of_tape(trace: Trace, model: str, published: PublishedCoverage) -> Iterable[dict[str, Any]]:
    """Recorded curves of all layers and of each third of them, low and high: the layers' extremes; then the forms beside them."""
    rows: list[dict[str, Any]] = []
    for tokens_of in PHASES:
        if not (trace.pass_kind[trace.row_pass] == PHASES[tokens_of]).any():
            continue
        curves = recorded_by_layer(trace, tokens_of)
        shares = np.array([curve.distinct for curve in curves]) / trace.geometry.n_experts
        sizes, forms = curves[0].n_tokens, forms_at(published, trace.geometry, tokens_of, curves[0].n_tokens)
        bands = {"all": shares}
        if len(curves) >= len(BANDS):
            bands |= dict(zip(BANDS, np.array_split(shares, len(BANDS)), strict=True))
        for band, of in bands.items():
            mean = of.mean(axis=0)
            rows += _rows(trace.trace_id, model, "recorded", tokens_of, band, sizes, mean, of.min(axis=0), of.max(axis=0))
            for form, stated in forms.items():
                rows += _rows(trace.trace_id, model, form, tokens_of, band, sizes, stated, error=stated / mean - 1.0)
    return rows


def _rows(
    source: str,
    model: str,
    form: str,
    tokens_of: str,
    band: str,
    sizes: Floats,
    shares: Floats,
    low: Floats | None = None,
    high: Floats | None = None,
    error: Floats | None = None,
) -> list[dict[str, Any]]:
    return [
        {
            "source": source,
            "model_id": model,
            "form": form,
            "tokens_of": tokens_of,
            "layer_band": band,
            "n_tokens": int(sizes[i]),
            "coverage_frac": float(shares[i]),
            "low": None if low is None else float(low[i]),
            "high": None if high is None else float(high[i]),
            "recorded_err_frac": None if error is None else float(error[i]),
        }
        for i in range(len(sizes))
    ]
