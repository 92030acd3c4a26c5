"""What the study says about the paper's numbers: rows of table `answers`.

Mode `paper` is hit model paper_law, `physical` stands beside it, both at the headline's fit. A row whose published value is
withheld is predicted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.platforms import Ratios, is_headline
from tokentape.flows.systems.elmoe3d.settings import PAPER, Settings
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.cells import TABLE, Cell
from tokentape.replay.elmoe3d.checks import HONESTY, elastic_over_eagle
from tokentape.replay.elmoe3d.points import CONTEXT_TOKENS, EAGLE, ELASTIC, QUANT, Floats
from tokentape.replay.elmoe3d.timing import Outcome
from tokentape.warehouse import models
from tokentape.warehouse.load import claims
from tokentape.warehouse.model_sizes import decode_params, total_params

__all__ = ["HONESTY", "answers", "row"]

MODES = {"paper_law": "paper", "physical": "physical"}  # of a hit model
STATISTICS: dict[str, Callable[[Floats], Any]] = {"mean": np.mean, "min": np.min, "max": np.max}
GIB, BILLION, TERA = 2**30, 1e9, 1e12

# Inputs as the machine's file has them, by metric; in the claim's unit.
OF_MACHINE: dict[str, Callable[[HardwareSpec], float | None]] = {
    "num_pes": lambda m: _value(m.compute.n_units),
    "hb_banks": lambda m: _value(m.tiers["hb"].n_channels),
    "throughput_w8a8": lambda m: m.compute.ops_per_s["int8"].value / TERA,
    "throughput_w4a8": lambda m: m.compute.ops_per_s["int4"].value / TERA,
    "hb_bandwidth": lambda m: m.tiers["hb"].peak_bytes_per_s.value / BILLION,
    "macs_per_pe": lambda m: m.compute.macs_per_unit["int4"].value,
    "clock": lambda m: _value(m.compute.clock_hz, BILLION),
    "ext_bandwidth": lambda m: m.tiers["ext"].peak_bytes_per_s.value / BILLION,
    "ext_capacity": lambda m: m.tiers["ext"].capacity_bytes.value / GIB,
    "hb_read_energy": lambda m: m.tiers["hb"].read_pj_per_bit.value,
    "ext_read_energy": lambda m: m.tiers["ext"].read_pj_per_bit.value,
    "aggregation_link": lambda m: m.links["aggregation"].peak_bytes_per_s.value / BILLION,
    "streamline_link": lambda m: m.links["streamline"].peak_bytes_per_s.value / BILLION,
    "hb_bank_pins": lambda m: _value(m.tiers["hb"].pins_per_channel),
    "hb_pin_rate": lambda m: _value(m.tiers["hb"].bit_per_s_per_pin, BILLION),
    "hb_bank_bandwidth": lambda m: _bank_bytes_per_s(m) / BILLION,
    "hb_bandwidth_loss_vs_roofline": lambda m: 100.0 * (1.0 - m.tiers["hb"].efficiency_frac.value),
    "ext_bandwidth_loss_vs_peak": lambda m: 100.0 * (1.0 - m.tiers["ext"].efficiency_frac.value),
    "hb_over_ext_energy_efficiency": lambda m: m.tiers["ext"].read_pj_per_bit.value / m.tiers["hb"].read_pj_per_bit.value,
}
OF_MODEL: dict[str, Callable[[models.Model], float]] = {
    "total_params": lambda m: total_params(m.geometry) / BILLION,
    "active_params": lambda m: decode_params(m.geometry) / BILLION,
    "routed_experts": lambda m: m.geometry.n_experts,
    "shared_experts": lambda m: m.geometry.n_shared_experts,
    "top_k": lambda m: m.geometry.top_k,
}
ALPHAS = {"eagle_alpha": EAGLE, "quant_alpha": QUANT, "elastic_alpha": ELASTIC}
OF_RATIOS: dict[str, Callable[[Ratios], Floats]] = {
    "speedup_over_xPU": lambda r: r.over_xpu,
    "speedup_over_best_prior": lambda r: r.over_prior,
    "energy_per_token_xPU_over_ours": lambda r: r.energy_over_xpu,
    "energy_per_token_best_prior_over_ours": lambda r: r.energy_over_prior,
}


def answers(
    study: Settings,
    table: Sequence[Cell],
    found: Mapping[str, Outcome],
    assumed: Mapping[str, Sequence[Ratios]],
) -> list[dict[str, Any]]:
    """Rows of table `answers`. By hit model: Table 3's points in order, and ratios under every assumption."""
    stated = {claim["claim_id"]: claim for claim in claims().to_pylist() if claim["paper"] == PAPER}
    rows = [*_inputs(study, table, stated)]
    for hit_model, mode in MODES.items():
        rows += _of_table(table, found[hit_model], mode, f"hit model {hit_model}, fit {study.headline}")
        for claim in stated.values():
            rows += _summary(claim, table, found[hit_model], mode)
            if claim["metric"] in OF_RATIOS:
                rows.append(_of_ratios(study, claim, assumed[hit_model], mode))
    return rows


