"""One setting of the comparison: how a batch's experts are placed and quantised, and the systems that then decode it."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokentape.hw.profile import ENDS
from tokentape.hw.work import Floats
from tokentape.policies.bits import BIT_RULES, BitRule, assign
from tokentape.policies.names import unknown
from tokentape.policies.placement import FIXED, FixedPlacement, hot_set, importance, shares
from tokentape.policies.replicas import WIDTHS, levels
from tokentape.policies.resolve import resolve
from tokentape.replay.cxl_ndp.decode import UNITS, Decoded, Placed, place, refuse_other_model, replay, rest_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.system import FP16_BITS, HOBBIT, MONDE, Setup, System, notes, system_of

Row = dict[str, Any]
HEADLINE = "headline"  # series of the paper's setting
COMPARED = ("OURS-3", "OURS-2", MONDE, HOBBIT)
GAUSSIAN_SHAPE = (256, 4096)  # weights whose errors stand in for an expert's


@dataclass(frozen=True, kw_only=True)
class Setting:
    """batch: sequences decoded together. hot_experts: of a layer on the GPU. rule: of policies.bits, for the NDP's experts;
    empty: all have the mean width. overlaps, compute_scales: see System. seed: of a random placement."""

    batch: int
    hot_experts: int
    alpha: float = 0.5
    placement: str = "prefill_guided"
    rule: str = "prefix_split"
    overlaps: bool = False
    compute_scales: bool = True
    seed: int = 0

    def system(self, name: str, made: Setup) -> System:
        """The system of this name with the setting's flags."""
        return system_of(name, made, overlaps=self.overlaps, compute_scales=self.compute_scales)

    def refuse_what_is_not(self, n_experts: int) -> None:
        """Raises ValueError for a placement, rule or alpha that there is not, and for more hot experts than a layer has."""
        _placement(self)
        _rule(self.rule or "uniform")
        importance(np.ones(n_experts), np.ones(n_experts), self.alpha)
        hot_set(np.ones(n_experts), self.hot_experts)


@lru_cache(maxsize=1)
def gaussian_errors() -> tuple[float, ...]:
    """Squared error of round-to-nearest at 1 to 4 bits, over that of the weights, on Gaussian weights."""
    weights = np.random.default_rng(0).standard_normal(GAUSSIAN_SHAPE, np.float32)
    power = float(np.square(weights).mean())
    return tuple(float(np.square(levels(weights, bits).nearest(weights) - weights).mean()) / power for bits in WIDTHS)


def stand_in_losses(
    n_layers: int, n_experts: int, seed: int = 0, spread: float = 0.2, errors: Sequence[float] | None = None
) -> Floats:
    """(L, E, 4) losses without a model: errors (4,) of 1 to 4 bits, by default of Gaussian weights, times a lognormal of an
    expert's own.

    An expert's share of its batch's prompts is left to `widths` (specification 4.4).
    """
    own = np.random.default_rng(seed).lognormal(0.0, spread, (n_layers, n_experts, 1))
    return np.asarray(own * np.asarray(errors or gaussian_errors(), np.float64))


def widths(
    routing: CXLNDPRouting, placed: Placed, losses: Floats, mean_bits: float, rule: str, weighted: bool = True
) -> NDArray[np.int8]:
    """(G, L, E) bits of the NDP's experts, 0 of hot ones. weighted: losses count by the experts' shares of the prompts.

    Raises ValueError for an unknown rule.
    """
    share = shares(routing.prefill_counts[placed.groups].sum(axis=1)) if weighted else None
    return assign(_rule(rule), losses, placed.scores, placed.hot, mean_bits, share=share)


def _rule(name: str) -> BitRule:
    """Raises ValueError for an unknown one, and for one that goes by the gates of a miss."""
    rule = resolve("precision", name)
    if not isinstance(rule, BitRule):
        raise ValueError(f"{name} gives widths to what a cache fetches; of replicas, choose of {', '.join(BIT_RULES)}")
    return rule


def placed_by(routing: CXLNDPRouting, setting: Setting) -> Placed:
    """The setting's placement of every batch."""
    return place(routing, setting.batch, setting.hot_experts, setting.alpha, _placement(setting))


