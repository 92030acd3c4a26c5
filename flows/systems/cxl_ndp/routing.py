"""What routing says of placement: rows of `ndp_hits`, `ndp_similarity` and `ndp_use`, of drawn and of recorded tapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.systems.cxl_ndp.settings import NAME
from hw.ndp_knobs import Knobs
from policies.placement import PLACEMENTS, Capacity
from policies.placement.reactive import EMA
from replay.ndp.decode import fixed
from replay.ndp.hits import Hits, Placement, hits_of
from replay.ndp.routing import NDPRouting, in_batches
from replay.ndp.similarity import Similarity, similarity

Row = dict[str, Any]


def hit_rows(tapes: Sequence[NDPRouting], where: Row, knobs: Knobs, hot_experts: int, seed: int = 0) -> Iterator[Row]:
    """Every fixed placement and the reactive EMA, once per sequence and once per batch, by layer and in all. tapes: one per seed.

    where: model_id, source and origin.
    """
    named: dict[str, Placement] = {name: fixed(name, seed) for name, kind in PLACEMENTS.items() if kind.kind == "fixed"}
    named["ema"] = EMA(knobs.ema_beta)
    for batch in (1, min(knobs.batch, min(tape.n_sequences for tape in tapes))):
        for name, placement in named.items():
            if name == "shuffled_prompts" and min(tape.n_sequences for tape in tapes) < 2 * batch:
                continue  # needs another group's prompt
            found = [_hits(tape, batch, placement, hot_experts) for tape in tapes]
            common = {"study": NAME, **where, "batch": batch, "placement": name, "is_bound": placement.is_bound}
            common |= {"hot_experts": hot_experts, "n_seeds": len(found)}
            yield common | {"layer": None} | _band(np.array([hits.hit_frac for hits in found]))
            by_layer = np.array([hits.by_layer() for hits in found])
            for at, layer in enumerate(tapes[0].layers):
                yield common | {"layer": layer} | _band(by_layer[:, at])


def _hits(tape: NDPRouting, batch: int, placement: Placement, hot_experts: int) -> Hits:
    return hits_of(tape, in_batches(tape.n_sequences, batch), placement, Capacity(hot_experts))


def _band(values: NDArray[np.float64]) -> Row:
    return {"gpu_hit_frac": float(np.median(values)), "low": float(values.min()), "high": float(values.max())}


COSINES = {"own_cosine": "own", "shuffled_cosine": "shuffled", "static_cosine": "static"}
FLAT = {"flat_cosine": "flat", "flat_shuffled_cosine": "flat_shuffled"}


def similarity_rows(tapes: Sequence[NDPRouting], where: Row) -> Iterator[Row]:
    """By layer, and their mean; over seeds the mean."""
    found = [similarity(tape) for tape in tapes]
    common = {"study": NAME, **where, "n_requests": tapes[0].n_sequences, "n_seeds": len(tapes)}
    by_layer = {column: np.mean([_of_layers(one, name) for one in found], axis=0) for column, name in (COSINES | FLAT).items()}
    for at, layer in enumerate(tapes[0].layers):
        yield common | {"layer": layer} | _static({column: float(values[at]) for column, values in by_layer.items()})
    yield common | {"layer": None} | _static({column: float(values.mean()) for column, values in by_layer.items()})


def _of_layers(found: Similarity, name: str) -> NDArray[np.float64]:
    return found.by_layer() if name == "own" else getattr(found, name)


def _static(values: dict[str, float]) -> Row:
    """With the share of the similarity above flat that other prompts have too."""
    own = values["own_cosine"] - values["flat_cosine"]
    shuffled = values["shuffled_cosine"] - values["flat_shuffled_cosine"]
    return values | {"static_frac": shuffled / own if own > 0 else None}


def use_rows(tape: NDPRouting, where: Row, n_requests: int, bin_steps: int) -> Iterator[Row]:
    """Of the first requests that decode, by layer and bin of decode steps."""
    for s in np.flatnonzero(tape.n_decode)[:n_requests]:
        for first in range(0, int(tape.n_decode[s]), bin_steps):
            ids = tape.decode_ids[s, first : min(first + bin_steps, int(tape.n_decode[s]))]
            for at, layer in enumerate(tape.layers):
                expert, n = np.unique(ids[:, at], return_counts=True)
                for e, count in zip(expert.tolist(), n.tolist(), strict=True):
                    yield {
                        "study": NAME,
                        **where,
                        "request_id": int(tape.request_ids[s]),
                        "layer": layer,
                        "first_step": first,
                        "bin_steps": bin_steps,
                        "expert": e,
                        "use_frac": count / ids[:, at].size,
                    }
