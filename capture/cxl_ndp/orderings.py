"""What the selector of bit widths is expected to show inside a live model, against uniform widths and against its own reverse.

Expected by the specification of CXL-NDP (section 7), not measured by the paper on models of this size: a row says how it fell.
Half of the experts are hot, as for the paper's Mixtral-8x7B; the others run on replicas made by GPTQ or by rounding to nearest.
"""

from dataclasses import asdict, replace
from functools import cache
from typing import Any

from tokentape.capture import models
from tokentape.capture.cxl_ndp.evaluate import CXLNDPRun, PlainText
from tokentape.capture.cxl_ndp.replicas import ReplicaExperts
from tokentape.capture.live.quality import Cut, evaluate_inside
from tokentape.capture.orderings import DATASET, listed
from tokentape.policies.mixed import MixedPrecision
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import Tape

METHODS = ("gptq", "rtn")
CALIBRATION: dict[str, Any] = {"dataset": "docs", "max_requests": 128}  # text that no window is cut from


class Bench:
    """A model with its replicas by both quantisers, made once for all seeds. cut: a seed's text. Raises ValueError for a tape of
    another model."""

    def __init__(self, loaded: models.Loaded, tape: Tape, cut: Cut = Cut(n_items=32)) -> None:  # noqa: B008 - frozen
        self.loaded, self.cut = loaded, cut
        self.experts = {method: ReplicaExperts(loaded, tape, method) for method in METHODS}
        self.losses = {method: loss_table(tape, method) for method in METHODS}
        self.half = tape.geometry.n_experts // 2


class Lab:
    """One seed's measurements, each made once."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.seed = bench, seed
        self.plain = PlainText(bench.loaded, DATASET, self._run(METHODS[0], MixedPrecision(bench.half)), seed)
        self.row = cache(self._row)

    def _run(self, method: str, policy: MixedPrecision) -> CXLNDPRun:
        experts = self.bench.experts[method]
        made_of = self.bench.losses[method], experts.trace_id, method, lambda loaded: experts
        return CXLNDPRun(policy, *made_of, **asdict(self.bench.cut))

    def _row(self, method: str, policy: MixedPrecision) -> dict[str, Any]:
        return evaluate_inside(self.bench.loaded, DATASET, replace(self._run(method, policy), plain=self.plain), self.seed)

    def perplexity(self, method: str, **policy: Any) -> float:
        """policy: fields of MixedPrecision."""
        return float(self.row(method, MixedPrecision(self.bench.half, **policy))["perplexity"])


ORDERINGS = listed("cxl_ndp")
