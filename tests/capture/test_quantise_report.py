"""The report on a checkpoint's weights: against direct calculation, in bounded memory, over families, and on damaged files."""

import json
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_families
import torch
from refusing import refuses
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from tokentape.capture.checkpoint import pieces, stored_tensors
from tokentape.capture.quantise_report import _input_first, _matching, report, stored_bytes
from tokentape.policies.matryoshka import MAT, SCHEMES, approximate
from tokentape.warehouse.formats import slice_bytes
from tokentape.warehouse.model_config import from_config

ROOT = Path(__file__).resolve().parents[2]
UP = "model.layers.{}.mlp.experts.{}.up_proj.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Two layers of two experts, 24 x 72 (the last group is short), and what the report must leave out."""
    rng = np.random.default_rng(8)
    tensors = {UP.format(layer, e): rng.standard_normal((24, 72)).astype(np.float32) for layer in (0, 10) for e in (0, 1)}
    others = ("model.layers.0.mlp.shared_experts.up_proj.weight", "model.layers.0.mlp.gate.weight", "lm_head.weight")
    save_file(tensors | {name: np.full((4, 4), np.nan, np.float32) for name in others}, tmp_path / "model.safetensors")
    return str(tmp_path)


def weights_of(model: str) -> dict[str, np.ndarray]:
    return {t.name: np.concatenate([*pieces(t, False, 1 << 20)]) for t in stored_tensors(model) if ".experts." in t.name}


def by_key(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["tensors"], row["pair"], row["scheme"]): row for row in rows}


@pytest.mark.parametrize(("device", "times"), [(None, 1.0), ("cpu", 1.0), (None, 1e22), ("cpu", 1e-25)])  # squares beyond f32
def test_rows_are_what_direct_calculation_gives(checkpoint: str, device: str | None, times: float) -> None:
    if times != 1.0:
        save_file({name: w * np.float32(times) for name, w in weights_of(checkpoint).items()}, f"{checkpoint}/model.safetensors")
    pairs = (MAT(4, 2), MAT(6, 3))
    rows = by_key(report(checkpoint, pairs, by="layer", device=device))
    assert len(rows) == 3 * len(pairs) * len(SCHEMES)
    assert list(dict.fromkeys(key[0] for key in rows)) == ["layer 0", "layer 10", "all"]
    weights = weights_of(checkpoint)
    for (tensors, pair, scheme), row in rows.items():
        number = tensors.removeprefix("layer ")
        w = np.concatenate([x for name, x in weights.items() if tensors == "all" or f"layers.{number}." in name]).astype(
            np.float64
        )
        near = approximate(w, MAT.parse(pair), scheme).astype(np.float64)
        assert row["n_weights"] == w.size
        assert row["relative_mse"] == pytest.approx(((near - w) ** 2).sum() / (w**2).sum(), rel=1e-5)
        assert row["cosine"] == pytest.approx((near * w).sum() / (np.sqrt((near**2).sum() * (w**2).sum()) or 1.0), rel=1e-5)
    assert report(checkpoint, pairs) == [row for row in report(checkpoint, pairs, by="layer") if row["tensors"] == "all"]


