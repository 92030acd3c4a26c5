"""Data sets by name, file and hub id; every bad one in a line that says what to do."""

import json
import shutil
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusing import refuses
from transformers import AutoTokenizer

from tokentape.capture import datasets, models
from tokentape.capture.evaluate import evaluate
from tokentape.capture.live.quality import Cut, windows
from tokentape.capture.run import CaptureSettings, capture


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
        {"prompt": "none:", "answer": float("nan")},
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
        ("none:", None, None),
    ]
    assert [i.prompt for i in datasets.items(path, 1, field="question")] == ["1+1?"]


def test_files_of_prompts_and_data_sets_joined(tmp_path):
    pq.write_table(pa.table({"text": ["a b", "c"], "n": [1, 2]}), tmp_path / "p.parquet")
    assert [i.prompt for i in datasets.items(str(tmp_path / "p.parquet"), 9)] == ["a b", "c"]
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    assert [i.prompt for i in datasets.items(str(tmp_path / "t.txt"), 9)] == ["one\n\ntwo\n"]
    path = jsonl(tmp_path / "a+b.jsonl", {"prompt": "x"}, {"prompt": "y"})  # a file of that name is one data set
    (tmp_path / "t.txt").write_text("alone")
    of = [i.prompt for i in datasets.items("math", 3)]
    assert [i.prompt for i in datasets.items(path, 9)] == ["x", "y"]
    assert [i.prompt for i in datasets.items(f"{tmp_path / 't.txt'}+math", 4)] == ["alone", *of]
    assert [i.prompt for i in datasets.items("math + recall", 2)] == [of[0], datasets.items("recall", 1)[0].prompt]


