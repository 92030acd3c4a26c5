"""Schedulers of a serving engine. The dict maps the name a person types to the class.

Disaggregated is no scheduler of one engine but two engines in series: see replay/serving/run.py.
"""

from tokentape.policies.serving.rule import BatchRule, Scheduler
from tokentape.policies.serving.schedulers import Chunked, Continuous, Disaggregated, Layered, Static
from tokentape.policies.serving.speculation import Speculation

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
