"""The Kelle study on hardly any text: every part of it, in seconds."""

from __future__ import annotations

import pytest

from tokentape.capture.kv.orderings import WORD_ORDERINGS
from tokentape.flows.running import run as study_run
from tokentape.flows.systems.kelle import live
from tokentape.flows.systems.kelle.settings import Settings
from tokentape.warehouse.tape import Store

_STUDY = Settings.shipped()
_LIVE = _STUDY.live
_FEW = {"items": 1, "output": 8}
_TRIED = {("full", ""), ("full", "4-bit"), ("aep", ""), ("aerp", ""), ("aerp", "mean score"), ("kelle", "")}
SMALL = _STUDY.model_copy(
    update={
        "live": _LIVE.model_copy(
            update={
                "seeds": (0, 1),
                "prompt": 24,
                "output": 16,
                "caches": tuple(cache for cache in _LIVE.caches if (cache.policy, cache.setting) in _TRIED),
                "budget": _LIVE.budget.model_copy(update={"items": 1, "budgets": (16,)}),
                "recall": _LIVE.recall.model_copy(update={"items": 2, "budgets": (64,)}),
                "refresh": _LIVE.refresh.model_copy(update={"items": 1, "intervals_us": _LIVE.refresh.intervals_us[:2]}),
                "errors": _LIVE.errors.model_copy(update={**_FEW, "rates": (2e-2,)}),
                "orderings": _LIVE.orderings.model_copy(update={"items": 1, "other_items": 1}),
                "divergence": _LIVE.divergence.model_copy(update={**_FEW, "budget": 16}),
                "tape": _LIVE.tape.model_copy(update={**_FEW, "prompt": 48, "budget": 24}),
            }
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
