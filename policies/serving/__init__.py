"""Schedulers of a serving engine, one per file. The dict maps the name a person types to the class.

Disaggregated is no scheduler of one engine but two engines in series: see replay/disaggregated.py.
"""

from __future__ import annotations

from policies.serving.chunked import Chunked
from policies.serving.continuous import Continuous
from policies.serving.disaggregated import Disaggregated
from policies.serving.layered import Layered
from policies.serving.rule import BatchRule, Scheduler
from policies.serving.static import Static

__all__ = ["SCHEDULERS", "BatchRule", "Chunked", "Continuous", "Disaggregated", "Layered", "Scheduler", "Static"]

SCHEDULERS: dict[str, type[Static] | type[Continuous] | type[Chunked] | type[Layered]] = {
    "static": Static,
    "orca": Continuous,
    "chunked": Chunked,
    "layered": Layered,
}
