"""Made-up rows of the page of comparisons: four systems and a bound on two machines, one cell of which is empty."""

import json
from itertools import product

from made_up import Rows

TRACE, REASON = "made-up", "experts <do> not fit"
TOKENS_PER_S = {"no_offload": 400.0, "lru_offload": 100.0, "near_compute": 150.0, "few_bits": 160.0, "bound": 120.0}
DECISIONS = {
    "lru_offload": {"residency": "lru"}, "near_compute": {"residency": "lru", "place": "near_if_rare"},
    "few_bits": {"residency": "lru", "precision": "uniform"}, "bound": {"residency": "belady"},
}  # fmt: skip
WORKLOAD = {"requests": 8, "repeats": 0, "batch": 4, "rate": 0.0, "seed": 0, "order": "tape"}
SPENT = (
    ("part_s", "", "experts fetched", 6.0), ("part_s", "", "weights outside the experts", 4.0), ("asked_s", "tiers.pcie", "", 2),
    ("part_j", "", "experts fetched", 500.0), ("asked_s", "links.pcie", "experts fetched", 5.0),
)  # fmt: skip
TERMS = "8 requests, at most 4 at once, all there at once"


def add_cells(rows: Rows) -> None:
    """A token takes the same time and energy everywhere, but for what a system and a machine are faster by."""
    for (machine, scale), (place, system) in product(
        (("h100-cxl-ndp", 1.0), ("phone-lpddr5x-ufs4", 0.1)), enumerate(TOKENS_PER_S)
    ):
        told = {"comparison": "as the rows say", "trace_id": TRACE, "hardware": machine, "place": place, "system": system}
        is_empty = scale < 1.0 and system == "no_offload"
        for seed in (0,) if is_empty else (0, 1, 2):
            run_id = None if is_empty else f"{machine}-{system}-{seed}"
            rows["comparisons"].append(told | {"seed": seed, "result_id": run_id, "reason": REASON if is_empty else None})
            if run_id:
                _add_run(rows, run_id, machine, system, 1.0 / (scale * TOKENS_PER_S[system] * (1.0 + 0.1 * seed)), seed=seed)


def add_lone(rows: Rows) -> None:
    """One system alone on a tape that comes first by name."""
    _add_run(rows, "alone", "h100-cxl-ndp", "near_compute", 0.01)
    rows["system_runs"][-1]["trace_id"] = "alone"


def add_oracle(rows: Rows) -> None:
    """A bound of another system, faster than LRU's."""
    _add_run(rows, "oracle", "h100-cxl-ndp", "prefetch_oracle", 0.001)
    rows["system_runs"][-1] |= {"capacity_frac": 0.25, "is_bound": True, "residency": "lru", "prefetch": "oracle"}


def add_variants(rows: Rows) -> None:
    """One system with its own cache as it says itself, and with another."""
    for token_s, changes in ((0.01, {"residency": "lru", "residency.budget": "25%"}), (0.02, {"residency": "lfu"})):
        _add_run(rows, f"of-{changes['residency']}", "h100-cxl-ndp", "lru_offload", token_s, changes)


def add_versions(rows: Rows) -> None:
    """A system's file that was changed, then its policy, which a hash alone tells; two seeds, one made again in other words, by
    newer code."""
    for version, (seed, token_s, room, ahead, sha256) in enumerate((
        (0, 0.01, "25%", "one", None), (1, 0.02, "25%", "one", None), (0, 0.03, "4 experts", "one", None),
        (0, 0.08, "25%", "two", None), (0, 0.16, "25%", "two", "0"),
    )):  # fmt: skip
        _add_run(rows, f"version-{version}", "h100-cxl-ndp", "mine", token_s, seed=seed)
        run = rows["system_runs"][-1]
        run |= {"capacity_frac": 0.25, "residency": f"lru budget={room}", "prefetch": ahead, "system_sha256": sha256}
        run["asked"] = json.dumps(json.loads(run["asked"]) | {"budget": room})


