"""Times of a model's own layers: read, brought to common axes, read again in the loop; made-up times are linear in every size."""

from itertools import product
from shutil import copytree

import numpy as np
import pytest
from refusing import refuses

from tokentape.hw import by_model
from tokentape.hw.spec import load
from tokentape.replay.serving.coverage import FixedCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.tables import FIRST, attention, curve, plane
from tokentape.warehouse import models


def attention_us(chunk, before, n, context):
    return 7 + 0.1 * chunk + 0.002 * before + 0.3 * n + 0.004 * n * context


def packed(of):
    """As an iteration's table has it."""
    t = np.zeros((3, FIRST + of.pack.size))
    t[0, FIRST:] = of.pack
    return t


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits")
    tables = folder / "Mine" / "tp1"
    tables.mkdir(parents=True)
    meta = "model: me/Qwen3-30B-A3B-Instruct\ngpu: none\nskew_fit:\n  per_tp:\n    1:\n      n: 2\n      alpha_default: -5.0e-1\n"
    (folder / "Mine" / "meta.yaml").write_text(meta)
    dense = [f"{layer},{n},{a * n + 3}" for layer, a in (("layernorm", 1), ("qkv_proj", 2), ("embedding", 5)) for n in (1, 4, 64)]
    (tables / "dense.csv").write_text("layer,tokens,time_us\n" + "\n".join(dense))
    (tables / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,10\nlm_head,9,18\nsampler,1,1\nsampler,9,9\n")
    experts = [f"{n},{e},{n + 10 * e}" for n in (1, 8, 64) for e in (8, 32, 128)]
    (tables / "moe.csv").write_text("tokens,activated_experts,time_us\n" + "\n".join(experts))
    calls = [of for of in product((0, 16, 64), (0, 128), (0, 1, 8), (16, 64, 256)) if of[0] + of[2] and not (of[0] == 0 < of[1])]
    calls += product((24,), (0, 100), (0, 1, 4), (16, 80))  # a chunk with axes of its own
    rows = [f"{','.join(map(str, of))},{attention_us(*of)}" for of in calls]
    (tables / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "\n".join(rows))
    return folder


def test_what_lies_between_points_and_beyond_them(folder):
    of = by_model.find(folder, "qwen3-30b-a3b")
    t = packed(of)
    assert curve(t, by_model.OF_LAYER, 20.5) == pytest.approx(1e-6 * (2 * (20.5 + 3) + 2 * 20.5 + 3))
    assert curve(t, by_model.OF_ONCE, 200) == pytest.approx(1e-6 * (5 * 200 + 3))
    assert curve(t, by_model.OF_SEQUENCE, 5) == pytest.approx(1e-6 * 19)
    assert curve(t, by_model.OF_SEQUENCE, 0) == 0.0
    for n, active in ((3.5, 20.0), (100.0, 90.0), (8.0, 160.0)):
        assert plane(t, n, active) == pytest.approx(1e-6 * (n + 10 * active))
    for chunk, before, n, context in ((0, 0, 5, 100), (20, 60, 3, 30), (100, 200, 16, 300), (40, 64, 1, 256)):
        pairs = chunk * before + chunk * (chunk + 1) / 2
        found = attention(t, float(chunk), pairs, float(n), float(context), 0.0)
        assert found == pytest.approx(1e-6 * attention_us(chunk, before, n, context))
    skewed = attention(t, 0.0, 0.0, 5.0, 100.0, 150.0)
    assert skewed == pytest.approx(1e-6 * attention_us(0, 0, 5, 75))


def test_a_step_takes_what_its_layers_took(folder):
    of, geometry = by_model.find(folder, "Qwen/Qwen3-30B-A3B"), models.load("qwen3-30b-a3b").geometry
    cost = iteration_costs(geometry, load("rtxpro6000"), FixedCoverage(0.25), by_model=of)
    layer_us = 2 * (4 + 3) + 2 * 4 + 3 + attention_us(0, 0, 4, 100) + 4 + 10 * 32
    assert cost.decode_step_s(4, 100) == pytest.approx(1e-6 * (48 * layer_us + (9 + 4) + 4 + 5 * 4 + 3))


def test_what_is_missing_is_named(folder, tmp_path):
    assert by_model.find(tmp_path, "qwen3-30b-a3b") is None
    refuses(r"no tables of llama-3-8b; there are me/Qwen3", by_model.find, folder, "llama-3-8b")
    refuses(r"tp2: no such folder", by_model.find, folder, "qwen3-30b-a3b", 2)
    refuses(r"meta.yaml: gpu is none, not NVIDIA L40S", by_model.find, folder, "qwen3-30b-a3b", 1, "NVIDIA L40S")


def test_sizes_measured_once_or_twice(folder, tmp_path):
    """A lone point holds everywhere along its axis; the mean stands for what was measured again."""
    copytree(folder, tmp_path, dirs_exist_ok=True)
    tables = tmp_path / "Mine" / "tp1"
    (tables / "dense.csv").write_text("layer,tokens,time_us\nq,1,5\nq,8,12\nq,8,14\n")
    (tables / "moe.csv").write_text("tokens,activated_experts,time_us\n1,8,80\n8,8,87\n")
    calls = [f"{chunk},0,{n},16,{10 + chunk + n}" for chunk in (0, 16) for n in (0, 4)]
    (tables / "attention.csv").write_text("prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "\n".join(calls))
    t = packed(by_model.find(tmp_path, "qwen3-30b-a3b"))
    assert curve(t, by_model.OF_LAYER, 15.0) == pytest.approx(21e-6)
    assert plane(t, 4.0, 30.0) == pytest.approx(83e-6)
    assert attention(t, 16.0, 16.0 * 100 + 136, 4.0, 50.0, 0.0) == pytest.approx(30e-6)


def test_experts_are_those_of_the_whole_model_where_ranks_were_measured_too(folder, tmp_path):
    copytree(folder, tmp_path, dirs_exist_ok=True)
    (path,), head = (tmp_path / "Mine" / "tp1").glob("moe.csv"), "ep,tokens,activated_experts,time_us\n"
    path.write_text(head + "".join(f"{ep},{n},{e},{(n + 10 * e) / ep}\n" for ep in (1, 2) for n in (1, 64) for e in (8, 128)))
    t = packed(by_model.find(tmp_path, "qwen3-30b-a3b"))
    assert plane(t, 3.5, 20.0) == pytest.approx(1e-6 * (3.5 + 10 * 20.0))
    path.write_text(head + "2,1,8,3\n")
    refuses("moe.csv: it has no rows of ep 1", by_model.find, tmp_path, "qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("row", "message"),
    [("q,16,", "line 3: sizes and times"), ("q,16,-3", "line 3"), ("q,few,3", "few")],
)
def test_what_is_no_number_is_named(folder, tmp_path, row, message):
    copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "Mine" / "tp1" / "dense.csv").write_text(f"layer,tokens,time_us\nq,1,5\n{row}\n")
    assert "dense.csv" in refuses(message, by_model.find, tmp_path, "qwen3-30b-a3b")
