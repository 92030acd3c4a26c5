"""Energy of a decoded token against perplexity, by KV policy, budget and refresh: rows of `kelle_pareto`.

Both are of the embedded model: perplexity as measured, energy by Kelle's closed forms (replay/kelle/step.py) for the same model,
lengths and budget, counted physically over the mean of the decode. What a cache stores is taken from what the live one held: the
bits of a quantised value with its scales, and the share of vectors that AERP keeps as layer inputs. On Kelle's chip a cache that
must not lose bits refreshes within the rated retention time, the others at their own intervals; on the SRAM baseline's only the
first ones run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.policies.kv import KVPolicy
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.refresh import FIRST_US
from tokentape.replay.kelle.rows import Setup
from tokentape.replay.kelle.step import budget_of, decode_steps, kept_bytes, kv_elements
from tokentape.replay.kelle.systems import BASELINE, KELLE, PHYSICAL, PROFILE, SYSTEMS, Shares, System, Work
from tokentape.warehouse.geometry import Geometry

Row = dict[str, Any]
WORD_BITS = 16.0


@dataclass(frozen=True)
class Tried:
    """A cache that was tried inside the model. where: what its row says of it; interval_us: at which it refreshes, None: it loses
    nothing; perplexities, kv_bytes: by seed."""

    where: Mapping[str, Any]
    policy: KVPolicy
    interval_us: float | None
    perplexities: Sequence[float]
    kv_bytes: Sequence[float]


def pareto_rows(made: Setup, geometry: Geometry, work: Work, tried: Iterable[Tried]) -> list[Row]:
    """geometry: of the model; work: lengths and batch of the decode step that is costed."""
    rows = [
        dict(one.where)
        | {"perplexity": sum(one.perplexities) / len(one.perplexities)}
        | {"low": min(one.perplexities), "high": max(one.perplexities)}
        | _costs(geometry, system, replace(work, budget_tokens=one.policy.budget), one)
        for one in tried
        for system in _systems(made, one)
    ]
    points = [(row["decode_energy_j_per_token"], row["perplexity"]) for row in rows]
    return [
        row | {"is_front": not any(one != mine and one[0] <= mine[0] and one[1] <= mine[1] for one in points)}
        for row, mine in zip(rows, points, strict=True)
    ]


def _systems(made: Setup, one: Tried) -> Iterator[System]:
    """eDRAM at the cache's intervals; SRAM too for caches that lose nothing."""
    if one.interval_us is None:
        yield made.systems[BASELINE]
    yield made.systems[KELLE].on({"tiers.kv.refresh_interval_s": 1e-6 * (one.interval_us or FIRST_US)})


def _costs(geometry: Geometry, system: System, work: Work, one: Tried) -> Row:
    kv_bytes, profile = sum(one.kv_bytes) / len(one.kv_bytes), profiles.load(PROFILE)
    plain = replace(system, evicts=True, recomputes=False)
    n_kept = float(np.minimum(PHYSICAL.lengths([work]), budget_of(plain, work)).mean())
    stored_frac = kv_bytes / kept_bytes(geometry, PHYSICAL, n_kept)
    share, interval = _recomputed_frac(geometry, one.policy, stored_frac), system.machine.tiers["kv"].refresh_interval_s
    if not share:
        work = replace(work, kv_bits=WORD_BITS * stored_frac)
    held = Shares(pairs={"0": share}, tokens={"0": share}).once  # whatever is kept
    (step,) = decode_steps(geometry, [(replace(plain, recomputes=share > 0), work)], held, profile, PHYSICAL)
    return {
        "kv_bytes": kv_bytes,
        "hardware": SYSTEMS[system.name][0],
        "n_context_tokens": work.n_context_tokens,
        "n_decode_tokens": work.n_decode_tokens,
        "batch": work.batch,
        "interval_s": interval.value if interval else None,
        "recomputed_frac": share,
        "decode_energy_j_per_token": step.energy_j / work.batch,
        "step_s": step.seconds,
        **step.joules,
    }


def _recomputed_frac(geometry: Geometry, policy: KVPolicy, stored_frac: float) -> float:
    """Of the kept vectors, what AERP stored as layer inputs to get by with this share of the bytes; 0 where they are as large."""
    spared_frac = 1.0 - geometry.hidden / kv_elements(geometry, PHYSICAL)
    return (1.0 - stored_frac) / spared_frac if isinstance(policy, AERP) and spared_frac else 0.0
