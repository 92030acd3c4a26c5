"""Made-up rows of the CXL GPU-NDP page in the declared schemas: round numbers, gains and shares told by hand."""

import json
from itertools import product

from made_up import Rows, Tape, catalogue, of_file

STUDY, SMALL, LARGE, OTHER = "cxl_ndp", "mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b"
TAPE, LOSSES = "embedded-math-0a1b2c3d", "embedded-docs-losses-4e5f"
STEP_MS = {
    "OURS-2": 0.5,
    "OURS-3": 0.8,
    "MoNDE": 4.0,
    "MoNDE never": 3.0,
    "MoNDE ema": 3.5,
    "MoNDE always": 20.0,
    "HOBBIT": 8.0,
}
COMPARED = ("OURS-2", "OURS-3", "MoNDE", "HOBBIT")
PARTS = {"OURS-2": (1.0, 0.0, 4.0, 3.0, 2.0, 5.0), "MoNDE": (1.0, 29.0, 4.0, 3.0, 43.0, 44.0)}  # prefill ... wait, NDP; seconds
PLACED = {"prefill_guided": 0.7, "static_global": 0.5, "random": 0.4, "ema": 0.6, "oracle": 0.8}


def add_point(
    rows: Rows, series: str, setting: str, model: str, system: str, number: float | None = None, slower: float = 1.0
) -> None:
    """Every metric of a system; ours take `slower` times as long as in STEP_MS, over seeds a tenth less or more."""
    ours = slower if system.startswith("OURS") else 1.0
    step = STEP_MS[system] * ours * (2 if model == LARGE else 1)
    gain = STEP_MS["MoNDE"] / STEP_MS[system] / ours * (0.5 if model == OTHER and ours == slower else 1.0)
    metrics = {
        "step_s": (step / 1e3, "s"),
        "tokens_per_s": (16 * 1e3 / step / 32, "1/s"),
        "decode_gain": (gain, "x"),
        "gain_over_hobbit": (2 * gain, "x"),
        "hit_frac": (0.55, "1"),
    }
    for metric, (value, unit) in metrics.items():
        rows["cxl_ndp_points"].append({
            "study": STUDY, "series": series, "setting": setting, "setting_value": number, "model_id": model, "source": "context",
            "origin": "synthetic", "hardware": "h100-cxl-ndp", "system": system, "batch": 16, "hot_experts": 4,
            "mean_bits": float(system[-1]) if system.startswith("OURS") else 16.0, "n_seeds": 6, "role": "predict",
            "metric": metric, "unit": unit, "value": value, "low": 0.9 * value, "high": 1.1 * value,
        })  # fmt: skip


def add_headline(rows: Rows) -> None:
    """OURS-2 is 8 x MoNDE and 16 x HOBBIT on both of the paper's models, half of that on the other."""
    for model, system in product((SMALL, LARGE, OTHER), STEP_MS):
        add_point(rows, "headline", "", model, system)


def add_sweeps(rows: Rows) -> None:
    """A larger batch costs ours half of its gain; twice the link doubles, NDP bandwidth peaks in between."""
    for model, (batch, slower), system in product((SMALL, OTHER), ((1, 0.5), (16, 1.0), (32, 2.0)), COMPARED):
        add_point(rows, "batch", f"batch {batch}", model, system, float(batch), slower)
    for model, (name, number, slower), system in product(
        (SMALL, OTHER), (("PCIe Gen4", 32.0, 1.0), ("CXL 3", 128.0, 4.0)), COMPARED
    ):
        add_point(rows, "link", name, model, system, number, slower)
    for series, number, slower in (
        ("link bandwidth", 16.0, 1.0), ("link bandwidth", 64.0, 2.0),
        ("ndp macs", 0.5, 2.0), ("ndp macs", 2.0, 1.0),
        ("ndp bandwidth", 0.5, 2.0), ("ndp bandwidth", 1.0, 0.5), ("ndp bandwidth", 2.0, 1.0),
        ("hot experts", 0.0, 2.0), ("hot experts", 4.0, 1.0),
    ):  # fmt: skip
        for system in COMPARED:
            add_point(rows, series, f"{series} {number:g}", SMALL, system, number, slower)


