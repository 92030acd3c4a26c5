"""Made-up rows of the Layered Prefill page in the declared schemas: straight lines, round numbers, answers told by hand."""

import json
from itertools import product
from typing import Any

import made_up
from made_up import Rows, of_file

from tokentape.warehouse.schema.metrics import METRICS

STUDY = "layered_prefill"
QWEN, GPT, DENSE = "qwen3-30b-a3b", "gpt-oss-20b", "qwen3-8b"
CHUNKED, LAYERED = {"chunk_tokens": 512}, {"pass_tokens": 8192, "n_max": 16, "n_lg_rule": "code"}
TTFT_LIMITS_S, TBT_LIMITS_S = (1.0, 10.0, 40.0), (0.0625, 0.125, 0.5)


def add_point(
    rows: Rows, series: str, scheduler: str, params: dict[str, Any], rate: float | None, metrics: dict[str, float], **more: str
) -> str:
    """A point whose bands are a tenth to both sides; its id."""
    place = {"model_id": QWEN, "workload": "arxiv", "arrival": "poisson", "hardware": "h100x2", "coverage": "paper_table"} | more
    point_id = f"{series}/{'/'.join(place.values())}/{scheduler}/{json.dumps(params)}/{rate}"
    for metric, value in metrics.items():
        rows["serving_points"].append({
            "study": STUDY, "point_id": point_id, "series": series, **place, "rate_per_s": rate, "scheduler": scheduler,
            "policy_params": json.dumps(params), "n_seeds": 40, "metric": metric, "unit": METRICS[metric].unit,
            "value": value, "low": 0.9 * value, "high": min(1.1 * value, 1.0) if metric.endswith("_frac") else 1.1 * value,
        })  # fmt: skip
    return point_id


def served(ttft_s: float, tbt_s: float, joules: float = 50.0) -> dict[str, float]:
    """Metrics of any point: 1000 prompt and output tokens, of which 25 output; half of the energy is of bytes, a tenth of ops."""
    return {
        "ttft_mean_s": ttft_s, "ttft_p99_s": 3 * ttft_s, "tbt_mean_s": tbt_s, "tbt_p99_s": 2 * tbt_s, "jain": 0.9,
        "energy_j_per_token": joules / 1000, "energy_j_per_output_token": joules / 25,
        "energy_static_j": 0.4 * joules, "energy_bytes_j": 0.5 * joules, "energy_ops_j": 0.1 * joules,
    }  # fmt: skip


def add_prompt(rows: Rows) -> None:
    """Twice the chunk, half the bytes; 60 % of the time is the MoE's."""
    shares = {"moe_frac": 0.6, "attention_frac": 0.2, "dense_frac": 0.1, "communication_frac": 0.05, "other_frac": 0.05}
    for chunk in (512, 1024, 8192):
        made = {"ttft_mean_s": 0.1 + 200 / chunk, "expert_bytes_per_request": 4e14 / chunk, **shares}
        where = {"workload": "prompt-8192", "arrival": "at once"}
        add_point(rows, "one prompt", "chunked", {"chunk_tokens": chunk}, None, made, **where)
    made = {"ttft_mean_s": 0.2, "expert_bytes_per_request": 6e10, **shares}
    add_point(rows, "one prompt", "layered", LAYERED, None, made, workload="prompt-8192", arrival="at once")


def add_rates(rows: Rows) -> None:
    """Chunked falls from all to none between 1 and 2 requests/s, its gaps last; layered keeps all."""
    for (model, workload), rate in product(((QWEN, "arxiv"), (GPT, "sharegpt")), (1.0, 1.5, 2.0)):
        lost = 2 * (rate - 1) if rate < 2 else 1.0
        for chunk, frac in ((512, 1 - min(lost, 1.0)), (1024, 1 - lost / 4)):
            made = {"slo_frac": frac, "slo_ttft_frac": frac, "slo_tbt_frac": 1.0, "decode_batch_mean": 10 * rate}
            place = {"model_id": model, "workload": workload}
            add_point(rows, f"slo {model} {workload}", "chunked", {"chunk_tokens": chunk}, rate, made, **place)
        made = {"slo_frac": 1.0, "slo_ttft_frac": 1.0, "slo_tbt_frac": 1.0, "decode_batch_mean": 8 * rate}
        add_point(rows, f"slo {model} {workload}", "layered", LAYERED, rate, made, model_id=model, workload=workload)


