"""Chats as requests: lengths, arrivals and prefixes counted by hand with a tokenizer of words, and what is refused."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jinja2 import TemplateError

from tokentape.capture.importers import chats
from tokentape.capture.importers.chats import import_chats
from tokentape.capture.importers.limits import BadImport
from tokentape.warehouse.tape import Store


class Words:
    """A token per word; the template puts a word before every turn and one behind all."""

    chat_template: str | None = "yes"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [hash(word) % 2**31 for word in text.split()]

    def apply_chat_template(self, turns: list[dict[str, str]], **how: bool) -> dict[str, list[int]]:
        assert how == {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
        return {"input_ids": self.encode(" ".join(f"<{turn['role']}> {turn['content']}" for turn in turns) + " <assistant>")}


def chat(*texts: str, **times: Any) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} | times for i, text in enumerate(texts)]


def written(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def imported(store: Store, name: str, n: int = 100, tokenizer: Any = None) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    tape = store.open(import_chats(name, store, tokenizer or Words(), "words", n))
    return tape.read("requests").to_dict(as_series=False), tape.manifest.model_dump()


def test_an_answer_is_a_request_behind_all_turns_before_it(store: Store, tmp_path: Path) -> None:
    name = written(tmp_path, {"conversation": chat("a b c", "d e", "f", "g h i j")}, {"conversation": chat("a", "b")})
    rows, manifest = imported(store, name)
    assert rows["n_prompt_tokens"] == [3 + 2, 3 + 2 + 1 + 4, 1 + 2]
    assert rows["n_output_tokens"] == [2, 4, 1]
    assert rows["arrival_s"] == [0, 0, 0]
    assert (manifest["settings"]["arrivals"], manifest["tables"], manifest["model_id"]) == ("none", ("requests",), "words")
    plain = Words()
    plain.chat_template = None
    assert imported(store, name, 1, plain)[0]["n_prompt_tokens"] == [3, 6]
    rows, manifest = imported(store, written(tmp_path, {"messages": chat("", "a", "b", "c")}), 1, plain)
    assert (rows["n_prompt_tokens"], manifest["flags"]["empty_requests"]["left_out"]) == ([2], 1)


def test_prompts_that_begin_alike_share_the_ids_of_their_blocks(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "BLOCK_TOKENS", 2)
    rows, manifest = imported(
        store, written(tmp_path, {"messages": chat("a b c", "d", "e", "f")}, {"messages": chat("a b z", "d")})
    )
    first, second, other = rows["prefix_blocks"]  # <user> a | b c | <assistant>; ... c <assistant> d | ...; <user> a | b z | ...
    assert (first[:2], other[0]) == (second[:2], first[0])
    assert other[1] not in {*first, *second}
    assert first[2] != second[2], "a block that is not full is one of its own"
    assert manifest["settings"]["prefix_block_tokens"] == 2


@pytest.mark.parametrize(
    ("of_turn", "of_chat", "arrivals", "came"),
    [
        (["2024-01-01T00:00:10+00:00", "2024-01-01T00:00:00"], [None, None], "turn", [0, 10]),
        ([None, None], [1.5, 4], "chat", [0, 2.5]),
        ([None, None], [datetime(2024, 1, 1, tzinfo=UTC).isoformat(), None], "none", [0, 0]),
    ],
)
def test_arrivals(store: Store, tmp_path: Path, of_turn: list[Any], of_chat: list[Any], arrivals: str, came: list[float]) -> None:
    made = [{"conversation": chat("a", "b", timestamp=t), "timestamp": c} for t, c in zip(of_turn, of_chat, strict=True)]
    rows, manifest = imported(store, written(tmp_path, *({k: v for k, v in record.items() if v is not None} for record in made)))
    assert (rows["arrival_s"], manifest["settings"]["arrivals"]) == (came, arrivals)


def test_sharegpt_and_parquet_as_datasets_writes_it(store: Store, tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"}, {"from": "gpt", "value": " "}]
    rows, manifest = imported(store, written(tmp_path, {"conversations": turns}))
    assert (rows["n_prompt_tokens"], rows["n_output_tokens"]) == ([4], [1])
    assert manifest["flags"] == {"empty_requests": {"left_out": 1, "rows": 2}}
    pq.write_table(pa.table({"conversation": [chat("a", "b", timestamp=datetime(2024, 1, 1))]}), tmp_path / "wild.parquet")
    rows, manifest = imported(store, str(tmp_path / "wild.parquet"))
    assert (rows["n_output_tokens"], manifest["settings"]["arrivals"]) == ([1], "turn")


def test_a_chat_that_the_template_does_not_take_is_named(store: Store, tmp_path: Path) -> None:
    class Strict(Words):
        def apply_chat_template(self, turns: list[dict[str, str]], **how: bool) -> dict[str, list[int]]:
            raise TemplateError("System role not supported")

    empty = written(tmp_path, {"conversation": chat("a", "")})
    with pytest.raises(BadImport, match="no chat with an answer"):  # of which the template is not asked
        import_chats(empty, store, Strict(), "words", 1)
    with pytest.raises(ValueError, match=r"record 0: the chat template refuses it \(System role not supported\); leave it out"):
        imported(store, written(tmp_path, {"conversation": chat("a", "b")}), tokenizer=Strict())
    assert not store.exists
