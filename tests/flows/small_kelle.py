"""The Kelle study on hardly any text: every part of it, in seconds."""

from __future__ import annotations

import pytest

from tokentape.capture.live.kv_orderings import WORD_ORDERINGS
from tokentape.flows.running import run as study_run
from tokentape.flows.systems.kelle import live
from tokentape.flows.systems.kelle.settings import Inside, Settings
from tokentape.warehouse.tape import Store

_STUDY = Settings.shipped()
_LIVE = _STUDY.live
_FEW = {
    "orderings": {"items": 1},
    "budget": {"items": 1, "budget": 16},
    "recall": {"items": 2, "budget": 64},
    "refresh": {"items": 1, "intervals_us": _LIVE.grid[4].each[1]["intervals_us"][:2]},
    "errors": {"items": 1, "output": 8, "value": 2e-2},
    "divergence": {"items": 1, "output": 8, "budget": 16},
    "tape": {"items": 1, "output": 8, "prompt": 48, "budget": 24},
}
_TRIED = {("full", ""), ("full", "4-bit"), ("aep", ""), ("aerp", ""), ("aerp", "mean score"), ("kelle", "")}


def _small(grid: Inside) -> Inside:
    """Few of its items, caches and numbers."""
    few = _FEW[grid.series]
    of_each = {name: few[name] for name in ("budget", "intervals_us", "value") if name in few}
    each = [fields for fields in grid.each if "policy" not in fields or (fields["policy"], fields.get("setting", "")) in _TRIED]
    given = [fields | {name: of_each[name] for name in of_each if isinstance(fields.get(name), (int, list))} for fields in each]
    own = {name: value for name, value in few.items() if name not in of_each or name in (grid.model_extra or {})}
    return grid.model_copy(update={**own, "each": tuple(given)})


SMALL = _STUDY.model_copy(
    update={
        "live": _LIVE.model_copy(
            update={"seeds": (0, 1), "prompt": 24, "output": 16, "grid": tuple(_small(grid) for grid in _LIVE.grid)}
        )
    }
)


def run(store: Store) -> list[str]:
    """What the study said. Of the orderings only the words' are asked: windows are too short for the others."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "ORDERINGS", WORD_ORDERINGS)
        study_run(SMALL, store, runner="threads", workers=1, say=told.append)
    return told