def add_grid(rows: Rows) -> None:
    """As add_rates; within the tightest first limit nobody is in time, within the loosest everybody is."""
    add_rates(rows)
    fracs = {row["point_id"]: row["value"] for row in rows["serving_points"] if row["metric"] == "slo_frac"}
    _add_grid(rows, fracs)


def _add_grid(rows: Rows, fracs: dict[str, float]) -> None:
    for (point_id, frac), ttft, tbt in product(fracs.items(), TTFT_LIMITS_S, TBT_LIMITS_S):
        attained = {1.0: 0.0, 10.0: frac, 40.0: 1.0}[ttft]
        rows["serving_attainment"].append(
            {"study": STUDY, "point_id": point_id, "ttft_limit_s": ttft, "tbt_limit_s": tbt, "attained_frac": attained}
        )


def add_window(rows: Rows) -> None:
    """Ten iterations of 40 ms under chunked, half with 500 prompt tokens; of 20 ms under layered, 8 with 4000 in four groups."""
    for series, scheduler, params, seconds, n_groups in (
        ("table-2", "chunked", CHUNKED, 0.04, 1),
        ("table-6", "layered", LAYERED, 0.02, 4),
    ):
        point_id = add_point(rows, series, scheduler, params, 1.3, {"n_requests": 100.0})
        where = {"study": STUDY, "point_id": point_id}
        for n in range(10):
            carries = n < (8 if n_groups > 1 else 5)
            rows["serving_iterations"].append(where | {
                "iteration": 100 + n, "start_s": 5 + n * seconds, "seconds": seconds, "n_decodes": 3,
                "n_prefill_tokens": (4000 if n_groups > 1 else 500) if carries else 0,
                "layer_group": n % n_groups if carries else 0, "n_groups": n_groups if carries else 1,
            })  # fmt: skip
        for request in (7, 8):
            spans = (
                ("queued", 5.0, 0.1, None),
                ("prefill", 5.1, 0.05, 0 if n_groups > 1 else None),
                ("decode", 5.15, 0.05, None),
            )
            for state, start, lasts, group in spans:
                rows["serving_spans"].append(
                    where | {"request_id": request, "state": state, "start_s": start, "seconds": lasts, "layer_group": group}
                )
        for place in range(3):
            rows["serving_tokens"].append(where | {"request_id": 7, "place": place, "time_s": (1 + place**2) * seconds * 25})


def add_knobs(rows: Rows) -> None:
    """Chunks of 512 and 1024 are beaten by N = 16 and 8; those of 2048 are not. More groups: shorter gaps, later tokens."""
    for chunk, ttft, tbt in ((512, 4.0, 0.02), (1024, 2.0, 0.04), (2048, 0.25, 0.08)):
        add_point(rows, "pareto", "chunked", {"chunk_tokens": chunk}, 1.3, served(ttft, tbt))
    for n_max, ttft, tbt in ((2, 0.5, 0.06), (8, 0.8, 0.03), (16, 1.2, 0.018)):
        add_point(rows, "pareto", "layered", LAYERED | {"n_max": n_max}, 1.3, served(ttft, tbt))
        add_point(rows, "n-sweep", "layered", LAYERED | {"n_max": n_max, "n_lg_rule": "fixed"}, 1.4, served(ttft, tbt))


def add_energy(rows: Rows) -> None:
    """Layered takes a tenth less at 1.3/s."""
    add_point(rows, "table-2", "chunked", CHUNKED, 1.3, served(3.0, 0.03, 60.0))
    add_point(rows, "table-6", "layered", LAYERED, 1.3, served(1.0, 0.02, 54.0))
    add_point(rows, "table-8", "layered", LAYERED, 1.6, served(2.0, 0.02, 45.0))


def add_dense(rows: Rows) -> None:
    """Layered is a tenth slower in both at 0.6 and 1.0/s and alike at 0.2; in time are 60 % of its requests against 80 %."""
    fracs = {}
    for rate, (scheduler, params, times, frac) in product(
        (0.2, 0.6, 1.0), (("chunked", CHUNKED, 1.0, 0.8), ("layered", LAYERED, 1.1, 0.6))
    ):
        slower = times if rate > 0.2 else 1.0
        place = {"model_id": DENSE, "hardware": "h100"}
        fracs[add_point(rows, "dense", scheduler, params, rate, served(slower, 0.02 * slower), **place)] = frac
    _add_grid(rows, fracs)


