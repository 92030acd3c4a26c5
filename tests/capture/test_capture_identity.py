"""What a tape's name stands for: other files, versions or devices are another tape; and a capture asks nothing of the network."""

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch

from tokentape.capture import models, plan
from tokentape.capture.embedded.texts import Item
from tokentape.capture.run import CaptureSettings, capture


@pytest.fixture
def settings(model_folder, prompts):
    return CaptureSettings(model_folder("Qwen3Moe"), prompts, max_requests=2, max_prompt_tokens=20, max_new_tokens=6)


def test_a_changed_model_gets_another_name(settings, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    shutil.copytree(settings.model, folder)
    mine = dataclasses.replace(settings, model=str(folder))
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 0xFF
    names = [plan.plan(mine).trace_id]
    assert plan.plan(mine).trace_id == names[0]
    for file, content in (
        ("model.safetensors", bytes(weights)),
        ("chat_template.jinja", b"{{ messages }}"),
        ("chat_template.jinja", b"{{ messages | length }}"),
        ("additional_chat_templates/tools.jinja", b"{{ tools }}"),
        ("merges.txt", b"a b"),
    ):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(content)
        names.append(plan.plan(mine).trace_id)
    assert len(set(names)) == len(names)
    (folder / "README.md").write_text("a card decides nothing")
    assert plan.plan(mine).trace_id == names[-1]
    monkeypatch.setattr(models, "WHOLE_BYTES", 1)  # weights too large to be read whole
    monkeypatch.setattr(models, "SAMPLE_BYTES", 1 << 10)
    monkeypatch.setattr(models, "STRIDE_BYTES", 1 << 12)
    sampled = [plan.plan(mine).trace_id]
    for at in (5, (len(weights) // 2 & -(1 << 12)) + 5, len(weights) - 1):  # head, a strided sample, tail
        weights[at] ^= 0xFF
        (folder / "model.safetensors").write_bytes(weights)
        sampled.append(plan.plan(mine).trace_id)
    assert len(set(sampled)) == len(sampled)


def test_another_version_device_or_dtype_gets_another_name(settings, monkeypatch):
    name = plan.plan(settings).trace_id
    assert plan.plan(settings).trace_id == name
    others = {plan.plan(dataclasses.replace(settings, dtype="bfloat16")).trace_id}
    with monkeypatch.context() as patch:
        patch.setattr(models, "resolve_device", lambda name: torch.device("cuda"))
        others.add(plan.plan(settings).trace_id)
    with monkeypatch.context() as patch:
        patch.setattr(models, "resolve_dtype", lambda source, dtype: "float16")
        others.add(plan.plan(settings).trace_id)
    for package in ("torch", "transformers", "tokentape"):
        with monkeypatch.context() as patch:
            real = plan.metadata.version
            patch.setattr(plan.metadata, "version", lambda p, package=package, real=real: "0" if p == package else real(p))
            others.add(plan.plan(settings).trace_id)
    assert len(others - {name}) == 6


def test_a_hub_model_is_loaded_from_the_commit_it_was_found_at(model_folder, tmp_path, monkeypatch):
    cache = tmp_path / "models--somebody--tiny"
    first, second = "a" * 40, "b" * 40
    for commit, family in ((first, "Qwen3Moe"), (second, "Mixtral")):
        shutil.copytree(model_folder(family), cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(first)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    source = models.find("somebody/tiny")
    (cache / "refs" / "main").write_text(second)  # the owner pushes
    (cache / "snapshots" / second / "tokenizer.json").write_text("{}")  # reading it fails
    loaded = models.load(source, device="cpu")
    assert (source.fingerprint, loaded.model.config.model_type) == (first, "qwen3_moe")
    assert source.config.model_type == "qwen3_moe"
    assert models.find("somebody/tiny").fingerprint == second


NO_NETWORK = """
import socket, sys
def refuse(*arguments, **options):
    sys.exit("the network was asked")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from tokentape.capture.run import CaptureSettings, capture
from tokentape.warehouse.tape import Store
capture(CaptureSettings("embedded", "math", max_requests=1, max_new_tokens=4), Store(sys.argv[1]))
"""


@pytest.mark.embedded
def test_an_embedded_capture_asks_nothing_of_the_network(store, monkeypatch):
    tried = []

    def refuse(*arguments, **options):
        tried.append(arguments)
        raise OSError("no network in this test")

    for of, name in ((socket.socket, "connect"), (socket.socket, "connect_ex"), (socket, "getaddrinfo")):
        monkeypatch.setattr(of, name, refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    capture(CaptureSettings("embedded", "math", max_requests=1, max_new_tokens=4), store)
    assert not tried
    with pytest.raises(Exception, match="no network in this test"):
        huggingface_hub.HfApi().model_info("somebody/tiny")
    assert tried


@pytest.mark.embedded
@pytest.mark.slow
def test_nor_does_a_process_that_has_just_begun(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    command = [sys.executable, "-c", NO_NETWORK, str(tmp_path / "tape")]
    subprocess.run(command, cwd=Path(__file__).resolve().parents[2], env=environment, check=True, timeout=120)
    assert list((tmp_path / "tape").rglob("manifest.json"))


def test_a_tokenizer_of_another_model_is_refused(settings) -> None:
    planned = plan.plan(settings)
    small = dataclasses.replace(planned, geometry=planned.geometry.model_copy(update={"vocab": 100}))
    tokenizer = models.load_tokenizer(planned.source)
    assert plan.requests(planned, tokenizer)
    with pytest.raises(ValueError, match=r"its tokenizer gives token [0-9]+, the model has 100; give the model's own tokenizer"):
        plan.requests(small, tokenizer)
    forced = dataclasses.replace(settings, teacher_forced=True)
    with pytest.raises(ValueError, match="its tokenizer gives token"):
        plan.requests(dataclasses.replace(small, settings=forced, items=[Item("of two", "a", None, "\u00e9")]), tokenizer)
