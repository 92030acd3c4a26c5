"""A tape of what a policy did inside a model: the routing it applied, the model's own choice beside it, the scores it saw.

    tape = AppliedTape(store, loaded, dataset, run, seed)
    tape.decode(inside, loaded, requests)            # as often as there are batches; each is a shard
    trace_id = tape.finish()

Requests run one after the other, as single-batch serving does, so that the tape can be replayed through the same policy: it then
decides what it decided here. Nothing is recorded where the store holds the tape already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokentape.capture import datasets, measure, models
from tokentape.capture.evaluate import ALL_DOCUMENTS, items_of
from tokentape.capture.live.loop import Outcome, Request, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.plan import DEFAULT_TABLES, digest_of, slug, versions
from tokentape.capture.routing import RoutingCapture
from tokentape.capture.run import PACKAGES, facts_of
from tokentape.capture.shard import AttentionKeep, ShardRecorder
from tokentape.warehouse.tape import Store

if TYPE_CHECKING:
    from tokentape.capture.live.quality import Tried


class AppliedTape:
    """Of one data set and seed of `evaluate_inside`; named by all that decides it. What a stopped run left is removed."""

    def __init__(self, store: Store, loaded: models.Loaded, dataset: str, run: Tried, seed: int) -> None:
        self.loaded, self.dataset, self.seed = loaded, dataset, seed
        lengths = ("prompt_tokens", "decode_tokens", "n_items")
        self.settings = {"policy": run.name, "parameters": run.parameters, **{name: getattr(run, name) for name in lengths}}
        runs_on = [str(loaded.model.device), str(loaded.model.dtype), versions(*PACKAGES)]
        found = items_of(dataset, run.n_items, seed)
        found = datasets.items(dataset, ALL_DOCUMENTS) if found[0].answer is None else found  # which windows are cut from
        parts = json.dumps([self.settings, loaded.source.fingerprint, dataset, digest_of(found), seed, runs_on], sort_keys=True)
        name = f"{slug(loaded.source.model_id)}-{slug(dataset)}-{run.name}"
        self.trace_id = f"{name}-{hashlib.sha256(parts.encode()).hexdigest()[:8]}"
        self.writer = store.writer(self.trace_id)
        self.writer.discard()
        self.n_shards = self._n_passes = 0

    def decode(self, inside: Inside, loaded: models.Loaded, requests: Sequence[Request]) -> list[Outcome]:
        """One request after the other, greedily or as they are forced; recorded."""
        model, state = loaded.model, json.dumps(self.settings, sort_keys=True)
        is_forced = requests[0].forced is not None
        with RoutingCapture(model, with_scores=False, is_first=True) as natural, RoutingCapture(model) as applied:
            recorder = ShardRecorder(applied, None, AttentionKeep(), self._n_passes, natural, state)
            outcomes = []
            for request in requests:
                run = (model, [request], Sampling(), loaded.stop_ids, loaded.pad_id, inside)
                outcomes += decode(*run, on_pass=recorder.record, with_nll=True, with_logits=is_forced)
        if not self.writer.is_finished:
            self.writer.write_shard(self.n_shards, recorder.tables(requests, outcomes, self.dataset, DEFAULT_TABLES))
        self._n_passes += recorder.n_passes
        self.n_shards += 1
        return outcomes

    def finish(self) -> str:
        """Writes the manifest, unless the tape is there, and returns the trace id."""
        if not self.writer.is_finished:
            source, geometry = self.loaded.source.model_id, measure.geometry(self.loaded.model)
            flags = {"policy": f"{self.settings['policy']} ran inside the model: expert_ids are what it applied"}
            told = {"source": source, "dataset": self.dataset, "seed": self.seed, "settings": self.settings, "flags": flags}
            self.writer.finish(DEFAULT_TABLES, self.n_shards, **facts_of(self.loaded, geometry), **told)
        return self.trace_id