def add_arrivals(rows: Rows) -> None:
    """Layered halves TTFT everywhere but in the trace, where it doubles it."""
    for series, arrival, times in (("table-12", "poisson", 0.5), ("bursty", "gamma, CV 2", 0.5), ("azure", "trace", 2.0)):
        workload = "azure-0a1b" if series == "azure" else "arxiv"
        for scheduler, params, factor in (("chunked", CHUNKED, 1.0), ("layered", LAYERED, times)):
            made = served(2 * factor, 0.04 * min(factor, 1.0))
            add_point(rows, series, scheduler, params, 1.4, made, arrival=arrival, workload=workload)


def add_others(rows: Rows) -> None:
    """Orca starts soonest, static has the shortest gaps; the disaggregated pair has no energy of its own."""
    add_point(rows, "other schedulers", "orca", {"cap_tokens": 8192}, 1.3, served(0.3, 0.1))
    add_point(rows, "other schedulers", "static", {"max_prompts": 32}, 1.3, served(4.6, 0.012))
    pair = {"ttft_mean_s": 1.5, "tbt_mean_s": 0.016, "tbt_p99_s": 0.025}
    add_point(rows, "table-10", "disaggregated", {"chunk_tokens": 2048}, 1.4, pair, hardware="h100")


def add_elsewhere(rows: Rows) -> None:
    """A larger model and another GPU; layered takes half."""
    for series, place in (("other models", {"model_id": "gpt-oss-120b"}), ("other gpus", {"hardware": "a100x2"})):
        for scheduler, params, factor in (("chunked", CHUNKED, 1.0), ("layered", LAYERED, 0.5)):
            add_point(rows, series, scheduler, params, 1.0, served(2 * factor, 0.04 * factor), **place)


def add_coverage(rows: Rows) -> None:
    """Independent draws are a quarter too high in the paper's table; the tape's layers differ by a tenth of the experts."""
    of_paper = {"study": STUDY, "source": "layered_prefill", "model_id": QWEN, "layer_band": "all", "low": None, "high": None}
    of_tape = {"study": STUDY, "source": "embedded-code-0a1b2c3d", "model_id": "embedded"}
    for tokens_of, n in product(("decode", "prefill"), (1, 8, 32, 128)):
        share = 0.1 if n == 1 else 0.0025 * n + 0.4
        for form, times in (("paper_table", 1.0), ("independent", 1.0 if n == 1 else 1.25)):
            made = {"form": form, "tokens_of": tokens_of, "n_tokens": n, "coverage_frac": share * times}
            rows["coverage_points"].append(of_paper | made)
        for band, more in (("all", 0.0), ("first third", 0.05), ("last third", -0.05)):
            made = {"form": "recorded", "tokens_of": tokens_of, "layer_band": band, "n_tokens": n}
            rows["coverage_points"].append(
                of_tape | made | {"coverage_frac": share + more, "low": share - 0.05, "high": share + 0.05}
            )
            for form, times in (("paper_table", 1.1), ("independent", 1.2)):
                stated = made | {"form": form, "coverage_frac": share * times, "low": None, "high": None}
                rows["coverage_points"].append(of_tape | stated)


def add_saturation(rows: Rows) -> None:
    """The disaggregated pair of `add_others` waits half as long as the paper says; a tenth slower, half as long again."""
    add_point(rows, "saturation", "disaggregated", {"chunk_tokens": 2048}, 1.54, {"ttft_mean_s": 4.5 / 1.1}, hardware="h100")
    at = {"claim_id": "layered_prefill/f", "paper": STUDY, "location": "Table 10", "metric": "ttft_mean"}
    at |= {"model": "Qwen3-30B-A3B", "setting": "disaggregated (rate not stated)"}
    made_up.add_claim(rows, None, **at, comparator="=", value=3.0, unit="s", role="report")


add_claims = of_file("layered")("claims")
EVERYTHING = (
    add_claims, add_coverage, add_prompt, add_grid, add_window, add_knobs, add_energy, add_dense, add_arrivals, add_others,
    add_elsewhere, add_saturation,
)  # fmt: skip