def test_bad_data_sets_name_the_remedy(tmp_path):
    def refused(name, message, **options):
        refuses(message, datasets.items, str(name), 5, **options)

    good = tmp_path / "prompts.jsonl"
    jsonl(good, {"prompt": "x"})
    refused("math+maths", "unknown data set 'maths'")
    refused("recal", "did you mean 'recall'")
    refused(tmp_path / "prompt.jsonl", "no such file; did you mean '.*prompts.jsonl'")
    refused(tmp_path, "not a data file")
    refused(jsonl(tmp_path / "n.jsonl", {"body": "x"}), "record 0: no field prompt or text or question")
    refused(good, "no field story", field="story")
    refused(jsonl(tmp_path / "l.jsonl", {"prompt": ["x"]}), "field prompt is list, not text")
    for broken in (b'{"prompt": ', b'{"prompt": "\xff"}', b'{"prompt": "half \\ud83d"}', b"[" * 100_000):
        (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\n' + broken)
        refused(tmp_path / "b.jsonl", "b.jsonl line 2: not JSON")
    (tmp_path / "v.jsonl").write_text("3\n")
    refused(tmp_path / "v.jsonl", "line 1: not a JSON object")
    (tmp_path / "e.txt").write_text(" \n")
    refused(tmp_path / "e.txt", "is empty")
    refused(jsonl(tmp_path / "n.jsonl", {"prompt": None, "id": 1}), r"record 0: no field .* \(it has id\)")
    pq.write_table(pa.table({"prompt": [f"hello {i}" for i in range(99)]}), whole := tmp_path / "p.parquet")
    broken, told = bytearray(whole.read_bytes()), []
    for at in range(4, len(broken), 3):  # a bit of the pages or of the footer
        broken[at] ^= 16
        (tmp_path / "f.parquet").write_bytes(broken)
        broken[at] ^= 16
        try:
            datasets.items(str(tmp_path / "f.parquet"), 99)
        except ValueError as error:
            told.append(str(error))
    assert told == [line for line in told if str(tmp_path / "f.parquet") in line] != []
    (tmp_path / "d.parquet").mkdir()
    refused(tmp_path / "d.parquet", "d.parquet: a folder; give a file of it")
    refuses("give 1 or more", datasets.items, "math", 0)


def test_an_unreachable_hub_is_one_line():
    refuses("Hugging Face hub", datasets.items, "nobody/nothing", 1, error=OSError)


def test_what_a_hub_data_set_does_not_have_is_told_with_its_name(tmp_path, monkeypatch):
    import datasets as hub

    jsonl(tmp_path / "x.jsonl", {"prompt": "x"})
    listed = "".join(f"- config_name: {name}\n  data_files: x.jsonl\n" for name in ("a", "b"))
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{listed}---\n")
    split_names = partial(hub.get_dataset_split_names, str(tmp_path))
    monkeypatch.setattr(hub, "get_dataset_split_names", lambda name, subset: split_names(subset))
    refuses(r"data set of/two: .* configs: \['a', 'b'\] with --subset$", datasets.items, "of/two", 1)
    refuses(r"data set of/two: BuilderConfig 'c' not found", datasets.items, "of/two", 1, subset="c")
    refuses(r"data set of/two: no split 'test'; it has train", datasets.items, "of/two", 1, "test", subset="a")


def test_chats_are_turns_and_the_answer_that_follows_them(tmp_path):
    user, first, again = ({"role": r, "content": c} for r, c in (("user", "hi"), ("assistant", "hello"), ("user", "and?")))
    path = jsonl(
        tmp_path / "a.jsonl", {"messages": [user, first, again]}, {"messages": [user, first]}, {"prompt": "x", "messages": 3}
    )
    found = datasets.items(path, 9)
    assert [(i.prompt, i.solution, len(i.turns)) for i in found] == [
        ("hi\nhello\nand?", None, 3),
        ("hi", "hello", 1),
        ("x", None, 0),
    ]
    wrong, listed = "role and a content of text", {"role": "user", "content": [1]}
    for messages, words in (([], wrong), (3, wrong), ([user, "x"], wrong), ([listed], wrong), ([first], "an answer only")):
        refuses(f"record 0: .*{words}", datasets.items, jsonl(tmp_path / "b.jsonl", {"messages": messages}), 1)


def test_a_chat_is_the_models_template_of_all_its_turns(model_folder, tmp_path, store):
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    turns += [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]
    path = jsonl(tmp_path / "chat.jsonl", {"messages": turns})
    settings = CaptureSettings(
        model_folder("Llama"), path, ("tokens",), max_prompt_tokens=64, max_new_tokens=4, teacher_forced=True
    )
    refuses(r"chat.jsonl:0 is a chat: give a chat model", capture, settings, store)
    shutil.copytree(settings.model, tmp_path / "chat")
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    header = "{% if add_generation_prompt %}[assistant]{% endif %}"
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}" + header
    tokenizer.save_pretrained(tmp_path / "chat")
    tokens = store.open(capture(replace(settings, model=str(tmp_path / "chat")), store)).read("tokens")
    text = "[system]be brief[user]hi[assistant]yo[user]why[assistant]so"
    assert tokenizer.decode(tokens["token_id"].to_list()) == text[:-1]  # the last token of a request is no input
    assert tokens["phase"].to_list().count("prefill") == len(text) - 2
    (tmp_path / "same.txt").write_text(text[:-2])
    row, same = evaluate(str(tmp_path / "chat"), [path, str(tmp_path / "same.txt")], device="cpu")
    assert (row["n_tokens"], row["perplexity"]) == (same["n_tokens"], same["perplexity"])
    assert row["bits_per_byte"] == pytest.approx(same["bits_per_byte"] * len(text[:-2]) / len("be briefhiyowhy"))
    loaded = models.load(models.find(str(tmp_path / "chat")))
    assert tokenizer.decode(windows(loaded, path, Cut(prompt_tokens=20, decode_tokens=4), 0)[0]) == text[:24]
    jsonl(tmp_path / "chat.jsonl", {"prompt": "a prompt that is cut where it begins"})
    wrapped = replace(settings, model=str(tmp_path / "chat"), chat_template=True, teacher_forced=False, max_prompt_tokens=20)
    cut = store.open(capture(wrapped, store)).read("tokens").filter(phase="prefill")
    assert tokenizer.decode(cut["token_id"].to_list()) == "it begins[assistant]"
    for record in ({"messages": turns[:2]}, {"prompt": "x", "solution": ""}):
        jsonl(tmp_path / "chat.jsonl", {"messages": turns}, record)
        with pytest.raises(ValueError, match=r"item .*chat.jsonl:1: nothing follows its prompt; give it an answer"):
            capture(replace(settings, model=str(tmp_path / "chat")), store)
