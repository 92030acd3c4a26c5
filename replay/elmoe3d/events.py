"""Rounds of a tape priced draft by draft and verification by verification: what they touch and what of it is resident is counted.

No law of hits and nothing fitted. A tape that drafted has rounds of its own. Of another they are read off its text: a round
verifies the token that is due and the drafted ones behind it, and goes on by as many as are accepted, which is told; what a
rejected draft would have touched is then taken from the text. Requests that go on side by side share the experts' cache.

Elastic-SD holds a pool: hotness of the drafts' own routing says what is wanted, and only what a verification reads can enter
(policies/speculation/pools.py). All others hold an LRU of whole experts per layer, read and filled by every pass in turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.profile import Profile
from tokentape.hw.work import Floats
from tokentape.policies.cache import ExpertCache
from tokentape.policies.lru import LRU
from tokentape.policies.speculation.pools import Hotness, Pools
from tokentape.replay.elmoe3d.laws import HIT_LAWS
from tokentape.replay.elmoe3d.mapping import map_bytes
from tokentape.replay.elmoe3d.points import DRAFT_FRAC, SLICE_FRAC, Setup, as_points
from tokentape.replay.elmoe3d.rows import WRITTEN, measures
from tokentape.replay.elmoe3d.timing import Outcome, evaluate, reads_of
from tokentape.replay.trace import DECODE, Trace

EVENTS = "events"  # among the hit models
Counts = NDArray[np.uint16 | np.uint32]
Bools = NDArray[np.bool_]
Told = dict[str, tuple[Counts | Bools, Bools, float]]


@dataclass(frozen=True, eq=False)
class Texts:
    """What requests chose, counts by expert: prompts (n, L, E), and of each its decoded tokens (T, L, E)."""

    prompts: Counts
    tokens: tuple[Counts, ...]

    def prompts_of(self, batch: int) -> Counts:
        """(batches, L, E), the last batch as full as it is."""
        return np.add.reduceat(self.prompts, np.arange(0, len(self.prompts), batch))

    def side_by_side(self, batch: int) -> list[Counts]:
        """Of every full batch in the requests' order, (T, L, E) of its steps, as long as all members go on."""
        firsts = range(0, len(self.tokens) // batch * batch, batch)
        groups = [self.tokens[first : first + batch] for first in firsts]
        return [sum(of[: min(map(len, group))] for of in group) for group in groups]  # type: ignore[misc]


@dataclass(frozen=True, eq=False)
class Rounds:
    """Rounds of batches: batch (R,) that each is of, prompts (batches, L, E), requests (R,) in it, tokens (R,) that all emit;
    selections of the verification (R, L, E) and of every draft step (R, D, L, E) before a pool restricts them."""

    batch: NDArray[np.int64]
    prompts: Counts
    members: Floats
    tokens: Floats
    verify: Counts
    drafts: Counts


def texts_of(trace: Trace) -> Texts:
    """Of a tape, requests in order."""
    shape = len(trace.geometry.moe_layers), trace.geometry.n_experts
    ids, widths = trace.ids_of(np.arange(trace.row_pass.size))
    of_row = np.repeat(np.arange(widths.size), widths)
    is_decode = trace.pass_kind[trace.row_pass] == DECODE
    _, request = np.unique(trace.row_request, return_inverse=True)
    n = int(request.max()) + 1
    prompts = np.zeros((n, *shape), np.uint32)  # of long ones more than 16 bits hold
    at = of_row[~is_decode[of_row]]
    np.add.at(prompts, (request[at], trace.row_layer[at], ids[~is_decode[of_row]]), 1)
    tokens = []
    for r in range(n):
        mine = is_decode & (request == r)
        positions, step = np.unique(trace.row_position[mine], return_inverse=True)
        found, chosen = np.zeros((positions.size, *shape), np.uint16), mine[of_row]
        found[step[np.cumsum(mine)[of_row[chosen]] - 1], trace.row_layer[of_row[chosen]], ids[chosen]] = 1
        tokens.append(found)
    return Texts(prompts, tuple(tokens))


def of_text(texts: Texts, batch: int, depth: int, accepted_len: float) -> Rounds:
    """Rounds that draft a chain of `depth` and accept so many, on the mean. Raises ValueError where no request is that long."""
    steps = texts.side_by_side(batch)
    starts = [np.floor(np.arange(0.0, len(of) - depth, 1.0 + accepted_len)).astype(np.int64) for of in steps]
    if not sum(map(len, starts)):
        raise ValueError(f"no {batch} requests of the tape decode more than {depth} tokens; give a longer one")
    windows = np.concatenate([of[at[:, None] + np.arange(depth + 1)] for of, at in zip(steps, starts, strict=True)])
    members = np.full(len(windows), float(batch))
    number = np.repeat(np.arange(len(steps)), [len(of) for of in starts])
    verified, tokens = windows.sum(axis=1, dtype=np.uint16), members * (1.0 + accepted_len)
    return Rounds(number, texts.prompts_of(batch), members, tokens, verified, windows[:, :depth])


def of_tape(trace: Trace, texts: Texts, tables: Mapping[str, pl.DataFrame], batch: int) -> Rounds:
    """The tape's own rounds, those of `batch` requests side by side. tables: rounds and node_routing."""
    shape = len(trace.geometry.moe_layers), trace.geometry.n_experts
    requests = {request: i for i, request in enumerate(np.unique(trace.row_request).tolist())}
    group, key = pl.col("request_id").replace_strict(requests) // batch, ["request_id", "round"]
    accepted = tables["rounds"].group_by(key).agg(pl.col("n_accepted").first().cast(pl.Int64)).with_columns(group=group)
    each = accepted.group_by("group", "round").agg(members=pl.len(), tokens=pl.col("n_accepted").sum() + pl.len())
    each = each.sort("group", "round").with_row_index("at")
    nodes = tables["node_routing"].with_columns(
        group=group,
        place=pl.col("layer").replace_strict({layer: i for i, layer in enumerate(trace.geometry.moe_layers)}),
        step=pl.col("pass_id").rank("dense").over(*key, "phase").cast(pl.Int64) - 1,
        chosen=pl.coalesce("natural_ids", "expert_ids"),
    )
    nodes = nodes.join(each.select("group", "round", "at"), on=["group", "round"]).explode("chosen")
    found, depth = {}, 1 + max(nodes.filter(phase="draft")["step"].to_list(), default=0)
    for phase, n_steps in (("verify", 1), ("draft", depth)):
        of = nodes.filter(phase=phase)
        found[phase] = np.zeros((each.height, n_steps, *shape), np.uint16)
        np.add.at(found[phase], tuple(of[name].to_numpy() for name in ("at", "step", "place", "chosen")), 1)
    number, members, tokens = (each[name].to_numpy() for name in ("group", "members", "tokens"))
    of_each = members.astype(np.float64), tokens.astype(np.float64)
    return Rounds(number.astype(np.int64), texts.prompts_of(batch), *of_each, found["verify"][:, 0], found["draft"])


def lru_hits(touched: Bools, slots: int) -> Bools:
    """(S, L, E): of the experts that steps touch, those that a per-layer LRU of so many slots holds at the layer's turn."""
    n_steps, n_layers, n_experts = touched.shape
    found = np.zeros(touched.shape, np.bool_)
    if slots > 0:
        cache = ExpertCache.of_layers(LRU(), [1] * n_layers, n_experts, n_layers * slots, per_layer=True)
        keys = np.nonzero(touched.reshape(n_steps, -1))[1].astype(np.int32)
        widths = touched.sum(axis=2).ravel()
        found[touched] = cache.advance(keys, np.concatenate(([0], np.cumsum(widths[widths > 0]))).astype(np.int64)) > 0
    return found


def pool_hits(rounds: Rounds, slots: int) -> tuple[Bools, Floats]:
    """(R, L, E) of the experts that verifications touch, those in the pool; (R,) experts that enter it in a round."""
    touched, held, entered = rounds.verify > 0, np.zeros(rounds.verify.shape, np.bool_), np.zeros(len(rounds.batch))
    rng, layers = np.random.default_rng(0), np.arange(touched.shape[1])[:, None]
    for i, number in enumerate(rounds.batch):
        if i == 0 or number != rounds.batch[i - 1]:
            pools = Pools(Hotness(), rounds.prompts[number], slots, rng)
        held[i, layers, pools.members] = True
        hotness = rounds.drafts[i].sum(axis=0, dtype=np.int64)
        entered[i] = sum(map(len, pools.verified(pools.wanted(hotness), hotness, touched[i])))
    return held & touched, entered


def played(
    point: pl.DataFrame, setup: Setup, profile: Profile, texts: Texts, warm_tokens: int, own: Rounds | None = None
) -> pl.DataFrame:
    """What `rows.evaluated` makes of a point, by events: means over steps of AR and over rounds, speed-ups of all tokens over all
    seconds, and pool_write_frac, the share of the experts that verifications miss that enters the pool. own: rounds of the tape;
    None: read off its text, at the point's acceptance. warm_tokens: of the first requests, which fill caches and are not
    counted."""
    lawful = point.with_columns(hit_model=pl.lit(next(iter(HIT_LAWS))))
    p = as_points(lawful, setup)
    batch, mapped = int(p.batch[0]), map_bytes(p)
    rounds = own or of_text(texts, batch, int(p.n_draft_steps[0]), float(p.accepted_len[0]))
    steps = np.concatenate(texts.side_by_side(batch))
    counted = slice(min(warm_tokens, len(steps) - 1), None)
    whole, copied = (int(share[0] * p.n_experts[0] + 1e-9) for share in (mapped.share, mapped.copy_share))
    run = partial(_run, lawful, setup, profile)
    ar = run(np.full(len(steps), float(batch)), {"ar": (steps, lru_hits(steps > 0, whole), 1.0)}, counted)
    touched, drafts = rounds.verify > 0, rounds.drafts > 0
    entered, n, depth = np.zeros(len(touched)), len(touched), drafts.shape[1]
    told: Told = {}
    if p.is_elastic[0]:
        slots = int(min(1.0, (2.0 if p.is_sliced[0] else 1.0) * mapped.share[0]) * p.n_experts[0] + 1e-9)
        hits, entered = pool_hits(rounds, slots) if slots else (np.zeros_like(touched), entered)
        entered /= np.maximum((touched & ~hits).sum(axis=(1, 2)), 1)
        drafts &= np.cumsum(drafts, axis=3) <= slots  # a step reads no more than its tokens choose, nor than the pool holds
        told = {"draft": (drafts, drafts, SLICE_FRAC if p.is_sliced[0] else 1.0), "verify": (rounds.verify, hits, 1.0)}
    elif p.is_self[0] and p.is_sliced[0]:
        of_copy = lru_hits(drafts.reshape(-1, *touched.shape[1:]), copied).reshape(drafts.shape)
        told = {"draft": (rounds.drafts, of_copy, DRAFT_FRAC), "verify": (rounds.verify, np.zeros_like(touched), 1.0)}
    else:  # one cache, which drafts of the whole model read and fill too
        passes = np.concatenate([drafts[:, : depth * int(p.is_self[0])], touched[:, None]], axis=1)
        hits = lru_hits(passes.reshape(-1, *touched.shape[1:]), whole).reshape(passes.shape)
        told = {"verify": (rounds.verify, hits[:, -1], 1.0)}
        told = told | ({"draft": (rounds.drafts, hits[:, :-1], 1.0)} if p.is_self[0] else {})
    warm = np.searchsorted(np.cumsum(rounds.tokens / rounds.members), warm_tokens) + 1
    counted = slice(min(int(warm), n - 1), None)
    sd = run(rounds.members, told, counted, depth)
    seconds = sd.round_s.reshape(-1, depth).mean(axis=1)
    tokens, members = rounds.tokens[counted], rounds.members[counted]
    made: dict[str, float | None] = {name: float(np.mean(values)) for name, values in measures(sd).items()}
    made |= {name: float(np.mean(v)) for name, v in measures(ar).items() if name.startswith(("ar_", "xpu_", "resident", "cold"))}
    made["accepted_len"] = float(np.mean(tokens / members)) - 1.0
    xpu_s = float(np.mean(ar.xpu_s))
    phi_ar, phi_sd = xpu_s / float(np.mean(ar.ar.seconds)), float(tokens.sum() / seconds.sum()) * xpu_s / batch
    made |= {"phi_ar": phi_ar, "phi_sd": phi_sd, WRITTEN: float(np.mean(entered[counted])) if p.is_elastic[0] else None}
    best = "sd" if phi_sd > phi_ar else "ar"
    kept = point.with_columns(hit_model=pl.lit(EVENTS), is_measured=pl.col("accepted_len").is_not_null())
    return kept.with_columns(**{name: pl.lit(value) for name, value in made.items()}, best_mode=pl.lit(best))


def _run(
    point: pl.DataFrame, setup: Setup, profile: Profile, members: Floats, told: Told, counted: slice, depth: int = 1
) -> Outcome:
    """The point, once for every step of `members` requests, rounds once for each of their draft steps. told: of passes by name,
    how often each expert is chosen, those hit, and the share of an expert's bytes that is read."""
    times, n = pl.DataFrame({"batch": members[counted].repeat(depth)}), len(members)
    many = as_points(times.join(point.drop("batch"), how="cross"), setup)
    reads = reads_of(many, map_bytes(many))
    for name, (chosen, hits, frac) in told.items():
        chosen = chosen.reshape(n, -1, *chosen.shape[-2:])[counted]
        hits = hits.reshape(n, -1, *hits.shape[-2:])[counted]
        often = depth // chosen.shape[1]
        by_layer = (chosen > 0).sum(axis=3).repeat(often, axis=1).reshape(len(times), -1)
        each = (hits, np.where(hits, chosen, 0), chosen)
        hit, shared, all_chosen = (of.sum(axis=(2, 3)).repeat(often, axis=1).ravel() for of in each)
        n_bytes, of = by_layer.sum(axis=1) * many.expert_bytes * frac, np.maximum(by_layer.sum(axis=1), 1)
        slices = SLICE_FRAC if name == "verify" and many.is_elastic[0] and many.is_sliced[0] else 1.0
        shares = {"hit_frac": slices * hit / of, "lsb_frac": (1.0 - slices) * hit / of}
        shares["shared_frac"] = shared / np.maximum(all_chosen, 1)
        reads[name] = replace(reads[name], experts=by_layer.mean(axis=1), expert_bytes=n_bytes, **shares)
    return evaluate(many, profile, reads=reads)
