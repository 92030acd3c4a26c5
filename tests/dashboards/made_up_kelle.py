"""Made-up rows of the Kelle page in the declared schemas: round gains, errors and losses whose sentences can be told by hand."""

import json
from collections.abc import Iterator
from itertools import product

import made_up
from made_up import Rows, of_file

STUDY, TRACE, LIVE = "kelle", "embedded-code-0a1b2c3d", "embedded"
BASELINE, KELLE = "Original+SRAM", "Kelle+eDRAM"
SPEED = {BASELINE: 1.0, "Original+eDRAM": 1.2, "AEP+SRAM": 2.0, "AERP+SRAM": 2.5, KELLE: 4.0}
ENERGY = {BASELINE: 1.0, "Original+eDRAM": 0.6, "AEP+SRAM": 2.0, "AERP+SRAM": 3.0, KELLE: 5.0}
MODELS, SMALL = ("llama-2-7b", "llama-3.2-3b"), "llama-3.2-3b"
TASKS = {"LA": (128, 512), "PG19": (512, 8192)}
PARTS = {"dram_j": 0.4, "weight_sram_j": 0.3, "kv_j": 0.05, "refresh_j": 0.05, "array_j": 0.15, "leakage_j": 0.05}
READINGS = (("paper", 1.0), ("physical", 0.5))


def point(series: str, setting: str, model: str, task: str, system: str, reading: tuple, **changed: object) -> dict:
    """A row of kelle_points: gains of SPEED and ENERGY, twice as high on PG19, which does not fit where counted physically."""
    mode, factor = reading
    context, decode = TASKS[task]
    times = (
        1.0 if SPEED[system] == 1.0 else factor * (2.0 if task == "PG19" and "AE" in system + "AE" * (system == KELLE) else 1.0)
    )
    row = {
        "series": series, "setting": setting, "setting_value": None, "model_id": model, "workload": task,
        "n_context_tokens": context, "n_decode_tokens": decode, "batch": 16, "system": system,
        "budget_tokens": None if "Original" in system else 2048, "mode": mode, "role": "report",
        "step_s": 1 / (SPEED[system] * times), "energy_j": 10 / (ENERGY[system] * times),
        **{part: share * 10 / (ENERGY[system] * times) for part, share in PARTS.items()},
        "speed_gain": SPEED[system] * times, "energy_gain": ENERGY[system] * times, "typical_err_frac": 0.2,
        "worst_err_frac": 0.35, "dram_overflow_bytes": 1e9 if task == "PG19" else 0.0,
    }  # fmt: skip
    if mode == "physical" and task == "PG19":
        row |= dict.fromkeys(("step_s", "energy_j", *PARTS, "speed_gain", "energy_gain"))
    return row | changed


def cells(*series: str) -> Iterator[tuple]:
    yield from product(series, MODELS, TASKS, READINGS)


def add_headline(rows: Rows) -> None:
    for series, model, task, reading in cells("headline"):
        rows["kelle_points"] += [point(series, "", model, task, system, reading, role="calibrate") for system in SPEED]


def add_tables(rows: Rows) -> None:
    """Table 7 gains 8, 4; Table 9 gains 3 and 4 at batch 16, 2 and 1.5 at batch 1, where AERP wins."""
    for reading in READINGS[:1]:
        for budget, gain in ((2048, 8.0), (8750, 4.0)):
            changed = {"budget_tokens": budget, "energy_gain": gain, "role": "predict"}
            rows["kelle_points"].append(point("table-7", "", SMALL, "PG19", KELLE, reading, **changed))
        for batch, gains in ((16, {"AERP+SRAM": 3.0, KELLE: 4.0}), (1, {"AERP+SRAM": 2.0, KELLE: 1.5})):
            for system, gain in gains.items():
                changed = {"batch": batch, "energy_gain": gain, "role": "predict" if batch == 16 else "report"}
                rows["kelle_points"].append(point("table-9", "", "llama-2-7b", "PG19", system, reading, **changed))
    for value, budget in ((10.0, 2048), (4.0, 8750)):
        add_claim(rows, "Table 7", f"PG19 budget={budget} {KELLE} over {BASELINE}", value, "predict", model="Llama-3.2-3B")
    for value, system in ((3.0, "AERP+SRAM"), (5.0, KELLE)):
        add_claim(rows, "Table 9", f"PG19 batch=16 {system} over {BASELINE}", value, "predict", model="Llama-2-7B")


def add_claim(
    rows: Rows, location: str, setting: str, value: float, role: str, model: str = "", metric: str = "energy_efficiency_gain"
) -> str:
    key = f"kelle/{location}/{metric}/{model}/{setting}"
    at = {"claim_id": key, "paper": STUDY, "location": location, "metric": metric, "model": model, "setting": setting}
    made_up.add_claim(rows, **at, statistic="mean", value=value, role=role)
    return key


