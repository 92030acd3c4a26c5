"""A tape with compact scores: the same choices in fewer bytes, and every sliced policy decides as on the exact tape."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from tokentape.capture.run import CaptureSettings, capture
from tokentape.flows import system_runs
from tokentape.flows.tapes import composed, rounds_of, scored_trace
from tokentape.hw.spec import load
from tokentape.policies.slots import system_of
from tokentape.replay.system.recorded import recorded
from tokentape.replay.system.routes import slices_of
from tokentape.replay.system.run import Setting, simulate
from tokentape.replay.system.slicemoe import served
from tokentape.warehouse.tape import Store

SETTINGS = CaptureSettings("embedded", "math", max_requests=3, max_new_tokens=48)


@pytest.fixture(scope="module")
def tapes(tmp_path_factory):
    """The exact tape and the compact one of the same text."""
    store = Store(str(tmp_path_factory.mktemp("tapes")))
    return [store.open(capture(dataclasses.replace(SETTINGS, compact_scores=is_compact), store)) for is_compact in (False, True)]


def test_all_but_the_scores_is_equal_and_they_are_a_third_smaller(tapes):
    exact, compact = tapes
    for table in ("requests", "tokens", "passes", "routing"):
        assert exact.read(table).equals(compact.read(table))
    sizes = [sum(tape.store.fs.size(path) for path in tape.files("scores")) for tape in tapes]
    assert sizes[1] < 0.75 * sizes[0]
    a, b = (tape.read("scores")["scores"].explode().to_numpy().reshape(-1, tape.geometry.n_experts) for tape in tapes)
    assert (np.argsort(-a, axis=1, kind="stable") == np.argsort(-b, axis=1, kind="stable")).all()
    assert 0 < np.abs(a - b).max() < np.abs(a).max() * 2.0**-11
    assert compact.manifest.settings["compact_scores"] is True
    assert "compact_scores" not in exact.manifest.settings


@pytest.mark.parametrize("router", ["lru", "cache_prior", "cumsum", "max_rank"])
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_sliced_policies_decide_the_same(tapes, router, share):
    told = []
    for tape in tapes:
        trace, scores = scored_trace(tape.store, tape.trace_id)
        system = composed({"router": router, "pair": "MAT84"})
        size = int(share * trace.n_keys * sum(slices_of(trace.geometry, system.cache)))
        told.append(served(recorded(trace, scores=scores), system, size).events)
    for field in dataclasses.fields(told[0]):
        assert np.array_equal(getattr(told[0], field.name), getattr(told[1], field.name)), field.name


def test_drafts_are_compact_too(tmp_path):
    from tokentape.capture.speculation.settings import DraftSettings

    tables = ("requests", "tokens", "passes", "routing", "scores", "acceptance", "rounds")
    asked = dataclasses.replace(SETTINGS, max_requests=1, max_new_tokens=12, tables=tables, speculation=DraftSettings("elastic"))
    store = Store(str(tmp_path))
    for table in ("scores", "node_scores"):
        a, b = (
            store.open(capture(dataclasses.replace(asked, compact_scores=is_compact), store)).read(table)
            for is_compact in (False, True)
        )
        assert a.drop("scores").equals(b.drop("scores"))
        ranks = [of["scores"].list.eval(pl.element().rank("ordinal", descending=True)) for of in (a, b)]
        assert ranks[0].equals(ranks[1])
        assert not a["scores"].equals(b["scores"])
    nothing = dataclasses.replace(asked, max_new_tokens=1, compact_scores=True)  # a first token is chosen by the prompt: no draft
    tape = store.open(capture(nothing, store))
    assert tape.read("node_scores").is_empty()
    assert rounds_of(tape).replay().pools == {}
    of = system_runs.tape_of(store, tape.trace_id, None)
    systems = [system_of("elmoe3d", changes) for changes in ({}, {"draft": "none"})]
    assert len({simulate(of, of.requests(), system, load("h100"), Setting()).serving.wall_s for system in systems}) == 1
