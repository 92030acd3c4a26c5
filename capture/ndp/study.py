"""Rows of table `quality` that show what the selector of bit widths recovers inside a live model, as CXL-NDP's Table 3 does.

Half of the experts hot, replicas by both quantisers: uniform widths, the selector, its reverse and its bounds on text and on
items with an answer; then, at two bits on text, alpha, what places the hot experts, and how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from capture import models
from capture.ndp.evaluate import NDPRun, evaluate_ndp
from capture.ndp.orderings import METHODS, Bench, Lab
from policies.mixed import FIXED, FULL, MixedPrecision

ITEMS, N_ITEMS = ("math", "recall"), 64
UNIFORM, SELECTOR, REVERSED = "uniform", "prefix_split", "reversed"
BY_BITS = (
    *((UNIFORM, bits) for bits in (1.0, 2.0, 3.0, 4.0)),
    *((SELECTOR, bits) for bits in (1.5, 2.0, 2.5, 3.0, 3.5)),
    *((REVERSED, bits) for bits in (1.5, 2.0, 2.5, 3.0)),
    *((rule, bits) for rule in ("optimum", "greedy") for bits in (2.0, 3.0)),
)
ON_ITEMS = ((UNIFORM, 2.0), (SELECTOR, 2.0), (REVERSED, 2.0), (UNIFORM, 3.0), (SELECTOR, 3.0))

Setting = tuple[str, MixedPrecision]  # quantiser, policy


def on_text(n_experts: int) -> list[Setting]:
    """Every setting that is measured on text, full precision first."""
    half = n_experts // 2
    found: list[Setting] = [(METHODS[0], MixedPrecision(half, rule=FULL))]
    for method in METHODS:
        found += [(method, MixedPrecision(half, bits, rule)) for rule, bits in BY_BITS]
        found += [(method, MixedPrecision(half, bits, SELECTOR, loss_weight="prefill_share")) for bits in (2.0, 3.0)]
    others = [MixedPrecision(half, alpha=alpha) for alpha in (0.0, 1.0)]
    others += [MixedPrecision(half, placement=name) for name in FIXED if name != "prefill_guided"]
    others += [MixedPrecision(hot, rule=rule) for hot in (0, half // 2, half + half // 2) for rule in (UNIFORM, SELECTOR)]
    return found + [(METHODS[0], policy) for policy in others]


def on_items(n_experts: int) -> list[Setting]:
    """Every setting that answers items."""
    half = n_experts // 2
    full: list[Setting] = [(METHODS[0], MixedPrecision(half, rule=FULL))]
    return full + [(method, MixedPrecision(half, bits, rule)) for method in METHODS for rule, bits in ON_ITEMS]


def quality_rows(
    bench: Bench,
    seeds: Iterable[int] = range(4),
    n_items: int = N_ITEMS,
    progress: Callable[[float, float, str], None] = lambda done, total, name: None,
) -> list[dict[str, Any]]:
    """All settings, each on windows or items of every seed's own."""
    chosen = list(seeds)
    n_experts = 2 * bench.half
    total = len(chosen) * (len(on_text(n_experts)) + len(ITEMS) * len(on_items(n_experts)))
    rows = []
    with models.suitable_threads(bench.loaded.model):
        for seed in chosen:
            for row in _of_seed(bench, seed, n_experts, n_items):
                rows.append(row)
                progress(len(rows), total, row["dataset"])
    return rows


def _of_seed(bench: Bench, seed: int, n_experts: int, n_items: int) -> Iterator[dict[str, Any]]:
    lab = Lab(bench, seed)
    for method, policy in on_text(n_experts):
        yield lab.row(method, policy)
    for dataset in ITEMS:
        for method, policy in on_items(n_experts):
            run = NDPRun(policy, bench.losses[method], n_items=n_items)
            yield evaluate_ndp(bench.loaded, bench.experts[method], dataset, run, seed)