def test_sizes_are_those_of_the_paper_of_equal_widths_and_of_schemes_that_do_not_nest() -> None:
    n_weights = 3 * 2048 * 1408  # DeepSeek-V2-Lite and Qwen1.5-MoE, SliceMoE specification, section 2
    assert stored_bytes(n_weights, n_weights // 32, MAT(8, 4), SCHEMES["amat"]) == (5_136_384, 4_325_376)
    assert stored_bytes(n_weights, n_weights // 32, MAT(4, 2), SCHEMES["amat"]) == (2_973_696, 2_162_688)
    for pair in (MAT(8, 4), MAT(6, 3), MAT(8, 1)):
        assert stored_bytes(n_weights, n_weights // 32, pair, SCHEMES["amat"]) == slice_bytes(n_weights, pair.high, pair.low)
    for name, high in (("amat", 100 + 12), ("trunc_sym", 100 + 8)):
        assert stored_bytes(100, 4, MAT(8, 8), SCHEMES[name]) == (high, 0)
    assert stored_bytes(100, 4, MAT(8, 4), SCHEMES["base_asym"]) == (50 + 12, 100 + 12)
    for name in ("base_sym", "round_sym", "clip_sym"):
        assert stored_bytes(100, 4, MAT(8, 4), SCHEMES[name]) == (50 + 8, 100 + 8)


def test_a_short_last_group_has_its_own_scale(checkpoint: str) -> None:
    (row,) = report(checkpoint, [MAT(8, 4)], ["amat"])
    n = 4 * 24 * 72
    assert (row["msb_bytes"], row["lsb_bytes"]) == (n // 2 + 4 * 24 * 3 * 3, n // 2)
    assert row["total_vs_bf16_frac"] == (row["msb_bytes"] + row["lsb_bytes"]) / (2 * n)
    (row,) = report(checkpoint, [MAT(8, 4)], ["amat"], group=72)
    assert row["msb_bytes"] == n // 2 + 4 * 24 * 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stored_floats_are_read_as_torch_reads_them(tmp_path: Path, dtype: str) -> None:
    w = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    save_tensors({"layers.0.mlp.experts.gate_up_proj": w}, tmp_path / "any.safetensors", metadata={"format": "pt"})
    (tensor,) = stored_tensors(str(tmp_path / "any.safetensors"))
    read = [*pieces(tensor, False, 1000)]
    assert len(read) == 8
    assert np.array_equal(np.concatenate(read), w.float().reshape(120, 64).numpy())
    turned = [*pieces(tensor, True, 1000)]
    assert max(piece.shape[0] * piece.shape[1] for piece in turned) <= 1000
    assert np.array_equal(np.concatenate(turned), w.float().transpose(1, 2).reshape(192, 40).numpy())


def test_a_checkpoint_larger_than_memory_is_streamed(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.experts.{part}" for i in range(4) for part in ("gate_up_proj", "down_proj")]
    rng = np.random.default_rng(2)
    shape = (4, 512, 1024)  # 8 MiB
    files = {name: f"model-{i % 2 + 1:05d}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files.values()):
        save_file({n: rng.standard_normal(shape).astype(np.float32) for n in names if files[n] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    report("embedded", [MAT(8, 4)], ["amat"])  # imports are not what is measured
    tracemalloc.start()
    rows = report(str(tmp_path), by="layer", schemes=["amat", "base_asym", "trunc_sym"])
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows[-1]["n_weights"] == 8 * 4 * 512 * 1024
    assert peak_bytes < 8 * 2**20  # 64 MiB of weights, 8 MiB a tensor


@pytest.mark.parametrize("family", tiny_families.MOE_CONFIGS)
def test_experts_are_found_in_every_family_and_nothing_else(tmp_path: Path, family: str) -> None:
    model = tiny_families.build(family)
    model.save_pretrained(tmp_path)
    geometry = from_config(json.loads((tmp_path / "config.json").read_text()))
    (row,) = report(str(tmp_path), [MAT(8, 4)], ["amat"])
    # Matrices only: what the geometry counts besides per expert are gpt-oss's biases.
    matrices = 3 * geometry.hidden * geometry.expert_intermediate
    assert row["n_weights"] == len(geometry.moe_layers) * geometry.n_experts * matrices
    assert bool(_input_first(stored_tensors(str(tmp_path)))) == (family == "GptOss")


def test_groups_run_along_the_inputs_of_stacks_stored_inputs_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    hidden, width = 64, 48
    up = rng.standard_normal((2, hidden, 2 * width)).astype(np.float32) * np.linspace(0.1, 3, 2 * width, dtype=np.float32)
    down = rng.standard_normal((2, width, hidden)).astype(np.float32)
    for is_turned in (True, False):
        stored = {"gate_up_proj": up, "down_proj": down}
        if not is_turned:
            stored = {name: np.ascontiguousarray(w.transpose(0, 2, 1)) for name, w in stored.items()}
        save_file({f"layers.0.mlp.experts.{n}": w for n, w in stored.items()}, tmp_path / f"{is_turned}.safetensors")
    turned, usual = (stored_tensors(str(tmp_path / f"{name}.safetensors")) for name in (True, False))
    assert len(_input_first(turned)) == 2
    assert not _input_first(usual)
    first, second = (report(str(tmp_path / f"{name}.safetensors"), schemes=["amat", "base_asym"]) for name in (True, False))
    for one, other in zip(first, second, strict=True):
        assert one["relative_mse"] == pytest.approx(other["relative_mse"], rel=1e-5)
        assert one["msb_bytes"] == other["msb_bytes"]


def test_progress_ends_at_the_total_and_zeros_have_no_error(checkpoint: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    report(checkpoint, [MAT(8, 4)], ["amat"], show=lambda *state: seen.append(state))
    assert [done for done, _, _ in seen] == sorted({done for done, _, _ in seen})
    assert seen[-1] == (4 * 24 * 72, 4 * 24 * 72, UP.format(10, 1))
    save_file({UP.format(0, 0): np.zeros((4, 32), np.float32)}, tmp_path / "zeros.safetensors")
    for row in report(str(tmp_path / "zeros.safetensors"), schemes=["amat", "trunc_sym"]):
        assert (row["relative_mse"], row["cosine"]) == (0, 0)


def refused(model: object, **options: object) -> str:
    return refuses(".", report, str(model), **options)


def test_models_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no .safetensors file there" in refused(tmp_path)
    assert "not in the hub's local cache; fetch it with `hf download nobody/nothing`" in refused("nobody/nothing")
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("transformers.utils.hub.cached_file", lambda *_, **__: str(tmp_path / "config.json"))
    assert refused("nobody/nothing").startswith("nobody/nothing: no .safetensors file there")
    save_file({UP.format(0, 0): np.ones((4, 32), np.float32)}, tmp_path / "model.safetensors")
    assert report("nobody/nothing", [MAT(8, 4)], ["amat"])[0]["n_weights"] == 128


def test_missing_shards_and_files_that_are_cut_are_refused(checkpoint: str) -> None:
    index = Path(checkpoint) / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert "1 of 2 shards are missing, the first is model-2.safetensors" in refused(checkpoint)
    for text in ("", "[]", "{}", '{"weight_map": 3}'):
        index.write_text(text)
        assert "not an index of shards" in refused(checkpoint)
    whole = (Path(checkpoint) / "model.safetensors").read_bytes()
    cut = Path(checkpoint) / "cut.safetensors"
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for n in (0, 5, 8, 9, header // 2, header - 40, header, header + 1, len(whole) - 1):
        cut.write_bytes(whole[:n])
        message = refused(cut)
        assert "cut.safetensors: truncated" in message if n >= header else "not a safetensors file" in message
    cut.write_bytes(struct.pack("<Q", 2**63) + whole[8:])
    assert "not a safetensors file" in refused(cut)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        *((header, "not a safetensors file") for header in ("[]", "3", '{"a": 3}', '{"a": {"dtype": "F32"}}')),
        ('{"a": {"dtype": 1, "shape": 2}}', "not a safetensors file"),
        ('{"experts": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 60]}}', "experts has 60 bytes for shape [4, 4] F32"),
    ],
)
def test_headers_that_are_no_headers_or_whose_sizes_do_not_agree(tmp_path: Path, header: str, said: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(64))
    assert said in refused(path)


def test_weights_and_names_that_the_report_cannot_use(checkpoint: str, tmp_path: Path) -> None:
    message = refused(checkpoint, only="lm_head")
    assert message.endswith("lm_head.weight holds nan at [0, 0]; weights must be finite")
    assert re.search(
        r"no matrix matches --only nothing, of 7 tensors such as \S+; give another", refused(checkpoint, only="nothing")
    )
    assert "is not a regular expression" in refused(checkpoint, only="(")
    save_tensors({UP.format(0, 0): torch.zeros(4, 4).to(torch.float8_e4m3fn)}, tmp_path / "f8.safetensors")
    assert "is stored as F8_E4M3; give a checkpoint in F32, F16, BF16" in refused(tmp_path / "f8.safetensors")
    w = np.ones((2, 3, 500, 1000), np.float32)
    w[1, 2, 499, 7] = np.inf
    save_file({"experts": w}, tmp_path / "inf.safetensors")
    assert "experts holds inf at [1, 2, 499, 7]" in refused(tmp_path / "inf.safetensors", only="experts$")


def test_an_empty_list_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for options in ({"schemes": []}, {"pairs": []}):  # what a command can give is in tests/flows/refusals.txt
        assert "give at least one scheme and one pair of widths" in refused(tmp_path / "nothing", **options)


def test_default_selection_by_name(checkpoint: str) -> None:
    stored = stored_tensors(checkpoint)
    found = {t.name for t in _matching(stored, "experts", checkpoint)}
    assert found == {UP.format(layer, e) for layer in (0, 10) for e in (0, 1)}
    for name in ("experts.0.up_proj.weight_scale_inv", "experts.gate_up_proj_bias", "experts.e_score_correction_bias"):
        twin = [stored[0].__class__(f"model.layers.0.mlp.{name}", *list(vars(stored[0]).values())[1:])]
        refuses("no matrix matches", _matching, twin, "experts", checkpoint)


def test_the_table_of_the_document_is_what_the_report_gives() -> None:
    text = (ROOT / "docs" / "quantise.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- embedded -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)
    assert table
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table[1].splitlines()[2:]]
    rows = by_key(report("embedded", (MAT(4, 2), MAT(6, 3), MAT(8, 4))))
    assert [line[0] for line in lines] == list(SCHEMES)
    for scheme, *cells in lines:
        for pair, cell in zip(("MAT42", "MAT63", "MAT84"), cells, strict=True):
            assert float(cell) == float(f"{rows['all', pair, scheme]['relative_mse']:.3g}"), (scheme, pair)
