"""The study's points: rows fit their table, and the orderings that a drafter must show."""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny_families import build

from tokentape.capture.orderings import ACCEPTANCE_ORDERINGS, Effort, Lab, measured
from tokentape.capture.speculation.study import Setting, _rows, bits_points, loop_points
from tokentape.policies.speculation.accept import acceptance_metrics
from tokentape.warehouse.tables import TABLES, conform

pytestmark = pytest.mark.embedded


def test_metrics_by_hand():
    found = acceptance_metrics(np.array([0, 2, 1, 2, 2]), np.array([False, False, False, False, True]), 2, False)
    assert found["tau_accepted"] == 1.25  # the clipped round does not count
    assert found["tau_committed"] == 2.25
    assert (found["alpha_1_marginal"], found["alpha_2_marginal"]) == (0.75, 0.5)
    assert (found["alpha_1_conditional"], found["alpha_2_conditional"]) == (0.75, pytest.approx(2 / 3))
    assert math.isclose(sum(v for name, v in found.items() if name.startswith("accepted_")), 1.0)
    assert set(acceptance_metrics(np.array([1]), np.array([False]), 1, True)) >= {"tree_tau_accepted", "tree_accepted_0"}
    assert acceptance_metrics(np.array([1]), np.array([True]), 1, False) == {}
    with pytest.raises(ValueError, match="2 tokens of drafts 1 deep"):
        acceptance_metrics(np.array([2]), np.array([False]), 1, False)


def test_a_hotness_pool_beats_a_random_one_and_rows_fit_the_table(loaded):
    effort = Effort(n_items=3, prompt_tokens=48, decode_tokens=16, n_whole=4)
    rows = bits_points(loaded, (0,), effort, ("MAT42",), ("lsb_aug", "round_sym", "trunc_sym"))
    for pool in ("hotness", "random"):
        rows += loop_points(loaded, (0,), effort, Setting(series="pool", batch=3, bits=0, pool=pool, pool_frac=0.375))
    conform("acceptance_points", pa.Table.from_pylist([{"study": "x", **row} for row in rows]))
    keys = [tuple(row.get(name) for name in TABLES["acceptance_points"].key) for row in rows]
    assert len(set(keys)) == len(keys)
    value = {(row["pool_policy"], row["metric"]): row["value"] for row in rows if row["series"] == "pool"}
    for metric in ("tau_accepted", "pool_overlap_frac", "captured_mass_frac"):
        assert value["hotness", metric] > value["random", metric]
    scheme = {row["scheme"]: row["value"] for row in rows if row["series"] == "bits"}
    assert scheme["lsb_aug"] > scheme["round_sym"] > scheme["trunc_sym"]
    (docs,) = bits_points(loaded, (0,), replace(effort, dataset="docs"), ("MAT42",), ("trunc_sym",))
    assert (docs["dataset"], rows[0]["dataset"]) == ("docs", "code")
    assert docs["value"] != scheme["trunc_sym"]


def test_a_pool_is_of_the_experts_there_are_and_metrics_are_of_the_seeds_that_have_them():
    loaded = SimpleNamespace(model=build("DeepseekV3"), source=SimpleNamespace(model_id="x"))  # n_routed_experts
    (row,) = _rows(loaded, Setting(series="pool", pool_frac=0.5), [{}, {"tau_accepted": 1.0}], {})
    assert (row["pool_experts"], row["n_seeds"], row["value"]) == (4, 1, 1.0)


@pytest.mark.parametrize("ordering", ACCEPTANCE_ORDERINGS, ids=lambda ordering: ordering.assertion)
def test_one_seed_of_little_text_keeps_the_margin(loaded, ordering):
    assert ordering.holds(ordering.ratio(Lab(loaded, 0, Effort(n_whole=4))))


def test_of_a_dense_model_every_linear_layer_is_at_few_bits():
    of = SimpleNamespace(loaded=SimpleNamespace(model=build("Llama")), texts=[[5, 6, 7, 8]])
    assert not torch.equal(*(Lab._logits(of, pair) for pair in (None, "MAT42")))


@pytest.mark.slow
def test_all_seeds_keep_the_margins(loaded):
    rows = measured(loaded, ACCEPTANCE_ORDERINGS, partial(Lab, loaded, effort=Effort(n_whole=40)))
    assert [row["holds"] for row in rows] == [True] * len(ACCEPTANCE_ORDERINGS)
