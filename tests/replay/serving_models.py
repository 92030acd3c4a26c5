"""Small models, a machine and coverage for tests of the serving engine, as the engine takes them and as the oracle does."""

from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from tokentape.hw.profile import Profile, of_data
from tokentape.hw.serving_fits import ServingFitted
from tokentape.hw.spec import HardwareSpec, load
from tokentape.policies.serving import Speculation
from tokentape.replay.serving.coverage import Coverage, PublishedCoverage
from tokentape.replay.serving.fit import NUMBERS
from tokentape.replay.serving.iteration import IterationCosts, iteration_costs
from tokentape.replay.serving.workload import Requests, synthetic
from tokentape.warehouse.geometry import Geometry

# What is fitted, and what is measured.
PLACES = NUMBERS | {"kv_bandwidth_frac": (("lane.context", "bytes_frac"),)}


class Constants(SimpleNamespace):
    """Of the paper's server, by the names that the oracle knows."""

    def but(self, **others: float) -> "Constants":
        return Constants(**vars(self) | others)

    def profile(self, **others: float | str | bool) -> Profile:
        numbers: dict[str, dict[str, float]] = {}
        for name, keys in PLACES.items():
            for table, key in keys:
                numbers.setdefault(table, {})[key] = getattr(self, name)
        return ServingFitted(1.0, self.prefill_correlation, numbers).profile(**others)


# The constants that the notes on Layered Prefill give (section 5): round numbers for tests, no fit of ours.
NOTED = Constants(
    expert_bandwidth_frac=0.370,
    expert_ops_frac=0.415,
    attention_ops_frac=0.245,
    kv_bandwidth_frac=0.758,
    prefill_layer_s=73.5e-6,
    decode_layer_s=57.5e-6,
    prefill_token_s=0.1204e-6,
    prefill_iteration_s=1.57e-3,
    prefill_correlation=7.47,
    # As the shipped profile has them.
    kv_frac_per_decode=0.0,
    j_per_byte=140e-12,
    static_w=345.0,
    decode_iteration_s=1.5e-3,
    dense_bandwidth_frac=0.75,
    dense_ops_frac=0.60,
    j_per_op=0.8e-12,
)
TABLE_1 = PublishedCoverage(
    2.0 ** np.arange(10), np.array([6.25, 11.7, 21.3, 29.0, 44.5, 54.7, 69.4, 86.3, 93.4, 98.0]) / 100, NOTED.prefill_correlation
)


def tiny(
    n_layers: int = 4, windows: tuple[int, ...] = (), moe_layers: tuple[int, ...] | None = None, shared: int = 0
) -> Geometry:
    """A model whose every size differs from every other; without experts where no layer has them."""
    is_moe = moe_layers != ()
    return Geometry(
        architecture="tiny",
        n_layers=n_layers,
        hidden=512,
        n_heads=6,
        n_kv_heads=2,
        head_dim=64,
        vocab=3000,
        moe_layers=tuple(range(n_layers)) if moe_layers is None else moe_layers,
        n_experts=128 * is_moe,
        top_k=8 * is_moe,
        expert_intermediate=160 * is_moe,
        shared_intermediate=shared,
        dense_intermediate=1100,
        sliding_windows=windows,
    )


@dataclass
class OracleModel:
    """What the oracle takes; coverage as functions of a number of tokens."""

    geometry: Geometry
    constants: Constants
    tp: int
    bytes_per_s: float
    ops_per_s: float
    speculation: Speculation | None = field(default=None, kw_only=True)

    def covered(self, layer: int, batch: list, decoding: list) -> float:
        n = sum(take for _, take in batch)
        prefill = max(8 / 128, share(n / self.constants.prefill_correlation)) if n else 0.0
        return 1 - (1 - prefill) * (1 - share(len(decoding) * (1 + (self.speculation.n_nodes if self.speculation else 0))))


@dataclass
class RecordedOracle(OracleModel):
    """Coverage by sets: ids[request, position, layer] of a tape; touched counts iterations per (layer, expert)."""

    ids: dict[tuple[int, int, int], set[int]]
    touched: Counter[tuple[int, int]]

    def covered(self, layer: int, batch: list, decoding: list) -> float:
        tokens = [(r.number, r.prompt + r.emitted - 1) for r in decoding]
        tokens += [(r.number, r.position + i) for r, take in batch for i in range(take)]
        parts = [self.ids[(*token, layer)] for token in tokens]
        union = set().union(*parts)
        assert max(map(len, parts)) <= len(union) <= sum(map(len, parts))
        self.touched.update((layer, expert) for expert in union)
        return len(union) / self.geometry.n_experts


def share(n: float) -> float:
    """Table 1, linear in log2 n between its entries, read off with plain Python."""
    table = [0.0625, 0.117, 0.213, 0.29, 0.445, 0.547, 0.694, 0.863, 0.934, 0.98]
    if n <= 1:
        return n * table[0]
    if n >= 512:
        return 1 - 0.02 * 512 / n
    log = np.log2(n)
    i = min(int(log), 8)
    return float(table[i] + (log - i) * (table[i + 1] - table[i]))


def costs(
    geometry: Geometry,
    machine: HardwareSpec,
    constants: Constants,
    coverage: Coverage,
    expert_format: str = "bf16",
    **options: Any,
) -> IterationCosts:
    """In the paper's profile with these constants."""
    return iteration_costs(geometry, machine, coverage, constants.profile(), expert_format, **options)


def both(
    geometry: Geometry, machine: str = "h100x2", constants: Constants = NOTED, **options: Any
) -> tuple[IterationCosts, OracleModel]:
    spec = load(machine)
    cost = costs(geometry, spec, constants, TABLE_1, **options)
    peak_bytes, peak_ops = spec.tiers["hbm"].peak_bytes_per_s.value, spec.compute.ops_per_s["bf16"].value
    return cost, OracleModel(geometry, constants, spec.n_devices, peak_bytes, peak_ops, speculation=cost.speculation)


def requests_of(rows: list[list[float]]) -> Requests:
    """(arrival, prompt, output) each."""
    arrival, prompt, output = np.array(rows, float).T
    return Requests(arrival, prompt.astype(np.int64), output.astype(np.int64))


def some(seed: int, n: int = 60, rate: float = 3.0) -> Requests:
    """Of ShareGPT's lengths, with an eighth of its outputs."""
    made = synthetic("sharegpt", rate, seed, n=n)
    return replace(made, n_output_tokens=np.maximum(1, made.n_output_tokens // 8))


def clockwork(step: str = "step", speculation: Speculation | None = None, **lanes: dict[str, Any]) -> IterationCosts:
    """Every iteration takes a second."""
    made = {"name": "clockwork", "activations": False, "step": step, "lane": {"step": {"kind": "step", "each_s": 1.0}, **lanes}}
    return iteration_costs(tiny(), load("h100"), TABLE_1, of_data(made, "clockwork"), speculation=speculation)
