"""Placements over recorded routing, and bit widths over measured losses: for `decide place` and `decide precision`."""

from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np

from tokentape.flows.grid import routed
from tokentape.flows.systems.cxl_ndp import routing as cxl_ndp_routing
from tokentape.policies.names import refuse_unknown
from tokentape.policies.placement import PLACEMENTS, Capacity, importance, shares
from tokentape.policies.placement.fixed import PrefillGuided, ShuffledPrompts
from tokentape.policies.registry import find
from tokentape.policies.resolve import resolve
from tokentape.replay.capacity import bytes_of
from tokentape.replay.cxl_ndp.bit_losses import bit_loss_rows
from tokentape.replay.cxl_ndp.hits import Hits, Placement, hit_rows, hits_of, similarity_over_seeds, use_rows
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, in_batches, joined
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.results import write_rows
from tokentape.warehouse.tape import Store

STUDY = "adhoc"
ANY_SIZE = 10**6  # bytes of an expert, of which a share or a number is asked for
USE_REQUESTS, USE_BIN_STEPS = 2, 4  # of expert use by step
SCOPES = ("per-layer", "global")
LOSS_WEIGHTS = ("none", "prefill_share")


def capacity_of(text: str, scope: str, geometry: Geometry, expert_format: str) -> Capacity:
    """From "4 experts", "50%" or "1.5GB" of a layer, whole experts; scope global: as many per layer on average. Raises
    ValueError, also where it is less than one."""
    refuse_unknown("scope", scope, SCOPES)
    n = geometry.n_experts
    in_bytes = text.strip().lower().endswith("b")
    expert_bytes = max(geometry.expert_bytes(expert_format)) if in_bytes else ANY_SIZE
    size = Capacity.of_bytes(bytes_of(text, n * expert_bytes, n), expert_bytes, n, across_layers=scope == "global")
    if not size.experts:
        raise ValueError(f"capacity {text!r} is less than one of a layer's {n} experts; give at least one expert")
    return size


def make(name: str, given: dict[str, Any], weight_source: str = "gate") -> tuple[str, Placement]:
    """A placement with those of the parameters that it has, and its label: the name, and what is not the default, be it of the
    prompts' set that it starts from."""
    made = resolve("place", name, {field.name: given[field.name] for field in fields(find("place", name)) if field.name in given})
    changed = [f"{f.name}={getattr(made, f.name):.12g}" for f in fields(made) if getattr(made, f.name) != f.default]
    starts_placed = getattr(made, "starts_placed", False)
    if starts_placed and given["alpha"] != PrefillGuided.alpha:
        changed.append(f"alpha={given['alpha']:.12g}")
    if weight_source != "gate" and (starts_placed or isinstance(made, PrefillGuided)):
        changed.append(f"weights={weight_source}")
    return " ".join([name, *changed]), made


