"""Fits the serving engine's constants to Layered Prefill's chunked runs and microbenchmarks; everything else it predicts.

Nine numbers: seven of profile layered_prefill, how prefill tokens correlate, and the scale of the arXiv prompts. Loss: sum of
((ln simulated / published) / sigma)^2 over claims of role `calibrate`, by least squares on logarithms from generic starts. The
facts leave a flat valley of correlated constants, so every one is pulled to its start. They hardly say how fast decodes read keys
and values: that is the profile's, as measured. Runs are medians over seeds, the same ones at every step. The energy's constants
follow by least squares. Pure: the claims are passed in.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokentape.hw.fit_files import Fit, solver
from tokentape.hw.serving_fits import ServingFitted
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats
from tokentape.policies.serving import Chunked
from tokentape.replay.serving.coverage import published_coverage
from tokentape.replay.serving.facts import MODES, PAPER, ROWS, SI, Fact, facts, simulated, workloads
from tokentape.replay.serving.iteration import IterationCosts, iteration_costs
from tokentape.replay.serving.run import serve
from tokentape.warehouse.geometry import Geometry

# Sigma of the pull to the starts, on logarithms; of the scale, whose 1.0 is the published mean: a tenth of it. Of the pulls that
# keep the fitted rows within their bars, the one that predicts facts left out of the fit best (`left_out`, docs/serving.md).
PULL = 0.25
# Name; start, lowest and highest value of what is fitted.
PARAMETERS: dict[str, tuple[float, float, float]] = {
    "expert_bandwidth_frac": (0.5, 0.1, 1.0),
    "expert_ops_frac": (0.5, 0.1, 1.0),
    "attention_ops_frac": (0.4, 0.05, 1.0),
    "prefill_layer_s": (50e-6, 1e-6, 1e-3),
    "decode_layer_s": (50e-6, 1e-6, 1e-3),
    "prefill_token_s": (5e-8, 1e-9, 1e-6),
    "prefill_iteration_s": (2e-3, 1e-4, 2e-2),
    "prefill_correlation": (4.0, 1.0, 50.0),
    "length_scale": (1.0, 0.7, 1.3),
}
# Fitted too where long prompts are.
LONG_CONTEXT = {"kv_frac_per_decode": (0.2, 0.01, 1.0)}
# Where each stands in the profile layered_prefill.
NUMBERS: dict[str, tuple[tuple[str, str], ...]] = {
    "expert_bandwidth_frac": (("lane.moe", "bytes_frac"),),
    "expert_ops_frac": (("lane.moe", "ops_frac"),),
    "attention_ops_frac": (("lane.pairs", "ops_frac"), ("lane.context", "ops_frac")),
    "kv_frac_per_decode": (("lane.context", "bytes_frac_per_stream"),),
    "prefill_layer_s": (("lane.prefill_layer", "each_s"),),
    "decode_layer_s": (("lane.decode_layer", "each_s"),),
    "prefill_token_s": (("lane.tokens", "each_s"),),
    "prefill_iteration_s": (("lane.prefill_step", "each_s"),),
    "j_per_byte": (("energy", "j_per_byte"),),
    "static_w": (("energy", "static_w"),),
}
# Seeds per run in the steps of the search: of the lengths, the client's arrivals are one draw.
SEEDS = (16, 64)
N_STEPS = 12  # of a search at most
WIDTH = 0.02  # of the derivatives' differences, on logarithms: medians over seeds are not smooth


@dataclass(frozen=True, eq=False)
class Search:
    """Least squares over the constants. mode: which facts (serving_facts.facts); pull, seeds: as PULL and SEEDS."""

    claims: list[Mapping[str, Any]]
    geometry: Geometry
    machine: HardwareSpec
    mode: str
    pull: float
    seeds: tuple[int, ...]

    @property
    def parameters(self) -> dict[str, tuple[float, float, float]]:
        """What is fitted in this mode."""
        return PARAMETERS | (LONG_CONTEXT if self.mode == "long-context" else {})

    def cost(self, values: Floats) -> tuple[IterationCosts, ServingFitted]:
        """What iterations cost, and the constants, at logarithms of the parameters."""
        constants = fitted(dict(zip(self.parameters, np.exp(values).tolist(), strict=True)))
        coverage = published_coverage(self.claims, constants.prefill_correlation)
        return iteration_costs(self.geometry, self.machine, coverage, constants.profile()), constants

    def misses(self, values: Floats, n_seeds: int, wanted: Sequence[Fact]) -> Floats:
        """(facts,) ln(simulated / published) in sigmas."""
        cost, constants = self.cost(values)
        made = simulated(cost, constants.length_scale, range(n_seeds), self.mode)
        return np.array([np.log(made[fact.key] / fact.target) / fact.sigma_frac for fact in wanted])

    def best(self, wanted: Sequence[Fact], say: Callable[[str], None] = lambda line: None) -> Floats:
        """Logarithms of the parameters that come closest to the facts. Raises ImportError without scipy."""
        least_squares = solver()
        start, low, high = np.log(list(self.parameters.values())).T
        sigma = np.where(np.array(list(self.parameters)) == "length_scale", self.pull / 10.0, self.pull)

        def residuals(values: Floats, n_seeds: int) -> Floats:
            return np.concatenate([self.misses(values, n_seeds, wanted), (values - start) / sigma])

        def slopes(values: Floats, n_seeds: int) -> Floats:
            columns = []
            for step in WIDTH * np.eye(values.size):
                above, below = np.minimum(values + step, high), np.maximum(values - step, low)
                columns.append((residuals(above, n_seeds) - residuals(below, n_seeds)) / (above - below).sum())
            return np.column_stack(columns)

        values = start
        for n_seeds in self.seeds:
            found = least_squares(residuals, values, slopes, (low, high), args=(n_seeds,), xtol=1e-3, ftol=1e-3, max_nfev=N_STEPS)
            values = found.x
            say(f"{n_seeds} seeds: loss with the pull {2 * found.cost:.2f} after {found.nfev} steps")
        return np.asarray(values, np.float64)


def fitted(named: Mapping[str, float]) -> ServingFitted:
    """Constants by the parameters' names."""
    numbers: dict[str, dict[str, float]] = {}
    for name, keys in NUMBERS.items():
        for table, key in keys if name in named else ():
            numbers.setdefault(table, {})[key] = named[name]
    return ServingFitted(named["length_scale"], named["prefill_correlation"], numbers)


