"""Made-up rows of the ELMoE-3D page in the declared schemas: round numbers, winners and thresholds told by hand."""

from itertools import product

from made_up import Rows, Tape, catalogue, of_file

STUDY, GIB = "elmoe3d", 2**30
QWEN, GPT = "qwen3-30b-a3b", "gpt-oss-20b"
TRACE = f"{QWEN}-synthetic-0a1b2c3d"
ELASTIC, EAGLE, SCHEMES = "Elastic-SD", "EAGLE3", ("Elastic-SD", "EAGLE3", "SLM-SD", "Quant-SD")
BATCHES = (1, 4, 8, 16)
PHI_AR = {ELASTIC: 4.0, EAGLE: 3.0, "SLM-SD": 2.0, "Quant-SD": 1.0}
PHI_SD = {ELASTIC: (2.0, 5.0, 6.0, 7.0), EAGLE: (3.5, 3.0, 2.0, 3.5), "SLM-SD": (1.0,) * 4, "Quant-SD": (1.5,) * 4}
PLATFORMS = {"elmoe3d": 4.0, "hb-xpu": 3.2, "xpu-nmp": 2.0, "xpu": 1.0}


def point(
    series: str, scheme: str, batch: int, gb: int = 8, model: str = QWEN, law: str = "paper_law", **changed: object
) -> dict:
    """A row of elmoe3d_points: AR as PHI_AR, SD as PHI_SD of the nearest smaller batch; on GPT-OSS SD never pays."""
    held = max(n for n, b in enumerate(BATCHES) if b <= batch)
    phi_ar = PHI_AR[scheme] if model == QWEN else 20.0 + PHI_AR[scheme]
    phi_sd = PHI_SD[scheme][held]
    row = {
        "study": STUDY, "series": series, "hardware": f"elmoe3d-{gb}gb", "model_id": model, "sd_scheme": scheme, "batch": batch,
        "context_tokens": 1024, "hb_bytes": float(gb * GIB), "hb_bytes_per_s": gb * 2e11, "hit_model": law, "level": "L1",
        "fit": "calibrate", "accepted_form": "linear", "alpha": 0.5, "accepted_len": 4.0, "fidelity": "input",
        "ar_experts": 8.0 * batch**0.5, "draft_experts": 16.0, "verify_experts": 16.0 * batch**0.5, "n_draft_steps": 8,
        "draft_step_s": 0.005 if scheme == ELASTIC else 0.001, "verify_s": 0.04 if scheme == ELASTIC else 0.05,
        "phi_ar": phi_ar, "phi_sd": phi_sd, "best_mode": "sd" if phi_sd > phi_ar else "ar",
    }  # fmt: skip
    return row | changed


def add_table(rows: Rows) -> None:
    """Ours is 5 % above the paper in AR, a fifth below in SD; EAGLE3's SD is the paper's best at batch 16; GPT-OSS withheld."""
    for gb, model, law, level, scheme, batch in product(
        (4, 8), (QWEN, GPT), ("paper_law", "physical", "che"), ("L0", "L1"), SCHEMES, BATCHES
    ):
        row = point("table-3", scheme, batch, gb, model, law, level=level)
        if model == GPT and batch > 1:
            row["is_withheld"] = True
        else:
            row |= {"published_ar": row["phi_ar"] / 1.05, "published_sd": row["phi_sd"] / 0.8}
            row |= {"role_ar": "predict", "role_sd": "predict"}
        if (scheme, batch, model) == (EAGLE, 16, QWEN):
            row["published_sd"] = 11.0
        if law == "physical":
            row["phi_ar"] /= 2
        rows["elmoe3d_points"].append(row)


def add_batches(rows: Rows) -> None:
    """To batch 64 at the acceptance of 16."""
    for gb, model, scheme, batch in product((4, 8), (QWEN, GPT), SCHEMES, (*BATCHES, 2, 32, 64)):
        rows["elmoe3d_points"].append(point("batch", scheme, batch, gb, model))


def add_sweeps(rows: Rows) -> None:
    """AR rises with capacity and falls with context; at 2 GiB the pool has four experts of eight selected."""
    for scheme, batch in product(SCHEMES, BATCHES):
        for gib in (2, 8, 32):
            grown = {"hb_bytes": float(gib * GIB), "phi_ar": PHI_AR[scheme] * gib / 8, "draft_experts": 4.0 if gib == 2 else 16.0}
            rows["elmoe3d_points"].append(point("hb-capacity", scheme, batch, **grown))
        for factor in (0.5, 1.0, 2.0):
            rows["elmoe3d_points"].append(point("hb-bandwidth", scheme, batch, hb_bytes_per_s=factor * 1.6e12))
        for context in (1024, 131072):
            rows["elmoe3d_points"].append(point("context", scheme, batch, context_tokens=context))


