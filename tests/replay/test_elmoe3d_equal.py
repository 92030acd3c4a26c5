"""ELMoE-3D's seconds and joules are those that its own cost model gave before there was one clock, on random settings.

tests/replay/golden/elmoe3d.parquet: a setting per row (machine's numbers, model, scheme, batch, context, constants, nodes) with
what came out; of baselines, the platform's name. Joules are by part, at every end.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from elmoe3d_paper import arrays

from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants, ModelLaw, Speculation
from tokentape.hw.profile import ENDS
from tokentape.hw.sourced import Sourced
from tokentape.hw.spec import load, with_values
from tokentape.replay.elmoe3d import timing
from tokentape.replay.elmoe3d.points import BYTES_PER_PARAM, points_of
from tokentape.replay.elmoe3d.rows import near_at
from tokentape.replay.elmoe3d.runs import baseline, ours
from tokentape.replay.elmoe3d.timing import PARTS, evaluate

GOLDEN = Path(__file__).parent / "golden" / "elmoe3d.parquet"
PROFILE = profiles.load("elmoe3d")
ASSUMED = Sourced(value=0.0, low=0.0, high=1.0, source="what enters of what may")  # as it was


def point_of(row):
    law = ModelLaw(beta=row["beta"], exponent=row["exponent"])
    names = ("verify_tokens", "draft_tokens", "growth", "fade", "n_draft_steps")
    fit = ELMoE3DConstants("", "", Speculation(**{name: row[name] for name in names}), {row["model"]: law})
    table = pl.DataFrame({name: row[name] for name in ("model", "scheme", "batch")} | {"machine": ""})
    told = {name: row[name] for name in ("accepted_len", "context_tokens", "hit_model", "verify_nodes", "draft_nodes")}
    told["draft_nodes"] *= 2.0 / BYTES_PER_PARAM if row["scheme"] == "EAGLE3" else 1.0  # a head's weights were 8 bits wide
    points = arrays(points_of(table, fit, **told), machine=machine_at(row))
    return replace(points, head_read_bytes=np.array([row["head_bytes"]]))


def machine_at(row):
    spec = load(row["machine"])
    if row["holds"]:
        return near_at(spec, row["ratio"]) if row["ratio"] else spec
    rates = {"tiers.hb.peak_bytes_per_s": row["hb_factor"], "tiers.ext.peak_bytes_per_s": row["ext_factor"]}
    scaled = {key: factor * spec.tiers[key.split(".")[1]].peak_bytes_per_s.value for key, factor in rates.items()}
    return with_values(spec, {**scaled, "tiers.hb.capacity_bytes": row["hb_gib"] * 2**30})


def told(runs):
    return {
        f"{mode}_{part}_{end}_j": float(values[i][0])
        for mode, run in runs.items()
        for part, values in zip(PARTS, run.joules_per_token, strict=True)
        for i, end in enumerate(ENDS)
    }


def ours_of(row):
    points = point_of(row)
    found = evaluate(points, PROFILE, with_joules=True)
    made = {"xpu_s": found.xpu_s, "round_s": found.round_s, "phi_ar": found.phi_ar, "phi_sd": found.phi_sd}
    made |= {name: getattr(found.mapping, name) for name in ("resident_bytes", "share", "spill_bytes", "cold_bytes")}
    for name in ("ar", "draft", "verify"):
        of = getattr(found, name)
        names = ("seconds", "experts", "expert_bytes", "hit_frac", "hb_bytes", "ext_bytes")
        made |= {f"{name}_{key}": getattr(of, key) for key in names}
    made = {name: float(values[0]) for name, values in made.items()}
    if row["verify_nodes"]:
        made |= told(ours(points, found, PROFILE, ASSUMED))
    return made


def baseline_of(row):
    runs = baseline(point_of(row), row["holds"], PROFILE)
    return {f"{mode}_token_s": float(run.token_s[0]) for mode, run in runs.items()} | told(runs)


def is_kept(name, row):
    """Static power at the ends of its range was taken over nominal seconds; the clock takes the seconds of that end. Operations
    of the xPU cost what those of in-memory compute did; at the ends of its range each engine now has its own."""
    at_end = not name.endswith("_value_j")
    return not (at_end and ("_static_" in name or ("_compute_" in name and "pim" in row["machine"])))


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_golden_rows(monkeypatch, every):
    """Partial sums were those of every expert, as if all lay in HB."""
    monkeypatch.setattr(timing, "chosen_frac", lambda weights, share: np.ones(len(share)))
    rows = pl.read_parquet(GOLDEN)
    assert rows.height >= 300
    for row in rows.gather_every(every).iter_rows(named=True):
        found = (baseline_of if row["holds"] else ours_of)(row)
        for name, value in found.items():
            if is_kept(name, row):
                off = abs(value - row[name]) / max(abs(row[name]), 1e-300) if value != row[name] else 0.0
                assert off <= 1e-9, (name, value, row)
