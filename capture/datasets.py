"""Where prompts come from: the four shipped data sets, a file, or a data set of the Hugging Face hub.

A record of a file or hub data set is read by field name: the prompt from `prompt`, `text` or `question` (or the field asked for),
and, where present, what follows it from `solution`, `continuation`, `completion`, `response` or `answer`. An `answer` may be a
number. A list of `messages` is a chat: the prompt is all up to its last answer, which follows it. Knows no tokenizer.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokentape.capture.embedded.texts import SHIPPED, Item
from tokentape.policies.names import nearest

PROMPT_FIELDS = ("prompt", "text", "question", "messages")
CONTINUATION_FIELDS = ("solution", "continuation", "completion", "response", "answer")
SUFFIXES = (".jsonl", ".txt", ".parquet")
ANSWER_MARK = "####"  # as in GSM8K: the final answer stands behind it


def items(name: str, n: int, split: str | None = None, field: str | None = None, subset: str | None = None) -> list[Item]:
    """The first `n` items of a data set.

    name: code | docs | math | recall, a .jsonl, .parquet or .txt file (one document), or a hub id `owner/name`; several joined by
    `+` take turns, until the last has ended. split, subset: of a hub data set (default: test, else the first). field: of the
    prompt. Raises ValueError for an unknown name (with the nearest known one), a missing field, a broken record or an empty data
    set; OSError where the hub cannot be reached.
    """
    if n < 1:
        raise ValueError(f"{n} requests asked for; give 1 or more")
    found = list(itertools.islice(_items(name, n, split, field, subset), n))
    if not found:
        raise ValueError(f"data set {name} is empty: it holds no item with text; give another --dataset or --split")
    return found


def records(name: str, split: str | None = None, subset: str | None = None) -> Iterator[Mapping[str, Any]]:
    """All that a .jsonl or .parquet file, or a data set of the hub, holds, one object after the other. Raises as `items` does."""
    path, suffix = Path(name), Path(name).suffix.lower()
    if suffix in SUFFIXES and not path.is_file():
        absent = f"no such file{nearest(name, [str(p) for p in _files(path.parent)])}"
        raise ValueError(f"{name}: {'a folder; give a file of it' if path.is_dir() else absent}")
    if suffix in READERS:
        return READERS[suffix](path)
    if name.count("/") == 1 and not path.exists():
        return _hub_records(name, split, subset)
    raise ValueError(f"{name}: neither a {' or '.join(READERS)} file nor a hub id owner/name")


def _items(name: str, n: int, split: str | None, field: str | None, subset: str | None) -> Iterator[Item]:
    if name in SHIPPED:
        return iter(SHIPPED[name](n))
    if "+" in name and not Path(name).exists():
        each = [_items(part.strip(), n, split, field, subset) for part in name.split("+")]
        return (item for turn in itertools.zip_longest(*each) for item in turn if item is not None)
    path, is_hub = Path(name), name.count("/") == 1 and not Path(name).exists()
    if path.suffix.lower() == ".txt" and path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        return iter([Item(path.name, text)] if text.strip() else [])
    if path.suffix.lower() in SUFFIXES or is_hub:
        return _from_records(records(name, split, subset), str(path), field)
    if path.exists():
        raise ValueError(f"{name}: not a data file; give a file that ends in {', '.join(SUFFIXES)}")
    known = [*SHIPPED, *(p.name for p in _files(Path()))]
    kinds = f"{', '.join(SHIPPED)}, a file {'/'.join(SUFFIXES)}, or a hub id owner/name"
    raise ValueError(f"unknown data set {name!r}{nearest(name, known) or ';'} known: {kinds}")


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) if folder.is_dir() else []


def _jsonl_records(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                json.dumps(record, ensure_ascii=False).encode()  # half a character is no text
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", error)
                raise ValueError(f"{path} line {number}: not JSON ({reason}); write one object per line") from error
            if not isinstance(record, dict):
                raise ValueError(f"{path} line {number}: not a JSON object; write one object per line")
            yield record


def _parquet_records(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as handle:
        try:
            file = pq.ParquetFile(handle, page_checksum_verification=True)
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]}); fetch it again") from error


READERS = {".jsonl": _jsonl_records, ".parquet": _parquet_records}


def _hub_records(name: str, split: str | None, subset: str | None) -> Iterator[Mapping[str, Any]]:
    """Streamed, so that only what is asked for is downloaded."""
    import datasets

    try:
        splits = datasets.get_dataset_split_names(name, subset)
        chosen = split or ("test" if "test" in splits else splits[0])
        if chosen not in splits:
            raise ValueError(f"no split {chosen!r}; it has {', '.join(splits)}")
        yield from datasets.load_dataset(name, subset, split=chosen, streaming=True)
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"data set {name} could not be read from the Hugging Face hub ({reason}); check its name and the network"
        raise OSError(message) from error
    except ValueError as error:  # of the library: several subsets, none of that name, rows that cannot be read
        told = " ".join(str(error).split("\n")[:2])
        raise ValueError(f"data set {name}: {told}{' with --subset' * ('available configs' in told)}") from error


def _from_records(records: Iterable[Mapping[str, Any]], where: str, field: str | None) -> Iterator[Item]:
    for number, record in enumerate(records):
        names = (field,) if field else PROMPT_FIELDS
        name = next((f for f in names if record.get(f) is not None), None)
        if name is None:
            missing, has = " or ".join(names), ", ".join(f for f in record if record[f] is not None) or "nothing"
            raise ValueError(f"{where} record {number}: no field {missing} (it has {has}); name the prompt's with --field")
        if name == "messages" and not isinstance(record[name], str):
            yield _chat(f"{where} record {number}", f"{where}:{number}", record[name])
            continue
        if not isinstance(record[name], str):
            kind = type(record[name]).__name__
            raise ValueError(f"{where} record {number}: field {name} is {kind}, not text; name another with --field")
        if record[name].strip():
            yield _item(f"{where}:{number}", record[name], record, name)


def _chat(where: str, name: str, messages: Any) -> Item:
    """Its turns, less a last one of the assistant's, which is what follows."""
    listed = messages if isinstance(messages, list) else []
    turns: list[dict[str, Any]] = [{key: of.get(key) for key in ("role", "content")} for of in listed if isinstance(of, Mapping)]
    if not turns or len(turns) < len(listed) or any(not isinstance(text, str) for turn in turns for text in turn.values()):
        raise ValueError(
            f"{where}: messages are not objects with a role and a content of text; write them as a chat template wants"
        )
    answer = turns.pop()["content"] if turns[-1]["role"] == "assistant" else None
    if not turns:
        raise ValueError(f"{where}: messages hold an answer only; put the user's turn before it")
    return Item(name, "\n".join(turn["content"] for turn in turns), None, answer, tuple(turns))