def row(claim_id: str, value: float, how: str, mode: str = "paper", ends: tuple[float, float] | None = None) -> dict[str, Any]:
    """A row of table `answers`; ends: of its band."""
    low, high = ends or (None, None)
    return {"claim_id": claim_id, "mode": mode, "value": value, "low": low, "high": high, "how": how}


def _of_table(table: Sequence[Cell], found: Outcome, mode: str, how: str) -> Iterator[dict[str, Any]]:
    for i, cell in enumerate(table):
        for claim_id, values, value, role in (
            (cell.ar_claim, found.phi_ar, cell.phi_ar, cell.role_ar),
            (cell.sd_claim, found.phi_sd, cell.phi_sd, cell.role_sd),
        ):
            kept = "predicted, the published value is withheld" if value is None else f"role {role}"
            yield row(claim_id, float(values[i]), f"{how}; {kept}", mode)


def _summary(claim: Mapping[str, Any], table: Sequence[Cell], found: Outcome, mode: str) -> Iterator[dict[str, Any]]:
    """Section 7.1: means and extremes over Table 3's rows, withheld ones predicted."""
    if claim["metric"] == "best_mode_elastic_speedup":
        gb = int(claim["setting"].split("GB")[0])
        chosen = [i for i, cell in enumerate(table) if (cell.hb_gb, cell.scheme) == (gb, ELASTIC)]
        values, how = found.phi[chosen], f"{len(chosen)} rows, the better of AR and SD; withheld rows predicted"
    elif claim["metric"] == "elastic_over_eagle_phi_sd":
        values = elastic_over_eagle(table, found)
        how = f"{values.size} pairs; withheld rows predicted"
    else:
        return
    yield row(claim["claim_id"], float(STATISTICS[claim["statistic"]](values)), how, mode)


def _of_ratios(study: Settings, claim: Mapping[str, Any], assumed: Sequence[Ratios], mode: str) -> dict[str, Any]:
    """Figures 14 and 15, with the range over what the paper does not give."""
    statistic, pick = STATISTICS[claim["statistic"]], OF_RATIOS[claim["metric"]]
    headline = next(ratios for ratios in assumed if is_headline(study, ratios.near) and ratios.end == "value")
    of_all = [float(statistic(pick(ratios))) for ratios in assumed]
    how = f"{pick(headline).size} rows of MT-Bench alone, {headline.assumed}; band over {len(of_all)} assumptions"
    return row(claim["claim_id"], float(statistic(pick(headline))), how, mode, (min(of_all), max(of_all)))


def _inputs(study: Settings, table: Sequence[Cell], stated: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What the model reads, and what follows from sizes and the machines' files alone."""
    for claim_id, claim in stated.items():
        metric = claim["metric"]
        if metric == "alpha" and claim["location"] == TABLE:
            yield row(claim_id, claim["value"], "an input: the row reads it")
        elif metric == "sequence_length":
            yield row(claim_id, CONTEXT_TOKENS, "an input: tokens of a sequence")
        elif metric in OF_MODEL:
            model = models.load(claim["model"])
            yield row(claim_id, float(OF_MODEL[metric](model)), "counted from the model's geometry")
        elif metric in OF_MACHINE:
            gb = next((gb for gb in study.machines if f"{gb}GB" in claim["setting"]), max(study.machines))
            value = OF_MACHINE[metric](load_hardware(study.machines[gb]))
            if value is not None:
                yield row(claim_id, float(value), f"from the file of {study.machines[gb]}")
        elif metric in ALPHAS:
            alphas = np.array([cell.alpha for cell in table if cell.scheme == ALPHAS[metric]])
            yield row(claim_id, float(STATISTICS[claim["statistic"]](alphas)), "over the rows of Table 3, inputs")
        elif "xpu-" in claim_id and metric.startswith(("pim_", "logicpim_", "nmp_")):
            yield from _of_baseline(claim)


def _of_baseline(claim: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Section 7's baselines, from their files."""
    name = f"elmoe3d-{claim['setting'].lower()}"
    machine, xpu = load_hardware(name), load_hardware("elmoe3d-xpu")
    near, metric = machine.compute, claim["metric"]
    tier = machine.tiers[near.memory]
    if metric == "pim_internal_bandwidth_vs_ext" and near.memory_bytes_per_s is not None:
        value = near.memory_bytes_per_s.value / xpu.tiers["ext"].peak_bytes_per_s.value
    elif metric in ("pim_throughput", "nmp_throughput"):
        value = near.ops_per_s["int8"].value / TERA
    elif metric == "logicpim_throughput_vs_pim":
        value = near.ops_per_s["int8"].value / load_hardware("elmoe3d-xpu-pim").compute.ops_per_s["int8"].value
    elif metric == "nmp_channels":
        value = _value(tier.n_channels) or 0.0
    else:
        value = tier.capacity_bytes.value / GIB
    yield row(claim["claim_id"], float(value), f"from the file of {name}")


def _value(number: Any, unit: float = 1.0) -> float | None:
    return None if number is None else number.value / unit


def _bank_bytes_per_s(machine: HardwareSpec) -> float:
    hb = machine.tiers["hb"]
    return (_value(hb.pins_per_channel) or 0.0) * (_value(hb.bit_per_s_per_pin) or 0.0) / 8.0
