"""The embedded model's texts, batches and schedule; the shipped folder against its own manifest."""

import hashlib
import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tokentape.capture.embedded import texts, train
from tokentape.capture.embedded.batches import RECALL_LEVELS, Batches
from tokentape.capture.embedded.recipe import Recipe, model_config, train_tokenizer

SHIPPED = Path(train.__file__).parent / "model"


def first(items, n):
    return list(itertools.islice(items, n))


def test_train_and_held_out_never_overlap():
    for source in (texts.code_files, texts.doc_topics):
        kept, held = ({item.name for item in source(held_out)} for held_out in (False, True))
        assert held
        assert not kept & held
    kept, held = ({item.name for item in first(texts.math_items(held_out, 1), 1000)} for held_out in (False, True))
    assert not kept & held
    rng = np.random.default_rng(0)
    kept, held = ({texts.recall_key(rng, held_out) for _ in range(1000)} for held_out in (False, True))
    assert not kept & held


def test_texts_of_math_and_recall_are_right():
    for item in first(texts.math_items(True, 3), 300):
        for step in re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", item.solution):
            a, op, b, result = int(step[0]), step[1], int(step[2]), int(step[3])
            assert result == {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[op]
            assert op != "/" or a % b == 0
            assert max(a, b, result) <= 99
        assert item.solution.endswith(f"#### {item.answer}\n")
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    lengths = []
    for item in first(texts.recall_items(True, 3), 100):
        key = item.prompt.rsplit("\n", 1)[1]
        assert item.prompt.count(f"\n{key}{item.answer}\n") + item.prompt.startswith(f"{key}{item.answer}\n") == 1
        lengths.append(len(tokenizer(item.prompt)["input_ids"]))
    assert 300 < max(lengths) <= 400


def test_rates_decay_by_step_and_balance_is_one_when_even():
    recipe = Recipe(tokens=2048 * 1000)
    rates = [recipe.lr(step) for step in range(recipe.n_steps)]
    assert recipe.n_steps == 1000
    assert max(rates) == recipe.peak_lr
    assert rates[0] < rates[10] < rates[19]
    assert np.all(np.diff(rates[20:]) < 0)
    assert np.isclose(rates[-1], 0.05 * recipe.peak_lr, rtol=0.05)
    even = torch.eye(4).repeat(8, 1) * 9
    skewed = torch.zeros(32, 4)
    skewed[:, 0] = 9
    assert abs(train.balance_loss((even,), 1).item() - 1) < 1e-3
    assert train.balance_loss((skewed,), 1).item() > 3.9


@pytest.fixture(scope="module")
def batches():
    """Of the few library files that training does not see."""
    with pytest.MonkeyPatch.context() as patch:
        held_out = texts.code_files(True)
        patch.setattr(texts, "code_files", lambda _: held_out)
        return Batches(Recipe(), AutoTokenizer.from_pretrained(SHIPPED))


def test_batches_are_functions_of_their_step_and_ask_for_digits(batches):
    assert np.array_equal(batches.at(7, 2)[0], batches.at(7, 2)[0])
    assert not np.array_equal(batches.at(7, 2)[0], batches.at(8, 2)[0])
    assert [batches.at(0, level)[1] for level in (0, 3, 4, len(RECALL_LEVELS) - 1)] == [2, 2, 1, 1]
    rows, n_recall = batches.at(3, 1)
    row = rows[-n_recall]
    masked = batches.tokenizer.decode(row[batches.answers(row)])
    asked = re.findall(r"\?\n((?:[a-z]+=\d\d\n)+)", batches.tokenizer.decode(row))
    expected = "".join(re.findall(r"\d\d", "".join(asked)))
    assert masked.startswith(expected[:20])


@pytest.mark.slow
def test_an_interrupted_training_ends_with_the_same_bits(tmp_path, monkeypatch):
    recipe = Recipe(tokens=2048 * 6)
    train.train(tmp_path / "whole", recipe)
    real, calls = train._step, itertools.count(1)

    def stops_at_4(*arguments):
        if next(calls) == 4:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(train, "_step", stops_at_4)
    with pytest.raises(KeyboardInterrupt):
        train.train(tmp_path / "parts", recipe)
    assert train.train(tmp_path / "parts", recipe) is not None
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    with pytest.raises(ValueError, match="another recipe"):
        train.train(tmp_path / "whole", Recipe(tokens=2048 * 7))


@pytest.mark.slow
def test_the_tokenizer_is_reproduced():
    if sys.version_info[:2] != (3, 11):
        pytest.skip("trained on CPython 3.11's library")
    made = train_tokenizer(Recipe())
    assert made.backend_tokenizer.to_str() == AutoTokenizer.from_pretrained(SHIPPED).backend_tokenizer.to_str()


def test_the_shipped_folder_is_what_its_manifest_says():
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest() == digest, name
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= 16e6
    card = (SHIPPED / "README.md").read_text()
    assert "tokentape evaluate --model embedded" in card
    assert f"tokentape models train --tokens {manifest['recipe']['tokens']}" in card
    model = AutoModelForCausalLM.from_pretrained(SHIPPED)
    assert sum(p.numel() for p in model.parameters()) == 2_893_184
    shape = ("num_hidden_layers", "hidden_size", "num_experts", "num_experts_per_tok")
    assert [getattr(model.config, k) for k in shape] == [getattr(model_config(Recipe()), k) for k in shape]
    again = AutoModelForCausalLM.from_pretrained(SHIPPED).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def test_the_first_token_of_a_text_is_routed_by_scores_and_not_by_ties():
    model, tokenizer = AutoModelForCausalLM.from_pretrained(SHIPPED), AutoTokenizer.from_pretrained(SHIPPED)
    first_token = torch.tensor([tokenizer("def f(x):")["input_ids"][:1]])
    with torch.no_grad():
        logits = model(first_token, output_router_logits=True).router_logits
    assert len(logits) == model.config.num_hidden_layers
    for of_layer in logits:
        assert of_layer.unique().numel() == model.config.num_experts
        assert of_layer.std() > 0.1