def _item(name: str, prompt: str, record: Mapping[str, Any], used: str) -> Item:
    follows = next((record[f] for f in CONTINUATION_FIELDS if f != used and isinstance(record.get(f), str)), None)
    answer = follows.rsplit(ANSWER_MARK, 1)[1].strip() if follows and ANSWER_MARK in follows else record.get("answer")
    if type(answer) in (int, float) and answer == answer:  # not bool, and not NaN, which stands where there is none
        answer = str(answer).removesuffix(".0")  # a Parquet column of whole numbers may be float
    return Item(name, prompt, answer if isinstance(answer, str) and used != "answer" else None, follows)


def prompt_ids(item: Item, tokenizer: Any, model: str, chat_template: bool = False) -> list[int]:
    """Of a chat all turns and the header of the answer, by the model's own template; of another prompt, with `chat_template`,
    too, as one turn of the user's. Raises ValueError where the model has none."""
    if not chat_template and not item.turns:
        return list(tokenizer(item.prompt)["input_ids"])
    if not tokenizer.chat_template:
        remedy = f"{item.name} is a chat: give a chat model" if item.turns else "leave --chat-template out"
        raise ValueError(f"{model} has no chat template; {remedy}")
    turns = [dict(turn) for turn in item.turns] or [{"role": "user", "content": item.prompt}]
    return chat_ids(tokenizer, turns, item.name)


def chat_ids(tokenizer: Any, turns: list[dict[str, str]], where: str) -> list[int]:
    """A chat and the header of its answer, by the model's own template. Raises ValueError naming a chat that it does not take."""
    try:
        encoded = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "jinja2":
            raise
        raise ValueError(f"{where}: the chat template refuses it ({error}); leave it out, or give another model") from error
    return list(encoded["input_ids"])
