"""Quantised weights: a GGUF's or FP8 checkpoint's tape is that of the same weights as floats; what is at which width is told."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from polars.testing import assert_frame_equal
from refusing import refuses
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tokentape.capture import models, quantised
from tokentape.capture.run import CaptureSettings, capture, estimate

BLOCK = 16


def asked(model, prompts, **more):
    return CaptureSettings(str(model), prompts, max_requests=3, max_prompt_tokens=20, max_new_tokens=4, device="cpu", **more)


def as_fp8(folder):
    config = json.loads((folder / "config.json").read_text())
    told = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": told}))


def assert_same(store, first, second):
    """Weights bit for bit; rows to the last digits, which the place of a tensor in memory decides."""
    loaded = [models.load(models.find(of.model), "cpu").model.state_dict() for of in (first, second)]
    assert all(torch.equal(weight, loaded[1][name]) for name, weight in loaded[0].items())
    one, two = (store.open(capture(settings, store)) for settings in (first, second))
    assert one.manifest.tables == two.manifest.tables
    assert one.manifest.geometry == two.manifest.geometry
    for table in one.manifest.tables:
        assert_frame_equal(one.read(table), two.read(table), rel_tol=1e-4, abs_tol=1e-5)
    return one.manifest


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory, model_folder):
    """(path of a Q8_0 GGUF of a tiny Qwen3-MoE with a token more, folder of the same values as plain floats)."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("gguf")
    model = AutoModelForCausalLM.from_pretrained(model_folder("Qwen3Moe"))
    config, words = model.config, AutoTokenizer.from_pretrained(model_folder("Qwen3Moe")).get_vocab()
    out = gguf.GGUFWriter(folder / "tiny.gguf", "qwen3moe")
    for name, value in {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "key_length": config.head_dim,
        "rope_freq_base": config.rope_parameters["rope_theta"],
        "layer_norm_rms_eps": config.rms_norm_eps,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "file_type": gguf.LlamaFileType.MOSTLY_Q8_0,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "qwen2",
        "token_list": [*sorted(words, key=words.__getitem__), "th"],
        "token_merges": ["t h"],
        "eos_token_id": 2,
    }.items():
        getattr(out, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3MOE, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        both = ("gate_proj", "up_proj") if "gate_up_proj" in name else ("",)
        for part, values in zip(both, tensor.detach().chunk(len(both), dim=1) if len(both) > 1 else (tensor,), strict=True):
            kind = (
                gguf.GGMLQuantizationType.Q8_0
                if values.ndim > 1 and values.shape[-1] % 32 == 0
                else gguf.GGMLQuantizationType.F32
            )
            packed = gguf.quantize(np.ascontiguousarray(values.numpy()), kind)
            out.add_tensor(
                names.get_name(name.replace("gate_up_proj", part).removesuffix(".weight")) + ".weight", packed, raw_dtype=kind
            )
            values.copy_(torch.from_numpy(gguf.dequantize(packed, kind)))
    for step in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file, out.close):
        step()
    model.save_pretrained(folder / "plain")
    models.load_tokenizer(models.find(str(folder / "tiny.gguf"))).save_pretrained(folder / "plain")
    return folder / "tiny.gguf", folder / "plain"