def _placement(setting: Setting) -> FixedPlacement | None:
    """None: guided by the prompts, with the setting's alpha. Raises ValueError for one that is not fixed."""
    name = setting.placement
    if name not in FIXED:
        raise unknown("placement", name, FIXED)
    made = resolve("place", name, {"seed": setting.seed} if name == "random" else {})
    return None if name == "prefill_guided" else made


def run(
    routing: CXLNDPRouting,
    made: Setup,
    setting: Setting,
    systems: Iterable[str] = COMPARED,
    losses: Floats | None = None,
    ends: Sequence[str] = ENDS,
) -> dict[str, Decoded]:
    """Every system's decode of the same batches, by name. losses: (L, E, 4); None: all of the NDP's experts have mean bits. ends:
    of the machine's ranges."""
    refuse_other_model(routing, made)
    placed, found = placed_by(routing, setting), {}
    rest = rest_of(made, routing, placed, ends)
    for name in systems:
        system = setting.system(name, made)
        bits = None
        if losses is not None and setting.rule and system.bits != FP16_BITS:
            bits = widths(routing, placed, losses, system.bits, setting.rule)
        found[system.name] = replay(routing, placed, made, system, bits, rest, ends)
    return found


GAINS = {MONDE: "decode_gain", HOBBIT: "gain_over_hobbit"}
ALL_UNITS = UNITS | dict.fromkeys(GAINS.values(), "x")


def compared(found: Mapping[str, Decoded]) -> dict[str, dict[str, float]]:
    """Metrics by system (decode.UNITS), and where they ran too, the gains over MoNDE and over HOBBIT in tokens per second."""
    metrics = {name: decoded.metrics() for name, decoded in found.items()}
    for of in metrics.values():
        for over, gain in GAINS.items():
            if over in metrics:
                of[gain] = of["tokens_per_s"] / metrics[over]["tokens_per_s"]
    return metrics


@dataclass(frozen=True)
class Variation:
    """One point of a series: what it is called, the setting, and with what. value: the number in `name`."""

    series: str
    name: str
    setting: Setting
    made: Setup
    systems: tuple[str, ...]
    value: float | None = None


def decoded(tape: CXLNDPRouting, seed: int, of: Variation, losses: Floats) -> dict[str, Decoded]:
    """Every system's decode of one tape, at the nominal end."""
    return run(tape, of.made, replace(of.setting, seed=seed), of.systems, losses, ("value",))


def metric_rows(
    of: Variation, by_seed: Sequence[dict[str, dict[str, float]]], fitted: Collection[tuple[str, str]]
) -> Iterator[Row]:
    """Rows of `cxl_ndp_points`, one per system and metric: median and range, without study, source and origin.

    fitted: system and metric of the ratios that the constants were fitted to on this model.
    """
    setting = of.setting
    said = "; ".join(notes(of.made, setting.hot_experts, setting.batch))
    for system in by_seed[0]:
        bits = float(system.removeprefix("OURS-")) if system.startswith("OURS-") else 16.0
        for metric in by_seed[0][system]:
            values = np.array([found[system][metric] for found in by_seed])
            if np.isnan(values).any():  # of an NDP that computes nothing
                continue
            yield {
                "series": of.series,
                "setting": of.name,
                "setting_value": of.value,
                "model_id": of.made.name,
                "hardware": of.made.machine.name,
                "system": system,
                "batch": setting.batch,
                "hot_experts": setting.hot_experts,
                "mean_bits": bits,
                "n_seeds": len(by_seed),
                "role": role(of.series, system, metric, fitted),
                "notes": said,
                "metric": metric,
                "unit": ALL_UNITS[metric],
                "value": float(np.median(values)),
                "low": float(values.min()),
                "high": float(values.max()),
            }


def role(series: str, system: str, metric: str, fitted: Collection[tuple[str, str]]) -> str:
    """calibrate for what the constants were fitted to, predict for the rest of the headline, report for sweeps.

    derived for the NDP's own gain, which is the assumed scaling.
    """
    if series != HEADLINE:
        return "report"
    if metric == "ndp_gain":
        return "derived"
    return "calibrate" if (system, metric) in fitted else "predict"
