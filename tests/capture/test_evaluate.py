"""Bits per byte and exact match, on a tiny model; the shipped model's own figures where it is present."""

import json
import math
import platform
import sys
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from refusing import refuses
from transformers import AutoModelForCausalLM, AutoTokenizer

from tokentape.capture import models
from tokentape.capture.embedded import texts
from tokentape.capture.evaluate import answer_in, evaluate
from tokentape.capture.live.loop import Outcome
from tokentape.capture.live.quality import means
from tokentape.warehouse.tables import conform


def test_bits_per_byte_scores_every_token_once_in_windows_of_the_context(model_folder, tmp_path, monkeypatch):
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
    (rounded,) = evaluate(model_folder("Qwen3Moe"), [str(path)], device="cpu", dtype="bfloat16")
    assert (row["dtype"], rounded["dtype"]) == ("float32", "bfloat16")
    for n, told in ((1.0, "its tokens see those behind them"), (torch.nan, "d.txt: its perplexity is NaN; the model's numbers")):
        both = lambda self, input_ids, n=n, **_: SimpleNamespace(logits=torch.stack([input_ids.flip(1) * n] * 260, -1))  # noqa: E731
        monkeypatch.setattr(type(model), "forward", both)
        refuses(told, evaluate, model_folder("Qwen3Moe"), [str(path)], device="cpu")
    refuses("the perplexity is NaN; the model's numbers", means, Counter(nll=torch.nan), 1, 2)
    refuses(r"the perplexity is exp\(1000\); the model's numbers", means, Counter(nll=2000.0), 1, 2)


@pytest.mark.parametrize(
    ("records", "said", "right"),
    [
        (
            [
                {"question": "5*425?", "answer": "so 5*425=2,125\n#### 2,125"},
                {"question": "1+1?", "answer": "#### 2"},
                {"question": "1000+1?", "answer": "#### 1001"},
                {"question": "no end", "answer": "#### 7"},
            ],
            {"5*425?": "it is\n#### 2125\n", "1+1?": "#### 3", "1000+1?": "#### 1,001", "no end": "7"},
            2,
        ),
        (
            [{"prompt": "ab=", "answer": 2125}, {"prompt": "c=", "answer": "Paris"}, {"prompt": "d=", "answer": "x"}],
            {"ab=": "2,125\nc=", "c=": " Paris\n", "d=": "xy"},
            2,
        ),
    ],
    ids=["worked", "short"],
)
def test_exact_match_counts_items_whose_answer_comes_out(model_folder, tmp_path, monkeypatch, records, said, right):
    """The decode loop is replaced by one that says what it is told, prompt by prompt."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("Qwen3Moe"))

    def told(model, requests, *rest):
        prompts = [tokenizer.decode(r.prompt_ids, skip_special_tokens=True) for r in requests]
        return [Outcome(tokenizer(said[p], add_special_tokens=False)["input_ids"]) for p in prompts]

    monkeypatch.setattr("tokentape.capture.evaluate.decode", told)
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    (row,) = evaluate(model_folder("Qwen3Moe"), [str(path)], device="cpu")
    assert (row["accuracy"], row["n_items"], row["bits_per_byte"]) == (right / len(records), len(records), None)


def test_answers_are_read_from_continuations_and_half_of_them_missing_is_refused(model_folder, tmp_path):
    assert answer_in(" 12+30=42.\n#### 42\nQuestion:", True) == "42"
    assert answer_in("#### -1,024", True) == "-1024"
    assert answer_in("no mark 42", True) is None
    assert answer_in("73\nabc=", False) == "73"
    path = tmp_path / "h.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c"}\n')
    refuses("1 of 2 items have no answer", evaluate, model_folder("Qwen3Moe"), [str(path)])


@pytest.mark.embedded
@pytest.mark.slow
def test_the_shipped_model_answers_held_out_items():
    math_row, recall_row = evaluate(models.EMBEDDED, ["math", "recall"], n_items=150, device="cpu")
    assert (math_row["n_items"], recall_row["n_items"]) == (150, 150)
    assert math_row["accuracy"] >= 0.80
    assert recall_row["accuracy"] >= 0.85


@pytest.mark.embedded
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="code and docs follow the interpreter; the bar is CPython 3.11's")
@pytest.mark.slow
def test_the_shipped_model_knows_held_out_code_and_docs():
    rows = evaluate(models.EMBEDDED, ["code", "docs"], device="cpu")
    sizes = [sum(len(item.prompt.encode()) for item in texts.SHIPPED[row["dataset"]](row["n_items"])) for row in rows]
    together = sum(row["bits_per_byte"] * size for row, size in zip(rows, sizes, strict=True)) / sum(sizes)
    assert together <= 1.50
    manifest = json.loads((models.EMBEDDED_PATH / "manifest.json").read_text())
    if manifest["versions"]["python"] == platform.python_version():  # another patch release has another library
        assert together == pytest.approx(manifest["bits_per_byte_code_and_docs"], abs=1e-3)
