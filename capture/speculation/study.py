"""Acceptance measured inside a model: rows of table `acceptance_points`, every setting with several seeds.

    bits      sum_v min(p, q) on text, by scheme and width: routed experts only, original routing (ELMoE-3D, Fig. 17c)
    pool      accepted length over the size of the pool, by policy, weights as loaded (Fig. 17a)
    batch     accepted length over the requests that share a pool, weights as loaded (Fig. 17b)
    drafters  accepted length of every drafter, chains and trees, greedy and sampled

A seed has text and draws of its own. Prompts are the beginnings of held-out windows. Values are means over seeds, low and high
the least and the largest of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.capture import models
from tokentape.capture.live.loop import Request, Round, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.orderings import DATASET, Effort, Lab
from tokentape.capture.speculation.drafters import drafter_of
from tokentape.capture.speculation.settings import ALL, FULL, DraftSettings
from tokentape.policies.matryoshka import MAT
from tokentape.policies.speculation import POOLS
from tokentape.policies.speculation.metrics import acceptance_metrics
from tokentape.policies.speculation.pool import pool_size

PAIRS = (MAT(8, 4), MAT(8, 3), MAT(8, 2), MAT(4, 2))
SCHEMES = ("lsb_aug", "round_sym", "trunc_sym", "base_sym", "amat")
POOL_FRACS = (0.25, 0.375, 0.5, 0.75)
BATCHES = (1, 2, 4, 8)
GREEDY = Sampling()

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class PointEffort:
    """Text of a seed: prompts to continue, tokens after each, and windows scored whole for `bits`."""

    n_prompts: int = 8
    prompt_tokens: int = 64
    new_tokens: int = 32
    n_whole: int = 40


@dataclass(frozen=True)
class Setting:
    """One run of the loop: a drafter, how tokens are chosen, how many requests share its pool."""

    series: str
    draft: DraftSettings
    temperature: float = 0.0
    batch: int = 1


def settings_of(fracs: Sequence[float] = POOL_FRACS, batches: Sequence[int] = BATCHES) -> list[Setting]:
    """What the series pool, batch and drafters run."""
    bare = DraftSettings(bits=0)
    pools = [Setting("pool", dataclasses.replace(bare, pool=pool, pool_frac=frac)) for pool in POOLS for frac in fracs]
    shared = [
        Setting("batch", dataclasses.replace(bare, pool=pool, pool_frac=0.375), batch=batch)
        for pool in ("hotness", "random")
        for batch in batches
    ]
    drafts = [
        DraftSettings(),
        DraftSettings(width=3),
        DraftSettings("quant"),
        DraftSettings("quant", width=3),
        DraftSettings("ngram"),
    ]
    return pools + shared + [Setting("drafters", draft, temperature) for draft in drafts for temperature in (0.0, 1.0)]


def study_points(
    loaded: models.Loaded,
    seeds: Sequence[int] = range(4),
    effort: PointEffort = PointEffort(),
    settings: Sequence[Setting] | None = None,
    pairs: Sequence[MAT] = PAIRS,
    progress: Progress = lambda done, total, name: None,
) -> list[dict[str, Any]]:
    """Rows of `acceptance_points` without `study`. settings: None for those of `settings_of()`; pairs: of series bits.

    Raises ValueError where the data set has no text for a seed, or the model has no experts to draft with.
    """
    runs = settings_of() if settings is None else list(settings)
    total, done = len(seeds) * (len(runs) + len(pairs)), 0
    labs = [Lab(loaded, seed, Effort(0, effort.prompt_tokens, effort.new_tokens, effort.n_whole)) for seed in seeds]
    rows: list[dict[str, Any]] = []
    with models.suitable_threads(loaded.model):
        for pair in pairs:
            rows += _bits(loaded, labs, pair)
            done += len(seeds)
            progress(done, total, f"bits {pair}")
        for setting in runs:
            found = []
            for lab in labs:
                found.append(measure(loaded, setting, lab.texts[: effort.n_prompts], effort, lab.seed))
                done += 1
                progress(done, total, f"{setting.series} {setting.draft}")
            rows += list(_rows(loaded, setting, found))
    return rows


def measure(
    loaded: models.Loaded, setting: Setting, texts: Sequence[Sequence[int]], effort: PointEffort, seed: int
) -> tuple[dict[str, float], int]:
    """(metrics of one seed, rounds). texts: windows whose first tokens are the prompts."""
    sampling = dataclasses.replace(GREEDY, temperature=setting.temperature)
    requests = [
        Request(i, tuple(ids[: effort.prompt_tokens]), effort.new_tokens, seed=len(texts) * seed + i)
        for i, ids in enumerate(texts)
    ]
    rounds: list[Round] = []
    drafter = drafter_of(loaded, setting.draft, seed=seed)
    with Inside(loaded.model, drafter=drafter) as inside:
        for start in range(0, len(requests), setting.batch):
            group = requests[start : start + setting.batch]
            decode(loaded.model, group, sampling, loaded.stop_ids, loaded.pad_id, inside, on_round=rounds.append)
        found = acceptance_metrics(
            np.array([r.n_accepted for r in rounds]),
            np.array([r.is_clipped for r in rounds]),
            setting.draft.depth,
            setting.draft.width > 1,
        )
        pool = drafter.pool
        if pool is not None and pool.n_restricted:
            n = pool.n_restricted
            found |= {"pool_overlap_frac": pool.overlap / n, "captured_mass_frac": pool.mass / n}
    return found, len(rounds)


def _bits(loaded: models.Loaded, labs: Sequence[Lab], pair: MAT) -> Iterator[dict[str, Any]]:
    for scheme in SCHEMES:
        where = {"series": "bits", "drafter": "quant", "scheme": scheme, "bits_high": pair.high, "bits_low": pair.low}
        values = [lab.acceptance(str(pair), scheme) for lab in labs]
        yield _common(loaded) | where | _banded("acceptance", "1", values) | {"n_rounds": 0}


def _common(loaded: models.Loaded) -> dict[str, Any]:
    n_experts = int(getattr(loaded.model.config.get_text_config(), "num_experts", 0))
    none = {
        "pool_policy": ALL,
        "pool_frac": 1.0,
        "pool_experts": n_experts,
        "batch": 1,
        "depth": 0,
        "width": 1,
        "temperature": 0.0,
    }
    return {"model_id": loaded.source.model_id, "dataset": DATASET, "fidelity": "exact"} | none


def _rows(loaded: models.Loaded, setting: Setting, found: list[tuple[dict[str, float], int]]) -> Iterator[dict[str, Any]]:
    draft, common = setting.draft, _common(loaded)
    where = {
        "series": setting.series,
        "drafter": draft.draft,
        "scheme": draft.scheme or FULL,
        "bits_high": draft.pair.high if draft.pair else 0,
        "bits_low": draft.bits,
        "pool_policy": draft.pool,
        "pool_frac": draft.pool_frac,
        "pool_experts": pool_size(max(1, common["pool_experts"]), draft.pool_frac),
        "batch": setting.batch,
        "depth": draft.depth,
        "width": draft.width,
        "temperature": setting.temperature,
        "n_rounds": sum(n for _, n in found),
    }
    for name in found[0][0]:
        values = [metrics[name] for metrics, _ in found if name in metrics]
        yield common | where | _banded(name, "tokens" if "tau_" in name else "1", values)


def _banded(metric: str, unit: str, values: list[float]) -> dict[str, Any]:
    band = {"value": float(np.mean(values)), "low": min(values), "high": max(values)}
    return {"metric": metric, "unit": unit, "n_seeds": len(values)} | band
