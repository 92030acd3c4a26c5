"""Made-up rows of the SliceMoE page in the declared schemas: straight sweeps, round numbers, answers told by hand."""

import json
import math
from itertools import product

from made_up import TAPES, Rows, catalogue, of_file

MODELS = ("big-model", "other-model")
CAPACITIES_GB, TAUS, SEEDS, STRENGTHS = (2.0, 4.0), (0.35, 0.5), (0, 1), (0.0, 0.5, 1.0)
# At strength 0 and their slope: output error, energy in J, step in s.
HIGH = (0.0, 0.2), (1.0, -0.4), (1.0, -0.4)
LOW = (0.01, 0.16), (0.4, -0.3), (0.5, -0.4)
DBSC = (0.01, 0.16), (0.5, -0.4), (0.6, -0.4)
PAIRS = {"MAT84": 0.0, "MAT42": -0.05}  # and how many joules DBSC takes more there
CUMSUM_J = 0.1  # more than Cache-Prior
CAPTURED = "embedded"
WARMUPS = {"empty": 1.0, "last_layer": 0.9, "random": 0.8, "pcw": 0.5}
FLASH = {"low-bit": 0.4, "dbsc": 0.5, "cache_prior": 0.6, "high-bit": 0.7}  # where nothing is allowed; the target is added
SCHEMES = {("full", None): 10.0, ("base_asym", "MAT42"): 20.0, ("amat", "MAT42"): 22.0, ("trunc_asym", "MAT42"): 1e4}
LIVE = {("high-bit", 0.01): 100.0, ("dbsc", 0.01): 40.0, ("low-bit", 0.01): 30.0, ("high-bit", 0.3): 20.0, ("dbsc", 0.3): 15.0,
        ("low-bit", 0.3): 18.0}  # fmt: skip


def add_points(rows: Rows) -> None:
    """Sweeps of two models at two pairs; a seed later, DBSC takes .14 J more."""
    for model, gb, seed, (pair, extra) in product(MODELS, CAPACITIES_GB, SEEDS, PAIRS.items()):
        systems = [("high-bit", None, HIGH, 0.0, "cache_prior"), ("high-bit", None, HIGH, CUMSUM_J, "cumsum")]
        systems += [(name, None, LOW, 0.0, "cache_prior") for name in ("low-bit", "amat")]
        systems += [("dbsc", tau, DBSC, extra + 0.14 * seed, "cache_prior") for tau in TAUS]
        for (configuration, tau, lines, more, router), strength in product(systems, STRENGTHS):
            strayed, energy, step = (start + slope * strength for start, slope in lines)
            for warmup in ("last_layer", "pcw") if tau else ("last_layer",):
                values = (strayed, energy + more, step)
                made = point(model, seed, gb, configuration, tau, warmup, "none", strength, *values)
                rows["slicemoe_points"].append(made | {"pair": pair, "router": router})


def add_captured(rows: Rows) -> None:
    """A recorded model with a cache of 3.2 MB: a thousandth of the joules, and DBSC strays by 3 % at most."""
    near = (0.01, 0.02), *DBSC[1:]
    for seed, (configuration, tau, lines) in product(SEEDS, (("high-bit", None, HIGH), ("dbsc", TAUS[1], near))):
        for strength in STRENGTHS:
            strayed, energy, step = (start + slope * strength for start, slope in lines)
            made = point(CAPTURED, seed, 0.0032, configuration, tau, "last_layer", "none", strength, strayed, energy / 1e3, step)
            rows["slicemoe_points"].append(made | {"trace_id": TAPES[seed].trace_id})
    there = {row["trace_id"] for row in rows["traces"]}
    rows["traces"] += [catalogue(tape) for tape in TAPES[:2] if tape.trace_id not in there]


def add_budgets(rows: Rows) -> None:
    """Flash's share under two budgets, a hundredth more a seed later; Cache-Prior is high-bit with a pull."""
    for model, target, (name, share), seed in product(MODELS, (0.01, 0.2), FLASH.items(), SEEDS):
        configuration = "high-bit" if name == "cache_prior" else name
        tau, strength = (TAUS[0] if name == "dbsc" else None), (0.0 if name == "high-bit" else 0.2)
        held = point(model, seed, 2.0, configuration, tau, "last_layer", f"hard {target:g}", strength, 0.7, 2 * target, 1.0)
        rows["slicemoe_points"].append(held | {"flash_energy_frac": share + target - 0.005 + 0.01 * seed})


def add_warmups(rows: Rows) -> None:
    """Warm-ups save as they say in the first ten steps, over 128 a tenth of it and no time."""
    for model, seed, (warmup, share), steps in product(MODELS, SEEDS, WARMUPS.items(), (10, 128)):
        energy, step = (share, (1 + share) / 2) if steps == 10 else (1 - (1 - share) / 10, 1.0)
        rows["warmup_points"].append({
            "study": "slicemoe", "trace_id": f"{model}-{seed}", "model_id": model, "seed": seed, "hardware": "xpu",
            "capacity_bytes": 2_000_000_000, "warmup": warmup, "budget": "hard 0.05", "strength": 0.2, "window_steps": steps,
            "decode_step_s": step, "decode_energy_j_per_token": energy,
        })  # fmt: skip


