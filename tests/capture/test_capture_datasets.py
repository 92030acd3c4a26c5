"""Data sets by name, file and hub id; every bad one in a line that says what to do."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokentape.capture import datasets


def jsonl(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return str(path)


@pytest.mark.parametrize("name", ["code", "docs", "math", "recall"])
def test_shipped_data_sets(name):
    found = datasets.items(name, 3)
    assert len(found) == 3
    assert all((i.answer is not None) == (name in ("math", "recall")) for i in found)
    assert found == datasets.items(name, 3)


def test_records_give_prompt_continuation_and_answer(tmp_path):
    path = jsonl(
        tmp_path / "a.jsonl",
        {"question": "1+1?", "answer": "work #### 2"},
        {"prompt": "capital of France:", "answer": "Paris"},
        {"text": "only text"},
        {"prompt": "say", "completion": "hello"},
        {"prompt": "  "},
        {"prompt": "sum:", "answer": 2125},
        {"prompt": "half:", "answer": 0.5},
        {"prompt": "whole:", "answer": 3.0},
        {"prompt": "is it:", "answer": True},
    )
    found = datasets.items(path, 19)
    assert [(i.prompt, i.solution, i.answer) for i in found] == [
        ("1+1?", "work #### 2", "2"),
        ("capital of France:", "Paris", "Paris"),
        ("only text", None, None),
        ("say", "hello", None),
        ("sum:", None, "2125"),
        ("half:", None, "0.5"),
        ("whole:", None, "3"),
        ("is it:", None, None),
    ]
    assert [i.prompt for i in datasets.items(path, 1, field="question")] == ["1+1?"]


def test_parquet_and_text_files(tmp_path):
    pq.write_table(pa.table({"text": ["a b", "c"], "n": [1, 2]}), tmp_path / "p.parquet")
    assert [i.prompt for i in datasets.items(str(tmp_path / "p.parquet"), 9)] == ["a b", "c"]
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    assert [i.prompt for i in datasets.items(str(tmp_path / "t.txt"), 9)] == ["one\n\ntwo\n"]


def test_bad_data_sets_name_the_remedy(tmp_path):
    def refused(name, message, **options):
        with pytest.raises(ValueError, match=message) as caught:
            datasets.items(str(name), 5, **options)
        assert "\n" not in str(caught.value)

    good = tmp_path / "prompts.jsonl"
    jsonl(good, {"prompt": "x"})
    refused("recal", "did you mean 'recall'")
    refused(tmp_path / "prompt.jsonl", "no such file; did you mean '.*prompts.jsonl'")
    refused(tmp_path, "not a data file")
    refused(jsonl(tmp_path / "n.jsonl", {"body": "x"}), "record 0: no field prompt or text or question")
    refused(good, "no field story", field="story")
    refused(jsonl(tmp_path / "l.jsonl", {"prompt": ["x"]}), "field prompt is list, not text")
    (tmp_path / "b.jsonl").write_text('{"prompt": "x"}\n{"prompt": \n')
    refused(tmp_path / "b.jsonl", "line 2: not JSON")
    (tmp_path / "v.jsonl").write_text("3\n")
    refused(tmp_path / "v.jsonl", "line 1: not a JSON object")
    (tmp_path / "e.txt").write_text(" \n")
    refused(tmp_path / "e.txt", "is empty")
    (tmp_path / "f.parquet").write_text("not parquet")
    refused(tmp_path / "f.parquet", "not a readable Parquet file")
    with pytest.raises(ValueError, match="must be 1 or more"):
        datasets.items("math", 0)


def test_an_unreachable_hub_is_one_line():
    with pytest.raises(OSError, match="Hugging Face hub") as caught:
        datasets.items("nobody/nothing", 1)
    assert "\n" not in str(caught.value)