def placed(
    of: SimpleNamespace, store: Store, names: Sequence[str] | None, batches: Sequence[int]
) -> tuple[CXLNDPRouting, Capacity, dict[tuple[str, int], Hits], list[dict[str, Any]]]:
    """The tapes' routing as one, the room, hits by (placement, batch), and rows of cxl_ndp_similarity, none where there is no
    control. Writes cxl_ndp_hits, cxl_ndp_similarity and cxl_ndp_use.

    of: options of `decide place`. names: None for all that go with the scope, and by no machine's times. Batches of more
    sequences than the tape has are left out, and shuffled prompts of a single group. Expert use by step is kept of two requests.
    Raises ValueError on bad input; nothing is written then.
    """
    manifest = routed(store, store.resolve(of.traces[0]))
    size = capacity_of(of.capacity, of.scope, manifest.geometry, of.expert_format)
    fitting = [
        name
        for name, placement in PLACEMENTS.items()
        if placement.kind in (("fixed",) if size.across_layers else ("fixed", "reactive")) and not placement.by_machine
    ]
    given = {"alpha": of.alpha, "beta": of.beta, "seed": of.seed}
    made = dict(make(name, given, of.weight_source) for name in names or fitting)
    for name, placement in made.items():
        if placement.kind == "event":
            raise ValueError(f"{name} places what a cache misses, step by step: run it in a system (`tokentape compare`)")
    in_batches(max(batches), min(batches))  # what is wrong with them, before a tape is read
    importance(np.ones(1), np.ones(1), of.alpha)
    tapes = [cxl_ndp_routing.of_tape(store, trace, of.weight_source) for trace in of.traces]
    routing = joined(tapes) if len(tapes) > 1 else tapes[0]
    possible = [batch for batch in batches if batch <= routing.n_sequences] or list(batches[:1])
    of_tape: dict[str, object] = {"study": STUDY, "model_id": manifest.model_id}
    of_tape |= {"source": routing.trace_id, "origin": routing.origin}
    found, rows = {}, []
    for batch in possible:
        groups = in_batches(routing.n_sequences, batch)
        if not routing.n_decode[groups].any():
            raise ValueError(f"{routing.trace_id}: no sequence decodes in batches of {batch}; record some with output tokens")
        for label, placement in made.items():
            if isinstance(placement, ShuffledPrompts) and len(groups) < 2:
                continue
            hits = hits_of(routing, groups, placement, size, of.alpha)
            found[label, batch] = hits
            shown = f"{label}, across layers" if size.across_layers else label
            known = {"batch": batch, "placement": shown, "is_bound": placement.is_bound, "hot_experts": size.experts}
            rows += [known | row for row in hit_rows([hits], routing.layers)]
    alike = list(similarity_over_seeds([routing], {}))
    used = use_rows(routing, np.flatnonzero(routing.n_decode > 0)[:USE_REQUESTS], USE_BIN_STEPS)
    for name, table in {"cxl_ndp_hits": rows, "cxl_ndp_similarity": alike, "cxl_ndp_use": used}.items():
        if table:
            write_rows(store, name, [of_tape | row for row in table])
    return routing, size, found, alike


def bit_losses(of: SimpleNamespace, store: Store, mean_bits: Sequence[float]) -> list[dict[str, Any]]:
    """Rows of bit_losses, written. of: options of `decide precision`, whose tape of routing ranks experts and places hot ones.

    Raises ValueError on bad input; nothing is written then.
    """
    refuse_unknown("scope", of.scope, SCOPES)
    refuse_unknown("loss weight", of.loss_weight, LOSS_WEIGHTS)
    tape = store.open(of.losses)
    table, geometry = loss_table(tape, of.method), tape.geometry
    share, n_hot, ranking = None, 0, "loss"
    if of.routing is None:
        if of.loss_weight != "none":
            raise ValueError(f"loss weight {of.loss_weight} needs prompts; give --routing a tape")
        scores = shares(table[None, ..., 0])  # of the layer's losses at 1 bit
        hot = np.zeros(scores.shape, np.bool_)
    else:
        used = cxl_ndp_routing.of_tape(store, of.routing)
        used.refuse_other_model(geometry.n_experts, geometry.top_k, f"losses tape {tape.trace_id}")
        if used.layers != tuple(geometry.moe_layers):
            raise ValueError(f"tape {used.trace_id} has MoE layers {used.layers}, {tape.trace_id} {tuple(geometry.moe_layers)}")
        scores = importance(used.prefill_counts, used.prefill_weights, of.alpha)
        size = capacity_of(of.capacity, "per-layer", geometry, "recorded")
        hot, n_hot, ranking = size.hot(scores), size.experts, f"importance alpha={of.alpha:g}, {used.trace_id}"
        share = shares(used.prefill_counts) if of.loss_weight == "prefill_share" else None
    ranking += "".join((", across layers" if of.scope == "global" else "", ", prefill share" if share is not None else ""))
    known = {
        "study": STUDY, "model_id": tape.manifest.model_id, "source": tape.trace_id, "method": of.method, "ranking": ranking,
        "hot_experts": n_hot,
    }  # fmt: skip
    rows = [
        {**known, **row}
        for mean in mean_bits
        for row in bit_loss_rows(table, tuple(geometry.moe_layers), scores, hot, mean, of.scope == "global", share)
    ]
    write_rows(store, "bit_losses", rows)
    return rows