def test_a_gguf_gives_the_tape_of_its_weights_as_floats(gguf_file, prompts, store):
    path, plain = gguf_file
    manifest = assert_same(store, asked(path, prompts), asked(plain, prompts))
    weights = manifest.weights
    assert (weights["checkpoint_quantization"], weights["is_dequantised"], weights["dtype"]) == ("gguf", True, "float32")
    assert (weights["file"], weights["file_type"]) == ("tiny.gguf", "MOSTLY_Q8_0")
    assert weights["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    n = AutoModelForCausalLM.from_pretrained(plain).num_parameters()
    assert set(weights["stored_parameters"]) == {"Q8_0", "F32"}
    assert sum(weights["stored_parameters"].values()) == n
    assert estimate(asked(path, prompts), store).memory_bytes["weights"] == 4 * n


def test_a_gguf_that_lacks_weights_or_is_none_is_refused(gguf_file, prompts, store, tmp_path, monkeypatch):
    refuses(r"no such file; give a \.gguf file, or owner/name:FILE\.gguf", models.find, "nowhere/at/all.gguf")
    (tmp_path / "cut.gguf").write_bytes(gguf_file[0].read_bytes()[:1000])
    refuses("could not be loaded", models.find, str(tmp_path / "cut.gguf"))
    source = models.find(str(gguf_file[0]))
    source.config.num_hidden_layers += 1
    refuses("weights are not in its files", models.load, source, "cpu")
    monkeypatch.setattr(quantised, "_is_installed", lambda name: False)
    refuses("pip install gguf accelerate", models.find, str(gguf_file[0]))


def test_an_fp8_checkpoint_gives_the_tape_of_its_weights_as_floats(model_folder, prompts, store, tmp_path, caplog):
    pytest.importorskip("accelerate")
    packed, plain = {}, {}
    for name, weight in load_file(f"{model_folder('Qwen3Moe')}/model.safetensors").items():
        packed[name] = plain[name] = weight
        if "_proj" in name:
            rows, inputs = weight.shape
            blocks = weight.reshape(rows // BLOCK, BLOCK, inputs // BLOCK, BLOCK)
            scale = blocks.abs().amax((1, 3)) / 448
            near = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
            packed[name], packed[f"{name}_scale_inv"] = near.reshape(rows, inputs), scale
            plain[name] = (near.float() * scale[:, None, :, None]).reshape(rows, inputs)
    for folder, weights in (("fp8", packed), ("plain", plain)):
        shutil.copytree(model_folder("Qwen3Moe"), tmp_path / folder)
        save_file(weights, tmp_path / folder / "model.safetensors", {"format": "pt"})
    as_fp8(tmp_path / "fp8")
    settings = asked(tmp_path / "fp8", prompts)
    caplog.set_level("WARNING")
    manifest = assert_same(store, settings, asked(tmp_path / "plain", prompts))
    assert manifest.weights == {"checkpoint_quantization": "fp8", "is_dequantised": True, "dtype": "float32"}
    unpacked = store.open(capture(dataclasses.replace(settings, quantization="none"), store)).manifest
    assert unpacked.weights == manifest.weights
    refuses(r"quantised already \(fp8\)", capture, dataclasses.replace(settings, quantization="int8"), store)


@pytest.mark.parametrize("width", quantised.WIDTHS)
def test_what_is_quantised_at_load_is_told_and_stacked_experts_are_not(width, model_folder, prompts, store):
    pytest.importorskip("torchao")
    pytest.importorskip("accelerate")
    base = asked(model_folder("Qwen3Moe"), prompts)
    tape, plain = (store.open(capture(dataclasses.replace(base, quantization=q), store)) for q in (width, None))
    weights, model = tape.manifest.weights, AutoModelForCausalLM.from_pretrained(base.model)
    linear = sum(m.weight.numel() for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head")
    assert weights["parameters"] == {width: linear, "float32": model.num_parameters() - linear}
    assert weights["expert_parameters"] == {"float32": sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)}
    assert weights["modules"] == [f"model.layers.*.self_attn.{part}_proj" for part in "koqv"]
    assert plain.manifest.weights == {}
    firsts = [t.read("scores").sort("request_id", "position", "layer").head(1)["scores"].to_numpy()[0] for t in (tape, plain)]
    error = np.abs(firsts[0] - firsts[1]).max() / np.abs(firsts[1]).max()
    assert 0 < error < {"int8": 0.05, "fp8": 0.2, "int4": 0.6}[width]


def test_a_quantisation_that_cannot_be_had_is_refused(model_folder, prompts, store, tmp_path, monkeypatch):
    base = asked(model_folder("Qwen3Moe"), prompts)
    for width, said in (("int3", "unknown quantization 'int3'"), ("none", "are plain and stay so; leave it out")):
        refuses(said, capture, dataclasses.replace(base, quantization=width), store)
    refuses("nor with --tables losses", dataclasses.replace, base, tables=("losses",), quantization="int8")
    monkeypatch.setattr(quantised, "_is_installed", lambda name: False)
    refuses("pip install torchao accelerate", capture, dataclasses.replace(base, quantization="int8"), store)
    shutil.copytree(base.model, tmp_path / "fp8")
    as_fp8(tmp_path / "fp8")
    refuses("pip install accelerate", capture, dataclasses.replace(base, model=str(tmp_path / "fp8")), store)
    told = json.loads((tmp_path / "fp8/config.json").read_text())
    (tmp_path / "fp8/config.json").write_text(json.dumps(told | {"quantization_config": {"load_in_4bit": True}}))
    with pytest.raises(ValueError, match=r"quantised already \(bitsandbytes\)"):  # as it was before methods had names
        capture(dataclasses.replace(base, model=str(tmp_path / "fp8"), quantization="int8"), store)
