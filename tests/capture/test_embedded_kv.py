"""What the shipped model shows of eviction and lost bits: one seed on little text here, all seeds in full where slow."""

import re
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tokentape.capture.live.divergence import divergence
from tokentape.capture.live.kv_orderings import ORDERINGS, Lab, last_bigram
from tokentape.capture.live.quality import Cut, evaluate_inside
from tokentape.capture.orderings import measured
from tokentape.flows.inside_model import kv_run
from tokentape.policies.kv import KV_POLICIES
from tokentape.policies.kv.importance import AEP, H2O
from tokentape.policies.kv.random_eviction import RandomEviction
from tokentape.policies.kv.snapkv import SnapKV
from tokentape.policies.kv.streaming import Streaming
from tokentape.policies.kv.tova import TOVA
from tokentape.warehouse.tables import TABLES

pytestmark = pytest.mark.embedded
DOC = Path(__file__).resolve().parents[2] / "docs" / "kv.md"
SINK = 4


@pytest.fixture(scope="module")
def lab(loaded):
    return Lab(loaded, 0, Cut(n_items=4, prompt_tokens=64, decode_tokens=40))


def test_int16_bears_losses_that_destroy_halves_and_no_eviction_is_plain(lab, loaded):
    int16, fp16 = lab.flipped(rate="1e-3"), lab.flipped("fp16", rate="1e-4")
    assert int16 < 1.06
    assert fp16 > 2
    run = kv_run("full", {"prompt_tokens": 32, "decode_tokens": 24}, 2)
    row = evaluate_inside(loaded, "code", run)
    assert row["kl"] == pytest.approx(0, abs=1e-6)
    assert row["acceptance"] == pytest.approx(1, abs=1e-4)
    assert row["kv_bytes"] == 4 * 4 * 44.0 * 2 * 32 * 2  # layers, heads, mean tokens, K and V of 32, 16 bits
    assert set(TABLES["quality"].columns) == set(row)


def test_high_bits_and_high_scores_matter_more(lab):
    msb, lsb = lab.flipped(rate="1e-2,0,1e-2,0"), lab.flipped(rate="0,1e-2,0,1e-2")
    assert msb > lsb + 0.05
    hst, lst = (lab.flipped(rate=rate) for rate in ("5e-3,5e-3,0,0", "0,0,5e-3,5e-3"))
    assert hst > lst


def test_last_bigram_by_hand():
    assert last_bigram(np.array([[1, 2, 3, 1, 2, 2, 1, 2]])).tolist() == [[0, 0, 0, 0, 3, 0, 0, 3]]


def test_divergence_rows(loaded):
    given = {"budget": 16, "sink": SINK, "prompt_tokens": 24, "decode_tokens": 40}
    run = kv_run("aep", given, 2)
    rows = divergence(loaded, "code", run)
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["identical_frac"] == 1
    assert all(0.3 < row["same_frac"] <= 1 for row in rows)
    assert rows[-1]["same_frac"] < 1
    assert set(TABLES["kv_divergence"].columns) == set(rows[0])
    assert all(row["identical_frac"] == 1 for row in divergence(loaded, "code", kv_run("streaming", given, 2)))


def test_recall_shows_what_eviction_loses(loaded):
    tried = [
        AEP(None), Streaming(32, sink=SINK), Streaming(32, sink=0), H2O(32), TOVA(32), SnapKV(32), AEP(32, sink=SINK),
        AEP(32, sink=SINK, importance="mean"), RandomEviction(32, sink=SINK),
    ]  # fmt: skip
    names = {kind: name for name, kind in KV_POLICIES.items()}
    runs = [kv_run(names[type(policy)], asdict(policy), 6) for policy in tried]
    rows = [evaluate_inside(loaded, "recall", run, 0) for run in runs]
    full, *evicting = rows
    assert full["accuracy"] > 0.9
    assert all(row["kv_bytes"] < full["kv_bytes"] for row in evicting)
    snapkv = [row["accuracy"] for row in evicting if row["policy"] == "snapkv"]
    others = [row["accuracy"] for row in evicting if row["policy"] != "snapkv"]
    assert max(others) < 0.6 < full["accuracy"]
    assert snapkv[0] > max(others)  # its window holds the question
    assert len({(row["policy"], row["parameters"]) for row in rows}) == len(rows) == 9


# Some seed of four misses each, though every mean holds (docs/kv.md).
MISSED = {
    "perplexity int16 losses 1e-3 / none",
    "perplexity int16 losses 2e-3 / none",
    "perplexity 2DRP / uniform, 540 us, int16",
}


@pytest.mark.slow
def test_all_seeds_keep_the_margins_and_the_page_shows_the_table(loaded):
    rows = measured(loaded, ORDERINGS, partial(Lab, loaded))
    assert {row["assertion"] for row in rows if not row["holds"]} == MISSED
    assert len(rows) == len(ORDERINGS)
    if sys.version_info[:2] != (3, 11):
        return  # `code` follows the interpreter; the page shows CPython 3.11
    shown = dict(re.findall(r"^\| ([^|]+?) \| [<>]= [^|]+ \| ([\d.]+) \|", DOC.read_text(), flags=re.MULTILINE))
    for row in rows:
        assert float(shown[row["assertion"]]) == pytest.approx(row["mean"], rel=0.02), row["assertion"]
