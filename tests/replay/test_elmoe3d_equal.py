"""ELMoE-3D's seconds and joules are those that its own cost model gave before there was one clock, on random settings.

tests/replay/golden/elmoe3d.parquet: a setting per row (machine's numbers, model, scheme, batch, context, constants, nodes) with
what came out; of baselines, the platform's name. Joules are by part, at every end.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
from elmoe3d_paper import QWEN, SETUP, STUDY, point

from tokentape.hw.elmoe3d_constants import ModelLaw, Speculation
from tokentape.hw.spec import load
from tokentape.replay.elmoe3d.energy import ENDS, joules_per_token, prices_of
from tokentape.replay.elmoe3d.platforms import baseline, platform_of
from tokentape.replay.elmoe3d.points import Compute, as_points
from tokentape.replay.elmoe3d.runs import ours
from tokentape.replay.elmoe3d.shape import machine_of
from tokentape.replay.elmoe3d.timing import evaluate

GOLDEN = Path(__file__).parent / "golden" / "elmoe3d.parquet"
MODES = ("ar", "sd")
RATES = {  # columns -> numbers of the machine's file that they scale
    "hb_factor": ("tiers", "hb", "peak_bytes_per_s"),
    "ext_factor": ("tiers", "ext", "peak_bytes_per_s"),
}


def point_of(row, machine):
    law = ModelLaw(**{name: row[name] for name in ("beta", "exponent", "head_bytes")})
    names = ("verify_tokens", "draft_tokens", "growth", "fade", "n_draft_steps")
    speculation = Speculation(**{name: row[name] for name in names})
    compute = Compute(verify_nodes=row["verify_nodes"], draft_nodes=row["draft_nodes"]) if row["verify_nodes"] else None
    fields = {name: row[name] for name in ("scheme", "batch", "accepted_len", "context_tokens", "hit_model")}
    shape = SETUP.shapes[row["model"]]
    return replace(point(QWEN), shape=shape, machine=machine, law=law, speculation=speculation, compute=compute, **fields)


def machine_at(row):
    spec = load(row["machine"])
    tiers = dict(spec.tiers)
    for name, (_, tier, key) in RATES.items():
        number = getattr(tiers[tier], key)
        tiers[tier] = replace(tiers[tier], **{key: replace(number, value=number.value * row[name])})
    capacity = replace(tiers["hb"].capacity_bytes, value=row["hb_gib"] * 2**30)
    tiers["hb"] = replace(tiers["hb"], capacity_bytes=capacity)
    return machine_of(replace(spec, tiers=tiers))


def joules_of(run, name):
    prices = prices_of(load(name), STUDY.platforms.near_pj_per_bit, STUDY.platforms.pool_write_frac)
    return {(part, end): of[0] for end in ENDS for part, of in joules_per_token(run, prices, end).items()}


def ours_of(row):
    points = as_points([point_of(row, machine_at(row))])
    found = evaluate(points)
    made = {"xpu_s": found.xpu_s, "round_s": found.round_s, "phi_ar": found.phi_ar, "phi_sd": found.phi_sd}
    made |= {name: getattr(found.mapping, name) for name in ("resident_bytes", "share", "spill_bytes", "cold_bytes")}
    for name in ("ar", "draft", "verify"):
        of = getattr(found, name)
        names = ("seconds", "experts", "expert_bytes", "hit_frac", "hb_bytes", "ext_bytes")
        made |= {f"{name}_{key}": getattr(of, key) for key in names}
    made = {name: float(values[0]) for name, values in made.items()}
    if row["verify_nodes"]:
        for mode in MODES:
            for (part, end), joules in joules_of(ours(points, found, mode), row["machine"]).items():
                made[f"{mode}_{part}_{end}_j"] = float(joules)
    return made


def baseline_of(row):
    spec = load(row["machine"])
    points = as_points([point_of(row, SETUP.machines[8])])
    made = {}
    for mode in MODES:
        run = baseline(points, platform_of(spec, row["ratio"], row["holds"]), mode)
        made[f"{mode}_token_s"] = float(run.token_s[0])
        for (part, end), joules in joules_of(run, row["machine"]).items():
            made[f"{mode}_{part}_{end}_j"] = float(joules)
    return made


def is_kept(name):
    """Static power at the ends of its range was taken over nominal seconds; the clock takes the seconds of that end."""
    return "_static_low" not in name and "_static_high" not in name


def test_golden_rows():
    rows = pl.read_parquet(GOLDEN)
    assert rows.height >= 300
    for row in rows.iter_rows(named=True):
        found = (baseline_of if row["holds"] else ours_of)(row)
        for name, value in found.items():
            if is_kept(name):
                off = abs(value - row[name]) / max(abs(row[name]), 1e-300) if value != row[name] else 0.0
                assert off <= 1e-9, (name, value, row)