def add_ablations(rows: Rows) -> None:
    """A fixed multiply rate takes four fifths of the gain, a static placement half."""
    for series, setting, slower in (
        ("mac rate", "scales with bits, batch 16", 1.0), ("mac rate", "fixed, batch 16", 5.0),
        ("placement", "prefill_guided", 1.0), ("placement", "static_global", 2.0),
        ("bits rule", "prefix_split", 1.0), ("bits rule", "uniform", 1.0),
    ):  # fmt: skip
        for system in COMPARED:
            add_point(rows, series, setting, SMALL, system, None, slower)


def add_requests(rows: Rows) -> None:
    """OURS-2 takes 10 s, OURS-3 a fifth more, MoNDE 80 s, HOBBIT 200 s; twice for answers twice as long."""
    made = {
        "OURS-2": PARTS["OURS-2"],
        "OURS-3": tuple(1.2 * part for part in PARTS["OURS-2"]),
        "MoNDE": PARTS["MoNDE"],
        "HOBBIT": (10.0, 183.0, 4.0, 3.0, 0.0, 0.0),
    }
    for model, grid, decode, (system, parts) in product(
        (SMALL, LARGE), ("long prompts", "short prompts"), (256, 512), made.items()
    ):
        longer = decode / 256
        scaled = [part * longer for part in parts]
        e2e = sum(scaled[:5])
        gain = 80.0 / (e2e / longer) * (1 if grid == "long prompts" else 1.5)
        names = ("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s", "ndp_s")
        rows["cxl_ndp_requests"].append({
            "study": STUDY, "setting": grid, "model_id": model, "source": "context", "origin": "synthetic",
            "hardware": "h100-cxl-ndp", "system": system, "batch": 16, "n_context_tokens": 128, "n_decode_tokens": decode,
            "streamed_experts": 5, **dict(zip(names, scaled, strict=True)), "e2e_s": e2e, "e2e_gain": gain, "low": 0.9 * gain,
            "high": 1.1 * gain, "gain_over_hobbit": 200.0 / (e2e / longer), "is_extrapolated": True, "n_seeds": 6,
        })  # fmt: skip


def _routings() -> tuple[dict, dict]:
    drawn = {"study": STUDY, "model_id": SMALL, "source": "context", "origin": "synthetic"}
    return drawn, drawn | {"model_id": "embedded", "source": TAPE, "origin": "captured"}


def add_routing(rows: Rows) -> None:
    """Two requests of four experts: the first uses 0 and 1, the second 0 and 2; hits as PLACED, a tenth less in a batch."""
    for of, layer in product(_routings(), (None, 0, 1)):
        for (placement, hit), batch in product(PLACED.items(), (1, 16)):
            share = hit - 0.1 * (batch > 1)
            rows["cxl_ndp_hits"].append(of | {
                "batch": batch, "placement": placement, "is_bound": placement == "oracle", "hot_experts": 2, "layer": layer,
                "gpu_hit_frac": share, "low": share - 0.02, "high": share + 0.02, "n_seeds": 3,
            })  # fmt: skip
        rows["cxl_ndp_similarity"].append(of | {
            "layer": layer, "own_cosine": 0.9 + 0.05 * (layer or 0), "shuffled_cosine": 0.6, "static_cosine": 0.65,
            "flat_cosine": 0.5, "static_frac": 0.25, "n_requests": 32, "n_seeds": 3,
        })  # fmt: skip
    for of, layer, (request, other), first in product(_routings(), (0, 1), ((3, 1), (8, 2)), (0, 4)):
        for expert in (0, other):
            rows["cxl_ndp_use"].append(of | {
                "request_id": request, "layer": layer, "first_step": first, "bin_steps": 4, "expert": expert, "use_frac": 0.5,
            })  # fmt: skip


def add_tape(rows: Rows) -> None:
    """The tapes that routing and losses were measured on, in the catalogue."""
    for trace_id, dataset, tables in ((TAPE, "math", "requests,tokens,routing"), (LOSSES, "docs", "requests,losses")):
        rows["traces"].append(catalogue(Tape(trace_id, "embedded", dataset, "captured", 4, 4, 2)) | {"tables": tables})