def add_alpha(rows: Rows) -> None:
    """SD is (1 + 8 alpha) / 2 x: equal to an AR of 4 at 7/8. The chain halves SD."""
    for scheme, alpha in product(SCHEMES, (0.0, 0.5, 1.0)):
        rows["elmoe3d_points"].append(point("alpha", scheme, 16, alpha=alpha, accepted_len=8 * alpha, phi_sd=(1 + 8 * alpha) / 2))
    rows["elmoe3d_points"].append(point("accepted-form", ELASTIC, 16, accepted_form="chain", phi_sd=4.0, published_sd=8.0))


def add_measured(rows: Rows) -> None:
    """A tape's own acceptance."""
    measured = {"accepted_form": "measured", "alpha": None, "accepted_len": 1.25, "fidelity": "approximate"}
    rows["elmoe3d_points"].append(point("measured", ELASTIC, 4, model="embedded", **measured))


def add_mapping(rows: Rows) -> None:
    """Elastic-SD has 5 GB of experts, EAGLE3 4 and a head of 1; the rest of HB is static."""
    for gb, model, scheme, batch in product((4, 8), (QWEN, GPT), SCHEMES, BATCHES):
        held = {"static": 2e9, "experts": 5e9 if scheme == ELASTIC else 4e9, "draft weights": 0.0 if scheme == ELASTIC else 1e9}
        for tier, parts in (("hb", held), ("ext", {"experts": 30e9})):
            for part, placed in parts.items():
                rows["elmoe3d_mapping"].append({
                    "study": STUDY, "hardware": f"elmoe3d-{gb}gb", "model_id": model, "sd_scheme": scheme, "batch": batch,
                    "context_tokens": 1024, "tier": tier, "part": part, "placed_bytes": placed,
                })  # fmt: skip


def add_intensity(rows: Rows) -> None:
    """Two operations per byte and request; HB bends at 300, EXT at 5000."""
    for gb, model in product((4, 8), (QWEN, GPT)):
        at = {"study": STUDY, "hardware": f"elmoe3d-{gb}gb", "model_id": model}
        for mode, part, batch in product(("ar", "sd"), ("static", "experts"), BATCHES):
            made = {"batch": batch, "step_mode": mode, "part": part, "ops_per_byte": 2.0 * batch * (16 if mode == "sd" else 1)}
            rows["elmoe3d_intensity"].append(at | made)
        for part, knee in (("knee hb", 300.0), ("knee ext", 5000.0)):
            rows["elmoe3d_intensity"].append(at | {"batch": 1, "step_mode": "ar", "part": part, "ops_per_byte": knee})


def add_platforms(rows: Rows) -> None:
    """Ours is 4 x the xPU in SD; near-memory compute is 2 x at the middle of its bandwidths, and as fast as they say."""
    for (platform, speedup), batch, mode, nodes in product(PLATFORMS.items(), BATCHES, ("ar", "sd"), (8.0, 16.0, 60.0)):
        near = product((2.0, 3.0, 4.0), ("dense", "experts")) if platform == "xpu-nmp" else ((None, None),)
        for ratio, placement in near:
            made = speedup * (ratio / 3 if ratio else 1.0) * (1.0 if mode == "sd" else 0.5)
            rows["elmoe3d_platforms"].append({
                "study": STUDY, "platform": platform, "model_id": QWEN, "dataset": "mt-bench", "batch": batch, "level": "L1",
                "hit_model": "paper_law", "nmp_ext_ratio": ratio, "placement": placement, "verify_nodes": nodes,
                "step_mode": mode, "token_s": 0.1 / made, "speedup": made, "is_best": mode == "sd", "fidelity": "input",
            })  # fmt: skip


def add_energy(rows: Rows) -> None:
    """Ours takes 10 mJ, the xPU four times as much; static power and EXT reads have half each."""
    for platform, batch, mode in product(("elmoe3d", "xpu"), BATCHES, ("ar", "sd")):
        for part in ("static", "ext"):
            joules = 0.005 * (4 if platform == "xpu" else 1)
            rows["elmoe3d_energy"].append({
                "study": STUDY, "platform": platform, "model_id": QWEN, "dataset": "mt-bench", "batch": batch, "level": "L1",
                "hit_model": "paper_law", "step_mode": mode, "is_best": mode == ("ar" if batch == 1 else "sd"), "part": part,
                "j_per_token": joules, "low": 0.5 * joules, "high": 2 * joules,
            })  # fmt: skip


def add_tape(rows: Rows) -> None:
    """The tape that add_reuse is about, in the catalogue."""
    rows["traces"].append(catalogue(Tape(TRACE, QWEN, "synthetic", "synthetic", 48, 128, 8)))


add_reuse, add_checks, add_claims, add_acceptance = map(of_file("elmoe3d"), ("reuse", "checks", "claims", "acceptance"))
EVERYTHING = (
    add_table, add_batches, add_sweeps, add_alpha, add_measured, add_mapping, add_intensity, add_platforms, add_energy, add_reuse,
    add_checks, add_claims, add_acceptance,
)  # fmt: skip