def calibrate(
    claims: Iterable[Mapping[str, Any]],
    geometry: Geometry,
    machine: HardwareSpec,
    model: str,
    mode: str = MODES[0],
    say: Callable[[str], None] = lambda line: None,
) -> Fit[ServingFitted]:
    """The constants that come closest to the published facts. Deterministic; minutes on one core. Needs scipy.

    mode: long-context fits the limit of the KV bandwidth at small batches too, on one run more (see facts), and is not the
    headline. say: told of the progress. Raises ValueError for claims that may not be fitted on, ImportError without scipy.
    """
    rows = list(claims)
    wanted = facts(rows, mode)
    search = Search(rows, geometry, machine, mode, PULL, SEEDS)
    values = search.best(wanted, say)
    cost, constants = search.cost(values)
    energy, energy_claims = fit_energy(rows, cost, constants.length_scale, range(SEEDS[-1]))
    constants = dataclasses.replace(constants, numbers=constants.numbers | {"energy": energy})
    ids = {claim for fact in wanted for claim in fact.claims} | set(energy_claims)
    ids |= {row["claim_id"] for row in rows if row["paper"] == PAPER and row["metric"] == "expert_coverage"}
    loss = float((search.misses(values, SEEDS[-1], wanted) ** 2).sum())
    return Fit(constants, tuple(sorted(ids)), loss, machine.name, model, mode)


def left_out(search: Search, say: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """How well the facts predict one another: of each group of them (the prompts, the shares, the decode steps, each run) the sum
    of its squared misses, in sigmas, when the constants were fitted on the others. say: told of each."""
    wanted = facts(search.claims, search.mode)
    found: dict[str, float] = {}
    for group in dict.fromkeys(fact.group for fact in wanted):
        values = search.best([fact for fact in wanted if fact.group != group])
        misses = search.misses(values, search.seeds[-1], [fact for fact in wanted if fact.group == group])
        found[group] = float((misses**2).sum())
        say(f"pull {search.pull:g}, without {group}: {found[group]:.1f}")
    return found


def fit_energy(
    claims: Iterable[Mapping[str, Any]], cost: IterationCosts, length_scale: float, seeds: Iterable[int]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Static power and energy per byte by least squares on relative errors of the chunked rows' energy per token; the energy per
    operation stays as assumed, since three rows cannot tell the three apart. Returns the ids of the claims used."""
    numbers = tuple(seeds)
    rows = [row for row in claims if row["paper"] == PAPER and row["metric"] == "energy_per_token" and row["role"] == "calibrate"]
    shares, rest = [], []
    for row in rows:
        rate = float(row["setting"].split("rate=")[1])
        chunk = next(c for c, r in ROWS.items() if r == rate)
        target_j = float(row["value"]) * SI[row["unit"]]
        runs = [serve(requests, Chunked(chunk), cost) for requests in workloads(rate, length_scale, numbers)]
        tokens = np.array([(run.requests.n_prompt_tokens + run.requests.n_output_tokens).sum() for run in runs], np.float64)
        per_run = np.array([(run.wall_s, run.j_of_bytes, run.j_of_ops) for run in runs])
        wall, of_bytes, of_ops = np.median(per_run / tokens[:, None], axis=0) / target_j
        shares.append((wall, of_bytes))
        rest.append(1.0 - of_ops)
    static_w, of_assumed = np.linalg.lstsq(np.array(shares), np.array(rest), rcond=None)[0]
    j_per_byte = of_assumed * next(lane.j_per_byte for lane in cost.profile.lanes if lane.kind == ("expert",))
    if static_w < 0 or j_per_byte < 0:
        raise ValueError(f"energy: the fit gives {static_w:.3g} W and {j_per_byte:.3g} J/B; neither can be negative")
    return {"j_per_byte": float(j_per_byte), "static_w": float(static_w)}, tuple(row["claim_id"] for row in rows)
