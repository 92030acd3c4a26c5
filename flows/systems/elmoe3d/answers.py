"""What the study says about the paper's numbers: rows of table `answers`.

Mode `paper` is hit model paper_law, `physical` stands beside it, both at the headline's fit. A row whose published value is
withheld is predicted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl

from tokentape.flows.answers import Row, answer, stated
from tokentape.flows.grid import load_hardware
from tokentape.flows.systems.elmoe3d.settings import PAPER, Settings
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.baselines import NEAR_AS, is_headline
from tokentape.replay.elmoe3d.checks import BEST_MODE, HONESTY, elastic_over_eagle, error_ends
from tokentape.replay.elmoe3d.fit import TABLE
from tokentape.replay.elmoe3d.points import CONTEXT_TOKENS, EAGLE, ELASTIC, QUANT
from tokentape.warehouse import models
from tokentape.warehouse.model_sizes import decode_params, total_params

__all__ = ["HONESTY", "answers"]

MODES = {"paper_law": "paper", "physical": "physical"}  # of a hit model
GIB, BILLION, TERA = 2**30, 1e9, 1e12

# What follows from numbers of a machine's file, by metric, in the claim's unit.
OF_MACHINE: dict[str, Callable[[HardwareSpec], float]] = {
    "hb_bank_bandwidth": lambda m: told(m, "tiers.hb.pins_per_channel") * told(m, "tiers.hb.bit_per_s_per_pin") / 8.0 / BILLION,
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
SCHEMES = {"truncation_error_low4": "trunc_sym", "rounding_error_low4": "round_sym"}  # whose error a claim bounds
ALPHAS = {"eagle_alpha": EAGLE, "quant_alpha": QUANT, "elastic_alpha": ELASTIC}


def answers(study: Settings, table: pl.DataFrame, found: Mapping[str, pl.DataFrame], assumed: pl.DataFrame) -> list[Row]:
    """Rows of table `answers`. found: by hit model Table 3's points as evaluated; assumed: ratios under every assumption."""
    rows = [*_inputs(study, table)]
    for hit_model, mode in MODES.items():
        rows += _of_table(found[hit_model], mode, f"hit model {hit_model}, fit {study.headline}")
        over = assumed.filter(pl.col("hit_model") == hit_model)
        for claim in stated(PAPER).values():
            rows += _summary(claim, found[hit_model], mode)
            if claim["metric"] in over.columns:
                rows.append(_of_ratios(study, claim, over, mode))
    return rows


def _of_table(found: pl.DataFrame, mode: str, how: str) -> Iterator[Row]:
    for step in ("ar", "sd"):
        columns = (f"{step}_claim", f"phi_{step}", f"published_{step}", f"role_{step}")
        for claim_id, value, published, role in found.select(columns).rows():
            kept = "predicted, the published value is withheld" if published is None else f"role {role}"
            yield answer(claim_id, value, f"{how}; {kept}", mode)


def _summary(claim: Mapping[str, Any], found: pl.DataFrame, mode: str) -> Iterator[Row]:
    """Section 7.1: means and extremes over Table 3's rows, withheld ones predicted."""
    if claim["metric"] == "best_mode_elastic_speedup":
        gb = int(claim["setting"].split("GB")[0])
        values = found.filter((pl.col("hb_gb") == gb) & (pl.col("scheme") == ELASTIC)).select(BEST_MODE).to_series()
        how = f"{values.len()} rows, the better of AR and SD; withheld rows predicted"
    elif claim["metric"] == "elastic_over_eagle_phi_sd":
        values = elastic_over_eagle(found)
        how = f"{values.len()} pairs; withheld rows predicted"
    else:
        return
    yield answer(claim["claim_id"], getattr(values, claim["statistic"])(), how, mode)


def _of_ratios(study: Settings, claim: Mapping[str, Any], assumed: pl.DataFrame, mode: str) -> Row:
    """Figures 14 and 15, with the range over what the paper does not give."""
    value = getattr(pl.col(claim["metric"]), claim["statistic"])()
    each = assumed.group_by("verify_nodes", *NEAR_AS, "end").agg(value=value, n=pl.len())
    told = each.filter(is_headline(study.platforms) & (pl.col("end") == "value")).row(0, named=True)
    near = f"near-memory compute at {told['nmp_ext_ratio']:g} x EXT with {told['placement']} first"
    rows, nodes = f"{told['n']} rows of MT-Bench alone", f"{told['verify_nodes']:g} nodes verified"
    how = f"{rows}, {nodes}, {near}; band over {each.height} assumptions"
    ends = each.select(pl.min("value"), high=pl.max("value")).row(0)
    return answer(claim["claim_id"], told["value"], how, mode, ends)


def _inputs(study: Settings, table: pl.DataFrame) -> Iterator[Row]:
    """What the model reads, and what follows from sizes and the machines' files alone."""
    for claim_id, claim in stated(PAPER).items():
        metric = claim["metric"]
        if metric == "alpha" and claim["location"] == TABLE:
            yield answer(claim_id, claim["value"], "an input: the row reads it")
        elif metric == "sequence_length":
            yield answer(claim_id, CONTEXT_TOKENS, "an input: tokens of a sequence")
        elif metric in OF_MODEL:
            model = models.load(claim["model"])
            yield answer(claim_id, float(OF_MODEL[metric](model)), "counted from the model's geometry")
        elif metric in OF_MACHINE or metric in study.inputs:
            name = study.machines[next((gb for gb in study.machines if f"{gb}GB" in claim["setting"]), max(study.machines))]
            machine = load_hardware(name)
            value = told(machine, *study.inputs[metric]) if metric in study.inputs else OF_MACHINE[metric](machine)
            yield answer(claim_id, value, f"from the file of {name}")
        elif metric in ALPHAS:
            alphas = table.filter(pl.col("scheme") == ALPHAS[metric])["alpha"]
            yield answer(claim_id, getattr(alphas, claim["statistic"])(), "over the rows of Table 3, inputs")
        elif metric in SCHEMES:
            yield from _of_slices(claim)
        elif "xpu-" in claim_id and metric.startswith(("pim_", "logicpim_", "nmp_")):
            yield from _of_baseline(claim)


def _of_slices(claim: Mapping[str, Any]) -> Iterator[Row]:
    """Ends of the error of low bits; mode `paper` leaves out the codes whose low-bit code saturates."""
    end = ("min", "max").index(claim["statistic"])
    fitting, every = error_ends(SCHEMES[claim["metric"]])
    yield answer(claim["claim_id"], fitting[end], "over all INT8 codes that rounding does not saturate")
    yield answer(claim["claim_id"], every[end], "over all INT8 codes", "physical")


def _of_baseline(claim: Mapping[str, Any]) -> Iterator[Row]:
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
        value = told(machine, f"tiers.{near.memory}.n_channels")
    else:
        value = tier.capacity_bytes.value / GIB
    yield answer(claim["claim_id"], float(value), f"from the file of {name}")


def told(machine: HardwareSpec, path: str, unit: float = 1.0) -> float:
    """A number of a machine's file by its place there, in a unit."""
    at: Any = machine
    for name in path.split("."):
        at = at[name] if isinstance(at, Mapping) else getattr(at, name)
    return float(at.value / unit)
