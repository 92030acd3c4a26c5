"""Bits per byte and exact match, on a tiny model; the shipped model's own figures where it is present."""

from __future__ import annotations

import json
import math

import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from capture import models
from capture.evaluate import answer_in, evaluate
from warehouse.tables import conform

HAS_EMBEDDED = (models.EMBEDDED_PATH / "model.safetensors").is_file()


def test_bits_per_byte_scores_every_token_once_in_windows_of_the_context(model_folder, tmp_path):
    text = "abc def " * 40  # 320 byte tokens, context 128
    path = tmp_path / "d.txt"
    path.write_text(text)
    seen = []
    (row,) = evaluate(model_folder("Qwen3Moe"), [str(path)], device="cpu", progress=lambda *report: seen.append(report))
    assert seen[-1] == (3, 3, str(path))
    model = AutoModelForCausalLM.from_pretrained(model_folder("Qwen3Moe")).eval()
    ids = AutoTokenizer.from_pretrained(model_folder("Qwen3Moe"))(text)["input_ids"]  # <s> first
    nats = 0.0
    with torch.inference_mode():
        for start in range(0, len(ids) - 1, 128):
            piece = torch.tensor(ids[start : start + 129])
            logits = model(input_ids=piece[None, :-1]).logits[0]
            nats += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum").item()
    assert (row["n_tokens"], row["n_items"], row["accuracy"]) == (320, 1, None)
    assert row["bits_per_byte"] == pytest.approx(nats / math.log(2) / 320, rel=1e-5)
    assert row["perplexity"] == pytest.approx(math.exp(nats / 320), rel=1e-5)
    conform("quality", pa.Table.from_pylist([row]))


def test_exact_match_counts_items_whose_answer_comes_out(model_folder, tmp_path):
    folder = model_folder("Qwen3Moe")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("key=")["input_ids"]])
    said = tokenizer.decode(model.generate(ids, do_sample=False, max_new_tokens=40)[0, ids.shape[1] :], skip_special_tokens=True)
    right = answer_in(said[:12], is_worked=False)
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps({"prompt": "key=", "answer": a}) + "\n" for a in (right, right + "!?")))
    (row,) = evaluate(folder, [str(path)], device="cpu")
    assert row["bits_per_byte"] is None
    assert row["n_items"] == 2
    assert row["accuracy"] in (0.0, 0.5)
    assert row["accuracy"] == 0.5 or "\n" not in said  # room is answer-sized: only an answer that ends is exact


def test_answers_are_read_from_worked_and_short_continuations():
    assert answer_in(" 12+30=42.\n#### 42\nQuestion:", True) == "42"
    assert answer_in("#### -1,024", True) == "-1024"
    assert answer_in("no mark 42", True) is None
    assert answer_in("73\nabc=", False) == "73"


def test_a_data_set_with_half_its_answers_missing_is_refused(model_folder, tmp_path):
    path = tmp_path / "h.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c"}\n')
    with pytest.raises(ValueError, match="1 of 2 items have no answer"):
        evaluate(model_folder("Qwen3Moe"), [str(path)])


@pytest.mark.skipif(not HAS_EMBEDDED, reason="the embedded model's weights are not in this checkout")
def test_the_embedded_model_answers_held_out_items():
    math_row, recall_row = evaluate(models.EMBEDDED, ["math", "recall"], n_items=64, device="cpu")
    assert math_row["accuracy"] >= 0.7  # 0.80 over 500 items is the card's bar; 64 items scatter by 0.05
    assert recall_row["accuracy"] >= 0.75
