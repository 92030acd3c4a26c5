"""Made-up rows of the page of systems: three systems and a bound on two machines, one cell of which is empty."""

from __future__ import annotations

Rows = dict[str, list[dict]]
COMPARISON, REASON = "8 requests of the tape, all there at 0, order tape; room for experts 25%", "experts <do> not fit"
TOKENS_PER_S = {"no_offload": 400.0, "lru_offload": 100.0, "near_compute": 150.0, "bound": 120.0}


def add_cells(rows: Rows) -> None:
    for machine, scale in (("h100-cxl-ndp", 1.0), ("phone-lpddr5x-ufs4", 0.1)):
        for place, (system, tokens_per_s) in enumerate(TOKENS_PER_S.items()):
            is_empty = scale < 1.0 and system == "no_offload"
            told = {"comparison": COMPARISON, "trace_id": "made-up", "hardware": machine, "place": place, "system": system}
            for seed in (0,) if is_empty else (0, 1, 2):
                run_id = None if is_empty else f"{machine}-{system}-{seed}"
                rows["comparisons"].append(told | {"seed": seed, "result_id": run_id, "reason": REASON if is_empty else None})
                value = scale * tokens_per_s * (1.0 + 0.1 * seed)
                metrics = {"tokens_per_s": value, "ttft_mean_s": 10.0 / value, "energy_j_per_output_token": 50.0 / value}
                metrics |= {"hit_frac": 0.5, "moe_frac": 0.7, "dense_frac": 0.3}
                if run_id:
                    _add_metrics(rows, run_id, metrics)


def add_points(rows: Rows) -> None:
    """A study of two lines over three rooms, whose runs are two seeds each."""
    for place, (line, x) in enumerate((line, x) for line in ("alone", "both") for x in ("25%", "50%", "75%")):
        for seed in (0, 1):
            run_id = f"point-{place}-{seed}"
            told = {"study": "made-up", "series": "small", "place": place, "panel": "one machine", "line": line, "x": x}
            told |= {"system": line, "hardware": "h100", "trace_id": f"tape-{seed}", "seed": seed, "result_id": run_id}
            rows["study_points"].append(told | {"reason": None})
            value = (1.0 if line == "alone" else 2.0) * (place % 3 + 1) * (1.0 + seed)
            times = {"ttft_mean_s": 1 / value, "largest_gap_s": 1 / value}
            _add_metrics(rows, run_id, {"tokens_per_s": value, "fetched_bytes_per_token": 1e6} | times)


def _add_metrics(rows: Rows, run_id: str, metrics: dict[str, float]) -> None:
    for name, of in metrics.items():
        made = {"run_id": run_id, "metric": name, "value": of, "low": 0.8 * of, "high": 1.2 * of, "denominator": None}
        rows["metrics"].append(made)


EVERYTHING = (add_cells, add_points)
