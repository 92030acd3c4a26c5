"""Energy of a decoded token against perplexity, by KV policy, budget and refresh: rows of `kelle_pareto`.

Both are of the embedded model: perplexity as measured, energy by Kelle's closed forms (replay/kelle/step.py) for the same model,
lengths and budget, counted physically over the mean of the decode. What a cache stores is taken from what the live one held: the
bits of a quantised value with its scales, and the share of vectors that AERP keeps as layer inputs. On Kelle's chip a cache that
must not lose bits refreshes within the rated retention time, the others at their own intervals; on the SRAM baseline's only the
first ones run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tokentape.capture import models
from tokentape.capture.kv.evaluate import KVRun
from tokentape.flows.systems.kelle.live import Job, Row
from tokentape.flows.systems.kelle.live_rows import setting_of
from tokentape.flows.systems.kelle.settings import Live, Settings
from tokentape.policies.kv.importance import AERP
from tokentape.policies.kv.refresh import FIRST_US
from tokentape.replay.kelle.setup import CALIBRATED, Setup
from tokentape.replay.kelle.step import decode_step
from tokentape.replay.kelle.systems import BASELINE, KELLE, SYSTEMS, System
from tokentape.replay.kelle.traffic import INPUT_BYTES, kv_bytes_per_token, kv_traffic
from tokentape.replay.kelle.work import PHYSICAL, Work
from tokentape.warehouse.geometry import Geometry, from_config

WORD_BITS = 16.0


def pareto_rows(study: Settings, made: Setup, measured: Mapping[Job, list[Row]]) -> list[Row]:
    """measured: rows of table `quality` by seed; those of series `budget` and of fixed point at some interval are costed."""
    geometry = from_config(models.find(study.live.model).config.to_dict())
    rows = [
        _setting(job, of) | _costs(study.live, made, geometry, system, job, of)
        for job, of in measured.items()
        if job.series == "budget" or (job.series == "refresh" and job.run.storage == "int16" and job.interval_us)
        for system in _systems(made, job)
    ]
    return [row | {"is_front": not any(_beats(other, row) for other in rows)} for row in rows]


def _beats(other: Row, row: Row) -> bool:
    one, two = ((r["decode_energy_j_per_token"], r["perplexity"]) for r in (other, row))
    return one != two and one[0] <= two[0] and one[1] <= two[1]


def _setting(job: Job, rows: list[Row]) -> Row:
    found = [row["perplexity"] for row in rows]
    return setting_of(job, rows) | {"perplexity": sum(found) / len(found), "low": min(found), "high": max(found)}


def _systems(made: Setup, job: Job) -> Iterator[System]:
    """eDRAM at the cache's intervals; SRAM too for caches that lose nothing."""
    if job.interval_us is None:
        yield made.systems[BASELINE]
    yield made.systems[KELLE].on(refresh_interval_s=1e-6 * (job.interval_us or FIRST_US))


def _costs(live: Live, made: Setup, geometry: Geometry, system: System, job: Job, rows: list[Row]) -> Row:
    run = job.run
    work = Work(live.prompt, live.output, live.batch, run.policy.budget)
    knobs = made.knobs[CALIBRATED]
    kv_bytes = sum(row["kv_bytes"] for row in rows) / len(rows)
    plain = replace(system, evicts=True, recomputes=False)
    stored_frac = kv_bytes / (float(kv_traffic(geometry, plain, work, knobs, PHYSICAL).kept_bytes.mean()) / work.batch)
    share = _recomputed_frac(geometry, run, stored_frac)
    if not share:
        work = replace(work, kv_bits=WORD_BITS * stored_frac)
    step = decode_step(geometry, replace(plain, recomputes=share > 0), work, replace(knobs, recomputed_frac=share), PHYSICAL)
    return {
        "kv_bytes": kv_bytes,
        "hardware": SYSTEMS[system.name][0],
        "knobs": CALIBRATED,
        "n_context_tokens": work.n_context_tokens,
        "n_decode_tokens": work.n_decode_tokens,
        "batch": work.batch,
        "interval_s": system.chip.refresh_interval_s if system.chip.is_edram else None,
        "recomputed_frac": share,
        "decode_energy_j_per_token": step.energy_j / work.batch,
        "step_s": step.seconds,
        **step.joules,
    }


def _recomputed_frac(geometry: Geometry, run: KVRun, stored_frac: float) -> float:
    """Of the kept vectors, what AERP stored as layer inputs to get by with this share of the bytes."""
    if not isinstance(run.policy, AERP):
        return 0.0
    input_frac = geometry.hidden * INPUT_BYTES / (kv_bytes_per_token(geometry, PHYSICAL) / geometry.n_layers)
    return (1.0 - stored_frac) / (1.0 - input_frac)
