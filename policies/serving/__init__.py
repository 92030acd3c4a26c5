"""Schedulers of a serving engine, one per file. The dict maps the name a person types to the class.

Disaggregated is no scheduler of one engine but two engines in series: see replay/serving/disaggregated.py.
"""

from __future__ import annotations

from tokentape.policies.serving.chunked import Chunked
from tokentape.policies.serving.continuous import Continuous
from tokentape.policies.serving.disaggregated import Disaggregated
from tokentape.policies.serving.layered import Layered
from tokentape.policies.serving.rule import BatchRule, Scheduler
from tokentape.policies.serving.speculation import Speculation
from tokentape.policies.serving.static import Static

__all__ = [
    "SCHEDULERS",
    "AnyScheduler",
    "BatchRule",
    "Chunked",
    "Continuous",
    "Disaggregated",
    "Layered",
    "Scheduler",
    "Speculation",
    "Static",
]

AnyScheduler = Scheduler | Disaggregated
SCHEDULERS: dict[str, type[AnyScheduler]] = {
    "static": Static,
    "orca": Continuous,
    "chunked": Chunked,
    "layered": Layered,
    "disaggregated": Disaggregated,
}
