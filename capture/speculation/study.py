"""Acceptance measured inside a model: rows of view `acceptance_points`, every setting with several seeds.

A seed has text and draws of its own. Prompts are the beginnings of held-out windows. Values are means over seeds, low and high
the least and the largest of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.capture import models
from tokentape.capture.live.loop import Request, Round, Sampling, decode
from tokentape.capture.live.slots import Inside
from tokentape.capture.measure import geometry
from tokentape.capture.orderings import Effort, Lab
from tokentape.capture.speculation.drafters import drafter_of
from tokentape.capture.speculation.settings import DraftSettings
from tokentape.policies.matryoshka import MAT
from tokentape.policies.speculation.accept import acceptance_metrics
from tokentape.policies.speculation.pools import pool_size

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setting(DraftSettings):
    """One run of the loop: a drafter, how tokens are chosen, how many requests share its pool."""

    series: str
    temperature: float = 0.0
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.series} {self.draft} {self.pool} {self.pool_frac:g}, batch {self.batch}"

    def row(self, n_experts: int) -> Row:
        """Columns of `acceptance_points` that say what ran. n_experts: of a layer."""
        same = ("series", "scheme", "pool_frac", "batch", "depth", "width", "temperature")
        return {name: getattr(self, name) for name in same} | {
            "drafter": self.draft,
            "bits_high": self.pair.high if self.pair else 0,
            "bits_low": self.bits,
            "pool_policy": self.pool,
            "pool_experts": pool_size(max(1, n_experts), self.pool_frac),
        }


def bits_points(
    loaded: models.Loaded, seeds: Sequence[int], effort: Effort, pairs: Sequence[str], schemes: Sequence[str]
) -> list[Row]:
    """Series bits: sum_v min(p, q) on text by width and scheme of the routed experts, original routing (ELMoE-3D, Fig. 17c).

    Raises ValueError where the data set has no text for a seed.
    """
    labs, rows = [Lab(loaded, seed, effort) for seed in seeds], list[Row]()
    with models.suitable_threads(loaded.model):
        for pair in map(MAT.parse, pairs):
            for scheme in schemes:
                setting = Setting(series="bits", draft="quant", bits=pair.low, scheme=scheme)
                values = [{"acceptance": lab.acceptance(str(pair), scheme)} for lab in labs]
                more = {"dataset": effort.dataset, "bits_high": pair.high, "depth": 0, "n_rounds": 0}
                rows += _rows(loaded, setting, values, more)
    return rows


def loop_points(loaded: models.Loaded, seeds: Sequence[int], effort: Effort, setting: Setting) -> list[Row]:
    """What a setting accepts in the loop; effort.n_items: prompts of a seed.

    Raises ValueError where the data set has no text for a seed, or the model has no experts to draft with.
    """
    with models.suitable_threads(loaded.model):
        found = [measure(loaded, setting, Lab(loaded, seed, effort)) for seed in seeds]
    more = {"dataset": effort.dataset, "n_rounds": sum(n for _, n in found)}
    return list(_rows(loaded, setting, [metrics for metrics, _ in found], more))


def measure(loaded: models.Loaded, setting: Setting, lab: Lab) -> tuple[dict[str, float], int]:
    """(metrics of one seed, rounds)."""
    texts, effort = lab.texts[: lab.effort.n_items], lab.effort
    requests = [
        Request(i, tuple(ids[: effort.prompt_tokens]), effort.decode_tokens, seed=len(texts) * lab.seed + i)
        for i, ids in enumerate(texts)
    ]
    rounds: list[Round] = []
    drafter, sampling = drafter_of(loaded, setting, seed=lab.seed), Sampling(temperature=setting.temperature)
    with Inside(loaded.model, drafter=drafter) as inside:
        for start in range(0, len(requests), setting.batch):
            group = requests[start : start + setting.batch]
            decode(loaded.model, group, sampling, loaded.stop_ids, loaded.pad_id, inside, on_round=rounds.append)
        accepted, is_clipped = np.array([(of.n_accepted, of.is_clipped) for of in rounds]).T
        found = acceptance_metrics(accepted, is_clipped.astype(bool), setting.depth, setting.width > 1)
        pool = drafter.pool
        if pool is not None and pool.n_restricted:
            found |= {"pool_overlap_frac": pool.overlap / pool.n_restricted, "captured_mass_frac": pool.mass / pool.n_restricted}
    return found, len(rounds)


def _rows(loaded: models.Loaded, setting: Setting, found: Sequence[Mapping[str, float]], more: Row) -> Iterator[Row]:
    """A row per metric; found: metrics by seed."""
    n_experts = geometry(loaded.model).n_experts
    where = {"model_id": loaded.source.model_id, "fidelity": "exact"} | setting.row(n_experts) | more
    for name in dict.fromkeys(name for metrics in found for name in metrics):
        values = [metrics[name] for metrics in found if name in metrics]
        told = {"metric": name, "unit": "tokens" if "tau_" in name else "1", "n_seeds": len(values)}
        yield where | told | {"value": float(np.mean(values)), "low": min(values), "high": max(values)}