def add_claims(rows: Rows) -> None:
    """The headline, 10 % below the paper; one number without an answer."""
    for metric, value in (("speedup", 6.0), ("energy_efficiency_gain", 8.0)):
        setting = f"{KELLE} over {BASELINE}; average over evaluated models and tasks"
        key = add_claim(rows, "8.1.2", setting, value, "calibrate", metric=metric)
        for mode, factor in (("paper", 0.9), ("physical", 0.25)):
            answer = {"claim_id": key, "study": STUDY, "mode": mode, "value": factor * value, "how": ""}
            rows["answers"].append(answer | {"low": None, "high": None})
    add_claim(rows, "8.3.2", "prefill-popular tokens", 86.0, "report", metric="popular_token_persistence")
    add_claim(rows, "Table 5", "Kelle", 70.0, "report", metric="truthfulqa_mc1")


def add_sweeps(rows: Rows) -> None:
    for reading in READINGS[:1]:
        for value, gain in ((1050, 4.0), (131, 3.0)):
            changed = {"setting_value": float(value), "energy_gain": gain}
            rows["kelle_points"].append(point("refresh interval", f"{value} us", SMALL, "PG19", KELLE, reading, **changed))
        for value, system in product((256, 128), ("AERP+SRAM", KELLE)):
            changed = {"setting_value": float(value), "energy_gain": 2.0 + value / 128}
            rows["kelle_points"].append(point("edram bandwidth", f"{value} GB/s", MODELS[0], "PG19", system, reading, **changed))


def add_memory(rows: Rows) -> None:
    """8 MB of SRAM are 1.25 times as fast; refresh takes 5 % of 8 MB of eDRAM, or nothing."""
    for decode, reading in product((512, 8192), READINGS):
        for setting, seconds in (("4 MB", 1.0), ("8 MB", 0.8)):
            changed = {"n_decode_tokens": decode, "step_s": seconds}
            rows["kelle_points"].append(point("sram size", setting, MODELS[0], "LA", BASELINE, reading, **changed))
        for setting in ("8 MB at 45 us", "8 MB without refresh"):
            row = point("edram share", setting, MODELS[0], "LA", "Original+eDRAM", reading, n_decode_tokens=decode)
            if setting.endswith("refresh"):
                row |= {"energy_j": 0.95 * row["energy_j"], "refresh_j": 0.0}
            rows["kelle_points"].append(row)


def add_settings(rows: Rows) -> None:
    """Recomputation saves a fifth; each way to refresh saves a quarter more of the first one's energy."""
    scaled = {"recompute": {"off": 1.0, "on": 0.8}, "refresh policy": {"45 us": 1.0, "uniform 360 us": 0.75, "2D": 0.5}}
    for series, model, task, reading in cells(*scaled):
        for setting, factor in scaled[series].items():
            row = point(series, setting, model, task, KELLE, reading)
            given = {name: factor * row[name] for name in ("energy_j", *PARTS) if row[name] is not None}
            rows["kelle_points"].append(row | given)


def add_sensitivity(rows: Rows) -> None:
    changes = {"as is": 1.0, "DRAM at 4 pJ/bit": 1.2, "true GQA": 0.5}
    for setting, (_, model, task, reading) in product(changes, cells("sensitivity")):
        row = point("sensitivity", setting, model, task, KELLE, reading)
        if row["energy_gain"] is not None:
            row["energy_gain"] *= changes[setting]
        rows["kelle_points"].append(row)
    for setting, error in {"as is": 0.1, "true GQA": 0.3}.items():
        row = {"check": f"mean |ln| error, {setting}", "value": error, "unit": "1", "how": "", "series": "sensitivity"}
        rows["kelle_checks"].append(row | {"setting": setting})


def add_explorer(rows: Rows) -> None:
    """At batch 1 Kelle gains a tenth; with 8192 tokens nothing is evicted and AERP is ahead."""
    for (_, model, task, reading), batch, system in product(cells("explorer"), (1, 16), SPEED):
        budgets = [None] if "Original" in system else [128, 8192]
        for budget in budgets:
            row = point("explorer", "", model, task, system, reading, batch=batch, budget_tokens=budget)
            if row["energy_gain"] is not None and system == KELLE:
                row["energy_gain"] *= (0.1 if batch == 1 else 1.0) * (0.25 if budget == 8192 else 1.0)
            rows["kelle_points"].append(row)


def measured(series: str, policy: str, setting: str, value: float, **changed: object) -> dict:
    """A row of kelle_quality over four seeds, 1 % to either side."""
    row = {
        "series": series, "model_id": LIVE, "dataset": "recall" if series == "recall" else "code", "policy": policy,
        "parameters": json.dumps({"setting": setting, "value": value} | {k: v for k, v in changed.items() if k != "metric"}),
        "setting": setting, "setting_value": None, "budget_tokens": None, "storage": "plain", "n_seeds": 4,
        "metric": "accuracy" if series == "recall" else "perplexity_ratio", "unit": "1", "value": value, "low": 0.99 * value,
        "high": min(1.01 * value, 1.0) if series == "recall" else 1.01 * value,
    }  # fmt: skip
    return row | changed