def add_equals(rows: Rows) -> None:
    """LRU in two words, and a system as fast: of two seeds, one fetches nothing. A smaller room, which has no LRU."""
    for run_id, system, seed, changes, share in (
        ("lru", "lru_offload", 0, {}, 0.25), ("again", "lru_offload", 0, {"residency": "lru"}, 0.25),
        ("equal-0", "equal", 0, {}, 0.25), ("equal-1", "equal", 1, {}, 0.25), ("small", "equal", 0, {}, 0.1),
    ):  # fmt: skip
        _add_run(rows, run_id, "h100-cxl-ndp", system, 0.01, changes, seed)
        rows["system_runs"][-1] |= {"capacity_frac": share, "residency": "lru"}
    rows["series"] = [row for row in rows["series"] if (row["run_id"], row["part"]) != ("equal-1", "experts fetched")]
    cells = ((25, "lru", "lru_offload"), (25, "equal-0", "equal"), (10, "small", "equal"), (10, None, "lru_offload"))
    for room, run_id, system in cells:
        told = {"comparison": f"{room}%", "trace_id": TRACE, "hardware": "h100-cxl-ndp", "place": 0, "system": system, "seed": 0}
        rows["comparisons"].append(told | {"result_id": run_id, "reason": None if run_id else REASON})


def _add_run(
    rows: Rows, run_id: str, machine: str, system: str, token_s: float, changes: dict | None = None, seed: int = 0
) -> None:
    named = {"name": "bound" * (system == "bound"), "changes": changes or {}, "numbers": {}}
    asked = named | {"workload": WORKLOAD | {"seed": seed}, "expert_format": "auto"}
    told = {"run_id": run_id, "trace_id": TRACE, "system": system, "hardware": machine, "profile": "physical", "schedule": "orca"}
    told |= {"capacity_frac": 0.25 if system in DECISIONS else 1.0, "is_bound": system == "bound", "asked": json.dumps(asked)}
    rows["system_runs"].append(told | DECISIONS.get(system, {}))
    metrics = {"tokens_per_s": 1.0 / token_s, "ttft_mean_s": 10.0 * token_s, "tbt_mean_s": token_s, "total_s": 10.0 * token_s}
    metrics |= {"energy_j_per_output_token": (40.0 if system == "few_bits" else 50.0) * token_s, "hit_frac": 0.5}
    _add_metrics(rows, run_id, metrics | {"fetched_bytes_per_token": 1e6})
    for metric, label, part, value in SPENT:
        rows["series"].append({"run_id": run_id, "metric": metric, "label": label, "part": part, "value": value * token_s})


def add_points(rows: Rows) -> None:
    """A study of two lines over three rooms, one of which fetches nothing; of two seeds, the second asked for twice."""
    for place, (line, x) in enumerate((line, x) for line in ("alone", "both") for x in ("25%", "50%", "75%")):
        for seed in (0, 1):
            run_id = f"point-{place}-{seed}"
            told = {"study": "made-up", "series": "small", "place": place, "panel": "one machine", "line": line, "x": x}
            told |= {"system": line, "hardware": "h100", "trace_id": f"tape-{seed}", "seed": seed, "result_id": run_id}
            rows["study_points"] += [told | {"reason": None, "place": place + 10 * again} for again in range(1 + seed)]
            value = (1.0 if line == "alone" else 2.0) * (place % 3 + 1) * (1.0 + seed)
            times = {"ttft_mean_s": 1 / value, "largest_gap_s": 1 / value}
            _add_metrics(rows, run_id, {"tokens_per_s": value, "fetched_bytes_per_token": 1e6 * (place != 1)} | times)


def add_tape(rows: Rows) -> None:
    """The tape's model, and what few bits cost it."""
    rows["traces"].append(
        {"trace_id": TRACE, "model_id": "m", "dataset": "docs", "origin": "captured", "tables": "", "flags": "{}"}
        | {"created_utc": "2026-11-20T12:00:00Z"}
        | dict.fromkeys(("n_requests", "n_tokens", "n_layers", "n_moe_layers", "n_experts", "top_k"), 8)
    )
    other = (("few_bits", {"precision": "wide"}, 9.0), ("full", {"storage": "quarot"}, 9.0))  # no plain model
    for policy, parameters, perplexity in (("none", {}, 4.0), ("few_bits", {"precision": "uniform"}, 5.0), *other):
        told = {"model_id": "m", "dataset": "code", "parameters": json.dumps(parameters), "n_tokens": 1}
        rows["quality"].append(told | {"policy": policy, "perplexity": perplexity})


def _add_metrics(rows: Rows, run_id: str, metrics: dict[str, float]) -> None:
    for name, of in metrics.items():
        made = {"run_id": run_id, "metric": name, "value": of, "low": 0.8 * of, "high": 1.2 * of, "denominator": None}
        rows["metrics"].append(made)


EVERYTHING = (add_cells, add_points)