def add_losses(rows: Rows) -> None:
    """Losses fall by four with every bit, experts differ by eight; GPTQ loses half of round-to-nearest in 15 of 16 cells each."""
    for layer, expert, bits in product(range(2), range(4), (1, 2, 3, 4)):
        mse = 2.0**expert * 4.0 ** (4 - bits)
        rows["cxl_ndp_loss_tables"].append({
            "study": STUDY, "model_id": SMALL, "source": "context", "method": "stand-in", "layer": layer, "expert": expert,
            "bits": bits, "mse": mse,
        })  # fmt: skip
        for method, factor in (("gptq", 2.0 if (expert, bits) == (0, 4) else 0.5), ("rtn", 1.0)):
            rows["expert_losses"].append({
                "trace_id": LOSSES, "layer": layer, "expert": expert, "bits": bits, "method": method, "group": 128,
                "mse": factor * mse, "heldout_mse": factor * mse, "n_tokens": 500,
            })  # fmt: skip


def add_bits(rows: Rows) -> None:
    """Of four experts the selector gives 3, 3, 1 and 1 bits at 2 on average, 4, 4, 3 and 1 at 3; it keeps 60 and 90 %."""
    given = {
        "prefix_split": {2.0: (3, 3, 1, 1), 3.0: (4, 4, 3, 1)}, "uniform": {2.0: (2,) * 4, 3.0: (3,) * 4},
        "reversed": {2.0: (1, 1, 3, 3), 3.0: (1, 3, 4, 4)}, "optimum": {2.0: (4, 2, 1, 1), 3.0: (4, 4, 2, 2)},
    }  # fmt: skip
    ratios = {"prefix_split": (0.6, 0.9), "uniform": (1.0, 1.0), "reversed": (1.5, 1.2), "optimum": (0.55, 0.88)}
    for (rule, of), batch in product(given.items(), (1, 16)):
        at = {"study": STUDY, "model_id": SMALL, "source": "context", "method": "stand-in", "rule": rule, "batch": batch}
        for mean, ratio in zip(of, ratios[rule], strict=True):
            for place, bits in enumerate(of[mean], 1):
                rows["cxl_ndp_bits"].append(at | {
                    "mean_bits": mean, "importance_rank": place, "n_ranked": 4, "bits_mean": float(bits),
                    "bits_p05": float(max(1, bits - 1)), "bits_p95": float(min(4, bits + 1)),
                })  # fmt: skip
            rows["cxl_ndp_losses"].append(at | {
                "mean_bits": mean, "loss_ratio": ratio, "low": 0.9 * ratio, "high": 1.1 * ratio, "n": 64,
            })  # fmt: skip


def add_quality(rows: Rows) -> None:
    """Full precision has 10; at 2 bits the selector is 20 % worse, by use 15, uniform 30, reversed 50; at 3 bits 4, 3 and 6 %."""
    worse = {"prefix_split": {2: 0.2, 3: 0.04}, "uniform": {2: 0.3, 3: 0.03}, "reversed": {2: 0.5, 3: 0.06}}

    def add(rule: str, bits: float, seed: int, above: float, **changed: object) -> None:
        told = {
            "losses": LOSSES, "method": "gptq", "rule": rule, "bits": bits, "hot": 8, "alpha": 0.5,
            "placement": "prefill_guided", "loss_weight": "none", "prompt_tokens": 64, "decode_tokens": 192,
        } | changed  # fmt: skip
        rows["quality"].append({
            "model_id": "embedded", "policy": "cxl_ndp", "parameters": json.dumps(told), "dataset": "docs", "seed": seed,
            "perplexity": (10.0 + seed) * (1 + above), "agreement_frac": 1 - above / 2, "hot_frac": 0.7,
            "table_loss": None if rule == "full" else 0.01 * above + 1e-4,
        })  # fmt: skip

    for seed in range(4):
        add("full", 16.0, seed, 0.0)
        for rule, of in worse.items():
            for bits, above in of.items():
                add(rule, float(bits), seed, above + (0.15 if (rule, bits, seed) == ("prefix_split", 2, 3) else 0.0))
        for alpha in (0.0, 1.0):
            add("prefix_split", 2.0, seed, 0.25 - 0.01 * alpha, alpha=alpha)
        add("prefix_split", 2.0, seed, 0.15, loss_weight="prefill_share")
        add("prefix_split", 2.0, seed, 0.1, placement="oracle")


add_lanes, add_accuracy, add_capacity, add_claims, add_checks, add_orderings = map(
    of_file("cxl_ndp"), ("lanes", "accuracy", "capacity", "claims", "checks", "orderings")
)
EVERYTHING = (
    add_headline, add_sweeps, add_ablations, add_requests, add_lanes, add_routing, add_losses, add_bits, add_quality,
    add_orderings, add_accuracy, add_capacity, add_claims, add_checks,
)  # fmt: skip