def add_budgets(rows: Rows) -> None:
    """Recent tokens win with 32 per head, AERP with 256; four bits cost 2 %."""
    losses = {
        ("streaming", ""): (1.2, 1.1), ("streaming", "recent only"): (1.25, 1.15), ("aerp", ""): (1.3, 1.01),
        ("h2o", ""): (1.4, 1.02), ("random", "unprotected"): (2.0, 1.5),
    }  # fmt: skip
    for (policy, setting), values in losses.items():
        for budget, value in zip((32, 256), values, strict=True):
            rows["kelle_quality"].append(measured("budget", policy, setting, value, budget_tokens=budget))
    rows["kelle_quality"].append(measured("budget", "full", "4-bit", 1.02, storage="quarot"))
    for task, drop in (("PQ", 2.0), ("A-c", 4.0)):
        for budget, value in (("full", 50.0), ("128", 50.0 - drop / 2), ("16", 50.0 - drop)):
            add_claim(rows, "Table 3", f"{task} budget={budget}", value, "report", model="Llama-2-7B", metric="accuracy")


def add_refresh(rows: Rows) -> None:
    """2DRP is ahead at 1050 us, behind at 540 us; in the paper's made-up table it wins everywhere."""
    for at, twod, uniform in ((540.0, 1.02, 1.01), (1050.0, 1.02, 1.03)):
        for setting, value in (("2DRP", twod), ("uniform", uniform)):
            changed = {"setting_value": at, "storage": "int16", "budget_tokens": 128}
            rows["kelle_quality"].append(measured("refresh", "kelle", setting, value, **changed))
        for way, accuracy in (("2drp", 46.0), ("uniform", 45.0)):
            setting = f"PQ interval={at:.0f} us {way}"
            add_claim(rows, "Table 4", setting, accuracy, "report", model="Llama-2-7B", metric="accuracy")
    rows["kelle_quality"].append(measured("refresh", "kelle", "no losses", 1.0, storage="int16", budget_tokens=128))


def add_kept(rows: Rows) -> None:
    """The oracle keeps 90 to 98 %, AERP 80 to 95 %, StreamingLLM 70 to 90 %, by budget; all fall by a tenth along the text."""
    kept = {"oracle": (0.9, 0.94, 0.98), "aerp": (0.8, 0.9, 0.95), "streaming": (0.7, 0.8, 0.9)}
    for policy, (n, budget), renorm in product(kept, enumerate((32, 64, 128)), (True, False)):
        mass = kept[policy][n] - (0.0 if renorm else 0.5)
        parameters = json.dumps({"budget": budget, "sink": 4})
        key = {"trace_id": TRACE, "policy": policy, "parameters": parameters, "renorm": renorm}
        rows["kv_replays"].append(key | {
            "is_bound": policy == "oracle", "origin": "captured", "is_exact": True, "budget_tokens": budget, "n_requests": 2,
            "n_steps": 100, "kept_mass_frac": mass, "kept_mass_high_frac": mass, "x_bytes": 1e4, "kv_bytes": 2e4,
            "popular_frac": 0.3, "full_bytes": 1e5,
        })  # fmt: skip
        for layer, (place, position) in product((0, 1), enumerate((64, 80))):
            own = mass - 0.1 * place + (0.03 if layer == 0 else -0.01)  # the second layer has three times the steps
            rows["kv_timeline"].append(key | {
                "layer": layer, "first_position": position, "bin_tokens": 17, "n_steps": 10 * (1 + 2 * layer),
                "kept_mass_frac": own, "kept_mass_high_frac": mass, "popular_frac": 0.3 + 0.1 * place, "x_bytes": 1e4,
                "kv_bytes": 2e4,
            })  # fmt: skip


add_requests, add_recompute, add_lifetimes, add_retention, add_parts, add_checks, add_recall, add_flips = map(
    of_file("kelle"), ("requests", "recompute", "lifetimes", "retention", "parts", "checks", "recall", "flips")
)
add_pareto, add_orderings, add_drift = map(of_file("kelle"), ("pareto", "orderings", "drift"))
EVERYTHING = (
    add_headline, add_tables, add_claims, add_sweeps, add_memory, add_settings, add_sensitivity, add_explorer, add_requests,
    add_recompute, add_lifetimes, add_retention, add_parts, add_checks, add_budgets, add_recall, add_flips, add_refresh,
    add_pareto, add_orderings, add_kept, add_drift,
)  # fmt: skip