def point(
    model: str, seed: int, gb: float, configuration: str, tau: float | None, warmup: str, budget: str, strength: float,
    strayed: float, energy: float, step: float,
) -> dict:  # fmt: skip
    """A row of slicemoe_points; misses are half the joules."""
    return {
        "study": "slicemoe", "trace_id": f"{model}-{seed}", "model_id": model, "seed": seed, "hardware": "xpu",
        "capacity_bytes": round(gb * 1e9), "pair": "MAT84", "configuration": configuration, "tau": tau, "router": "cache_prior",
        "target_frac": float(budget.split()[1]) if " " in budget else None,
        "warmup": warmup, "budget": budget,
        "strength": strength, "strayed_frac": strayed, "kept_gate_mass_frac": 1 - strayed / 2,
        "high_bit_miss_frac": energy / 2, "critical_per_layer": 1.0,
        "decode_step_s": step, "decode_energy_j_per_token": energy, "flash_energy_frac": 0.3,
        "early_step_s": step, "early_energy_j_per_token": energy,
    }  # fmt: skip


def add_live(rows: Rows, with_spare_cache: bool = True) -> None:
    """Budgets of 1 and 30 % in a small cache, and a large one that hardly misses without any budget: there DBSC loses.

    Misses are as allowed, but for those of the high-bit cache at 1 %.
    """
    for ((precision, target), perplexity), seed in product(LIVE.items(), SEEDS):
        budget = {"budget": "hard", "budget.target_frac": target}
        missed = 0.012 if (precision, target) == ("high-bit", 0.01) else target
        _quality(rows, {"precision": precision, "cache_frac": 0.25, "pair": "MAT42", **budget}, seed, perplexity, missed)
    spare = {"high-bit": 10.0, "dbsc": 11.0}.items() if with_spare_cache else ()
    for (precision, perplexity), seed in product(spare, SEEDS):
        _quality(rows, {"precision": precision, "cache_frac": 0.95, "budget": "none"}, seed, perplexity, 0.02)
    rows["quality"].append(rows["quality"][0] | {"policy": "none", "parameters": "{}"})  # the model as it is: not of this page


def add_pulled(rows: Rows) -> None:
    """A pulled router: KL is twice the output error, and falls with the gate mass lost but for one point."""
    for (at, (precision, strayed, kept)), seed in product(
        enumerate([("high-bit", 0.0, 1.0), ("high-bit", 0.04, 0.9), ("dbsc", 0.02, 1.0)]), SEEDS
    ):
        _quality(rows, {"precision": precision, "router": "cache_prior", "router.strength": at / 2}, seed, 10.0, 0.3)
        rows["quality"][-1] |= {"kl": 2 * strayed, "strayed_frac": strayed, "kept_gate_mass_frac": kept}


def add_unheld(rows: Rows) -> None:
    """Another setup, without any budget."""
    for (precision, perplexity), seed in product((("high-bit", 10.0), ("dbsc", 11.0)), SEEDS):
        _quality(rows, {"precision": precision, "cache_frac": 0.5, "scheme": "none"}, seed, perplexity, 0.4)


def _quality(rows: Rows, parameters: dict, seed: int, perplexity: float, miss_frac: float | None) -> None:
    rows["quality"].append({
        "model_id": "embedded", "policy": "slicemoe", "parameters": json.dumps(parameters, sort_keys=True), "dataset": "code",
        "seed": seed, "perplexity": perplexity * (0.9 + 0.2 * seed), "miss_frac": miss_frac,
        "flash_bytes_per_token": 1e3, "dram_bytes_per_token": 1e5,
    })  # fmt: skip


def add_schemes(rows: Rows) -> None:
    """AMAT a tenth above the base on both seeds; an unshifted zero point diverges on one."""
    for ((scheme, pair), perplexity), seed in product(SCHEMES.items(), SEEDS):
        _quality(rows, {"scheme": scheme, "pair": pair}, seed, perplexity, None)
        rows["quality"][-1] |= {"policy": "precision", "flash_bytes_per_token": None}
    rows["quality"][-1]["perplexity"] = math.inf


add_claims, add_fidelity, add_orderings, add_operating, add_tapes = map(
    of_file("slicemoe"), ("claims", "fidelity", "orderings", "operating", "tapes")
)
STUDY = (
    add_points, add_captured, add_budgets, add_warmups, add_claims, add_live, add_schemes, add_orderings, add_fidelity,
    add_operating, add_pulled,
)  # fmt: skip
EVERYTHING = (*STUDY, add_tapes)
