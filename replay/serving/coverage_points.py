"""Coverage of experts by number of tokens: a table that was published, independent draws, and what a tape recorded.

Rows of view coverage_points, without the study.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw.coverage import errors
from tokentape.hw.work import Floats
from tokentape.replay.coverage import PHASES, forms_of, recorded, recorded_by_layer
from tokentape.replay.serving.coverage import IndependentCoverage, PublishedCoverage
from tokentape.replay.serving.facts import PAPER
from tokentape.replay.trace import Trace
from tokentape.warehouse.geometry import Geometry

Rows = list[dict[str, Any]]
BANDS = ("first third", "middle third", "last third")  # of the layers
N_DOUBLINGS = 11  # 1, 2, 4, ... tokens of a published table


def of_paper(model: str, geometry: Geometry, published: PublishedCoverage) -> Rows:
    """The forms beside the published table, which is of decodes. model, geometry: that it was measured on."""
    sizes = np.asarray(2.0 ** np.arange(N_DOUBLINGS))
    rows: Rows = []
    for tokens_of in PHASES:
        forms = forms_at(published, geometry, tokens_of, sizes)
        for form, shares in forms.items():
            error = shares / forms["paper_table"] - 1.0 if tokens_of == "decode" else None
            rows += points(form, PAPER, model, tokens_of, "all", sizes, shares, error=error)
    return rows


def of_tape(trace: Trace, model: str, published: PublishedCoverage) -> Rows:
    """Recorded curves of all layers and of each third of them, low and high: the layers' extremes; then the forms beside them."""
    rows: Rows = []
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
            where, mean = (trace.trace_id, model, tokens_of, band, sizes), of.mean(axis=0)
            rows += points("recorded", *where, mean, of.min(axis=0), of.max(axis=0))
            for form, stated in forms.items():
                rows += points(form, *where, stated, error=stated / mean - 1.0)
    return rows


def error_lines(rows: Iterable[dict[str, Any]]) -> list[str]:
    """A line per tape or paper and kind of token: mean error of each form over all numbers of tokens, all layers together."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["recorded_err_frac"] is not None and row["layer_band"] == "all":
            of = found.setdefault((row["source"], row["tokens_of"]), {})
            of.setdefault(row["form"], []).append(abs(row["recorded_err_frac"]))
    return [
        f"coverage by {tokens_of} tokens of {source}, mean error: "
        + ", ".join(f"{form} {100 * np.mean(of):.1f} %" for form, of in forms.items() if any(of))
        for (source, tokens_of), forms in found.items()
    ]


def error_sentences(trace: Trace, published: PublishedCoverage) -> list[str]:
    """A line for decode and one for prefill: mean |form / recorded - 1| over 1, 2, 4, ... tokens; Table 1 among the forms."""
    size = trace.geometry.n_experts, trace.geometry.top_k
    found = []
    for phase, table in zip(("prefill", "decode"), published.tables(trace.geometry), strict=True):
        if not (trace.pass_kind[trace.row_pass] == PHASES[phase]).any():
            continue
        curve = recorded(trace, phase)
        off = errors(forms_of(trace, curve), curve.n_tokens, curve.distinct, *size)
        n = np.minimum(curve.n_tokens.astype(np.int64), len(table) - 1)
        off["paper_table"] = float(np.abs(table[n, 0] * size[0] / curve.distinct - 1.0).mean())
        listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in sorted(off.items(), key=lambda pair: pair[1]))
        found.append(f"{phase} coverage, mean error of the forms against tape {trace.trace_id}, to {n[-1]} tokens: {listed}")
    return found


def forms_at(published: PublishedCoverage, geometry: Geometry, tokens_of: str, n_tokens: Floats) -> dict[str, Floats]:
    """Shares touched by n_tokens (m,) as the closed forms state them for a model; beyond their tables the last one holds."""
    found = {}
    for form, source in (("paper_table", published), ("independent", IndependentCoverage())):
        table = source.tables(geometry)[1 if tokens_of == "decode" else 0][:, 0]
        found[form] = table[np.minimum(n_tokens.astype(np.int64), len(table) - 1)]
    return found


def points(
    form: str,
    source: str,
    model: str,
    tokens_of: str,
    band: str,
    sizes: Floats,
    shares: Floats,
    low: Floats | None = None,
    high: Floats | None = None,
    error: Floats | None = None,
) -> Rows:
    """sizes, shares and what else is there: (m,)."""
    where = {"source": source, "model_id": model, "form": form, "tokens_of": tokens_of, "layer_band": band}
    told = {"n_tokens": sizes.astype(np.int64), "coverage_frac": shares, "low": low, "high": high, "recorded_err_frac": error}
    return pl.DataFrame(where | told).to_dicts()
