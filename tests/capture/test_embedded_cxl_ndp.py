"""What the shipped model shows of quantised experts and of choosing their widths: one layer here, everything where slow."""

import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch

from tokentape.capture import models
from tokentape.capture.cxl_ndp.orderings import CALIBRATION, METHODS, ORDERINGS, Bench, Lab
from tokentape.capture.live.quality import Cut
from tokentape.capture.losses.experts import replicas
from tokentape.capture.losses.run import calibrated, losses_of
from tokentape.capture.orderings import measured
from tokentape.capture.plan import CaptureSettings, plan, requests
from tokentape.capture.run import capture
from tokentape.policies.mixed import MixedPrecision
from tokentape.warehouse.tape import Store

pytestmark = pytest.mark.embedded
DOC = Path(__file__).resolve().parents[2] / "docs" / "losses.md"
RATIOS = ("selector / uniform", "reversed / selector", "selector by use / uniform")
MISSED = {  # each on one to three seeds of four, by 2 % at most (docs/losses.md)
    *(f"perplexity {of}, 2 bits, {method}" for of in RATIOS for method in METHODS),
    "perplexity reversed / selector, 3 bits, rtn",
}
SETTINGS = CaptureSettings(models.EMBEDDED, tables=("losses",), **CALIBRATION)


@pytest.fixture(scope="module")
def layer(loaded):
    """Every expert of one layer with its calibration rows."""
    return list(calibrated(loaded, requests(plan(SETTINGS), loaded.tokenizer), [2], 0))


def wide(rows):
    """A row per (layer, expert, bits), a column per quantiser."""
    return pl.DataFrame(rows).pivot(on="method", index=["layer", "expert", "bits"], values=["mse", "heldout_mse"])


@torch.inference_mode()
def test_gptq_loses_less_in_every_matrix(layer):
    """Its own objective, the output error of the matrix that it rounds, on its calibration rows: at every width.

    The down matrix sees what the rounded up matrix yields and is to make the expert's own output of it.
    """
    for found in layer[:4]:
        x = found.rows.calibration
        own = found.expert(x)
        for (bits, ours), (_, theirs) in zip(replicas(found.expert, x, "gptq"), replicas(found.expert, x, "rtn"), strict=True):
            up = found.expert.up
            assert (x @ (ours.up - up).T).square().mean() < (x @ (theirs.up - up).T).square().mean(), bits
            assert (ours(x) - own).square().mean() < (replace(ours, down=theirs.down)(x) - own).square().mean(), bits


def test_gptq_loses_less_and_every_bit_helps(layer):
    table = wide([row for found in layer for row in losses_of(found)])
    assert (table["mse_gptq"] <= table["mse_rtn"]).mean() >= 0.95
    by_width = table.sort("layer", "expert", "bits")["mse_gptq"].to_numpy().reshape(-1, 4)
    assert (by_width[:, 1:] < by_width[:, :-1]).mean() >= 0.99


@pytest.fixture(scope="module")
def bench(loaded, tmp_path_factory):
    store = Store(str(tmp_path_factory.mktemp("tape")))
    return Bench(loaded, store.open(capture(SETTINGS, store)))


@pytest.mark.slow
def test_the_page_shows_how_often_gptq_loses_less(loaded, tmp_path):
    store = Store(str(tmp_path / "tape"))
    rows = store.open(capture(SETTINGS, store)).read("losses")
    table = wide(rows)
    shown = re.findall(r"^\| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", DOC.read_text(), re.MULTILINE)
    assert [int(row[0]) for row in shown] == [1, 2, 3, 4]
    if sys.version_info[:2] != (3, 11):
        return  # the text of `docs` is fixed, but the numbers were written down under CPython 3.11
    for bits, gptq, rtn, ratio, better, held_out in shown:
        mine = table.filter(pl.col("bits") == int(bits))
        assert mine["mse_gptq"].mean() == pytest.approx(float(gptq), rel=0.02)
        assert mine["mse_rtn"].mean() == pytest.approx(float(rtn), rel=0.02)
        assert (mine["mse_gptq"] / mine["mse_rtn"]).median() == pytest.approx(float(ratio), abs=0.02)
        assert (mine["mse_gptq"] <= mine["mse_rtn"]).mean() == pytest.approx(float(better), abs=0.02)
        assert (mine["heldout_mse_gptq"] <= mine["heldout_mse_rtn"]).mean() == pytest.approx(float(held_out), abs=0.02)


@pytest.mark.slow
def test_all_seeds_and_the_page_shows_the_table(bench):
    rows = measured(bench.loaded, ORDERINGS, partial(Lab, bench))
    assert {row["assertion"] for row in rows if not row["holds"]} == MISSED
    if sys.version_info[:2] != (3, 11):
        return  # `code` follows the interpreter; the page shows CPython 3.11
    shown = dict(re.findall(r"^\| (perplexity [^|]+?) \| [<>]= [^|]+ \| ([\d.]+) \|", DOC.read_text(), flags=re.MULTILINE))
    assert set(shown) == {ordering.assertion for ordering in ORDERINGS}
    for row in rows:
        assert float(shown[row["assertion"]]) == pytest.approx(row["mean"], rel=0.02), row["assertion"]


@pytest.mark.slow
def test_what_the_live_model_loses_follows_its_table(bench):
    """Over rules and widths the KL rises with the table's loss, quantiser by quantiser."""
    lab = Lab(bench, 0)
    for method in ("gptq", "rtn"):
        told = [lab.row(method, MixedPrecision(bench.half, bits, "uniform")) for bits in (4, 3, 2, 1)]
        assert [row["kl"] for row in told] == sorted(row["kl"] for row in told)
        assert [row["table_loss"] for row in told] == sorted(row["table_loss"] for row in told)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kl_orders_what_perplexity_does_not(bench, seed):
    """At 2 bits the selector is nearer to the unmodified model than its reverse, and under rtn than uniform widths."""
    lab = Lab(bench, seed)
    rules = ("prefix_split", "reversed", "uniform")
    kl = {(m, rule): lab.row(m, MixedPrecision(bench.half, 2, rule))["kl"] for m in METHODS for rule in rules}
    for method in METHODS:
        assert kl[method, "prefix_split"] < kl[method, "reversed"]
    assert kl["rtn", "prefix_split"] < kl["rtn", "uniform"]


@pytest.mark.slow
def test_a_little_text_points_the_right_way(loaded, tmp_path):
    """Three bits beat two, and at one bit full precision beats everything, on a fraction of the text."""
    store = Store(str(tmp_path / "tape"))
    settings = CaptureSettings(models.EMBEDDED, "docs", tables=("losses",), max_requests=6, max_prompt_tokens=128)
    lab = Lab(Bench(loaded, store.open(capture(settings, store)), Cut(decode_tokens=64, n_items=4)), 0)
    for method in ("gptq", "rtn"):
        assert lab.perplexity(method, "prefix_split", 3) < lab.perplexity(method, "prefix_split", 2)
        assert lab.perplexity(method, "prefix_split", 2) < lab.perplexity(method, "uniform", 1)
        assert lab.perplexity(method, "full", 2) < lab.perplexity(method, "uniform", 3)
