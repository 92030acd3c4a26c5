"""The GPU-NDP systems on random settings: every number as it was before there was one clock, in the paper's profile."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cxl_ndp_tapes import with_shares

from tokentape.hw.profile import with_values
from tokentape.hw.spec import load
from tokentape.hw.spec import with_values as changed
from tokentape.replay.cxl_ndp.prefill import prefill, request
from tokentape.replay.cxl_ndp.routing import ENDED, CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Setting, run, stand_in_losses
from tokentape.replay.cxl_ndp.system import Setup
from tokentape.warehouse import models

READS = ("attention", "projections", "dense", "shared")
GOLDEN = Path(__file__).parent / "golden" / "cxl_ndp.jsonl"
SYSTEMS = ("OURS-3", "OURS-2", "OURS-16", "MoNDE", "MoNDE never", "MoNDE always", "MoNDE ema", "HOBBIT")


def routing(of: dict[str, Any]) -> CXLNDPRouting:
    """Random routing over the model's layers; members of different length."""
    geometry, rng = models.load(of["model"]).geometry, np.random.default_rng(of["seed"])
    n, n_layers = of["n_sequences"], len(geometry.moe_layers)
    popular = rng.normal(0.0, 1.0, (n_layers, geometry.n_experts))
    drawn = popular + rng.gumbel(size=(n, of["n_steps"], n_layers, geometry.n_experts))
    ids = (-drawn).argsort(axis=-1, kind="stable")[..., : geometry.top_k].astype(np.int16)
    ends = rng.integers(0, of["n_steps"] + 1, n).astype(np.int32)
    ends[0] = of["n_steps"]
    ids[np.arange(of["n_steps"]) >= ends[:, None]] = ENDED
    counts = rng.integers(0, 40, (n, n_layers, geometry.n_experts)).astype(np.int32)
    return CXLNDPRouting(
        "made-up", "synthetic", tuple(geometry.moe_layers), np.arange(n), counts, rng.random(counts.shape), ids, ends
    )


def setup(of: dict[str, Any]) -> Setup:
    """Of the setting, in the paper's profile with its numbers."""
    machine, read, decode, link = load(of["machine"]), of["attention_read_frac"], of["decode_ops_frac"], of["link_frac"]
    numbers = dict(machine.numbers())
    machine = changed(machine, {"tiers.cxl.efficiency_frac": 1.0} if of["machine"].startswith("h100-cxl-ndp") else {})
    profile = with_values(
        "cxl_ndp",
        {
            "lane.layer.each_s": of["fixed_s"],
            **{f"lane.{lane}.ops_frac": decode for lane in ("dense", "shared", "experts")},
            **{f"lane.{lane}.ops_frac": of["attention_ops_frac"] for lane in ("projections", "ffn")},
            **{f"lane.{lane}.bytes_frac": link for lane in ("moved", "streamed", "ahead", "exchange")},
            "lane.prompts.ops_frac": of["prefill_ops_frac"],
        },
    )
    return Setup(
        machine=changed(machine, {key: factor * numbers[key].value for key, factor in of["times"].items()}),
        profile=with_shares(profile, {"kv": of["kv_read_frac"], "experts": 1.0} | dict.fromkeys(READS, read)),
        name=of["model"],
        geometry=models.load(of["model"]).geometry,
        **{name: of[name] for name in ("context_tokens", "hobbit_bits", "ema_beta")},
    )


def priced(of: dict[str, Any]) -> dict[str, float]:
    """Metrics of the decode, and parts of whole requests."""
    made, tape = setup(of), routing(of)
    setting = Setting(**{name: of[name] for name in ("batch", "hot_experts", "rule", "overlaps", "compute_scales")})
    losses = stand_in_losses(tape.n_layers, tape.n_experts, of["seed"], errors=(0.361, 0.248, 0.0459, 0.0099))
    (found,) = run(tape, made, setting, [of["system"]], losses).values()
    prompts = prefill(made, found.system, of["n_context_tokens"], of["batch"], of["hot_experts"])
    whole = request(found, prompts, of["n_decode_tokens"])
    parts = ("streamed_experts", "prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s", "ndp_s")
    step_s = float(found.seconds.value.mean())
    return found.metrics() | {"whole_step_s": step_s} | {f"request_{part}": float(whole[part]) for part in parts}


ROWS = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_number_is_the_one_before_the_clock(system, every):
    mine = [row for row in ROWS if row["of"]["system"] == system]
    assert len(mine) >= 25
    for row in mine[::every]:
        found = priced(row["of"])
        expected = {name: value for name, value in row["is"].items() if value is not None}  # no NDP, no gain of it
        differences = "request_transfer_s", "wait_s", "request_wait_s"  # of numbers as large as the step and the request
        of = {name: row["is"]["request_prefill_s" if name.startswith("request") else "step_s"] for name in differences}
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12 * of.get(name, 0.0)), (name, row["of"])
