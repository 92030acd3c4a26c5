"""Four data sets made on this machine, with no download: code, docs, math and recall.

`code` is the running interpreter's standard library, `docs` its pydoc topics: both follow the interpreter, so figures that
rest on them are comparable only between equal Python versions. `math` and `recall` are generated from a seed and are the same
everywhere. Train and held-out never overlap: files and topics are split by a hash of their name, problems by a hash of
(template, numbers), passages by a hash of the key. Knows nothing of tokenizers or models.
"""

import hashlib
import os
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from operator import add, floordiv, mul, sub
from pathlib import Path

import numpy as np

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "encodings", "lib2to3", "site-packages", "__pycache__", "pydoc_data"}
# Held-out share: about 12 of 480 library files and 40 KB of topics on CPython 3.11; 1 in 16 generated items.
CODE_BUCKETS, DOCS_BUCKETS, ITEM_BUCKETS = 32, 12, 16


@dataclass(frozen=True)
class Item:
    """One prompt of a data set. `answer` is what exact match is scored against; None where only perplexity makes sense."""

    name: str
    prompt: str
    answer: str | None = None
    solution: str | None = None  # the worked line that training sees after the prompt
    turns: tuple[dict[str, str], ...] = ()  # of a chat: role and content, for a chat template in place of the prompt


def is_held_out(key: str, n_buckets: int) -> bool:
    """True for one key in `n_buckets`, the same keys on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % n_buckets == 0


@cache
def code_files(held_out: bool) -> list[Item]:
    """Whole standard-library modules, sorted by path; build-specific files (`_sysconfigdata*`) are left out. Read once."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), list[Path]()
    for folder, inside, files in os.walk(root):
        inside[:] = set(inside) - SKIPPED_FOLDERS
        found += [Path(folder, name) for name in files if name.endswith(".py") and not name.startswith("_sysconfigdata")]
    named = {path.relative_to(root).as_posix(): path for path in sorted(found)}
    kept = {name: path for name, path in named.items() if is_held_out(name, CODE_BUCKETS) == held_out}
    return [Item(name, path.read_text(encoding="utf-8", errors="replace")) for name, path in kept.items()]


def doc_topics(held_out: bool) -> list[Item]:
    """The interpreter's help topics (`pydoc_data.topics`), sorted by name."""
    from pydoc_data.topics import topics

    return [Item(f"topic:{name}", topics[name]) for name in sorted(topics) if is_held_out(name, DOCS_BUCKETS) == held_out]


# ---------------------------------------------------------------------------------------------------------------- math

_WORDS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
NAMES, THINGS, PLACES, TEMPLATES = (_WORDS["math"][name] for name in ("names", "things", "places", "templates"))
OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul, "/": floordiv}


def _more(rng: np.random.Generator, total: int) -> int:
    return int(rng.integers(1, 100 - total)) if total < 99 else 0


def _numbers(rng: np.random.Generator, signs: str) -> list[int]:
    """Of a problem: every operand and result lies in 0..99, divisions are exact."""
    if signs[0] == "*" or signs[-1] == "/":
        a = int(rng.integers(2, 25))
        b = int(rng.integers(2, max(3, min(13, 99 // a + 1))))
        if signs[-1] == "/":
            kept = [_more(rng, a * b)] if signs[0] == "-" else []
            return [a * b + sum(kept), *kept, b]
        numbers, total, signs = [a, b], a * b, signs[1:]
    else:
        total = int(rng.integers(2, 90) if signs[0] == "+" else rng.integers(10, 100))
        numbers = [total]
    for sign in signs:
        numbers.append(_more(rng, total) if sign == "+" else int(rng.integers(1, total)))
        total = OPERATIONS[sign](total, numbers[-1])
    return numbers


def math_items(held_out: bool, seed: int | list[int]) -> Iterator[Item]:
    """Endless templated word problems of 1 to 3 steps; the worked line comes before `#### <integer>` as in GSM8K."""
    rng = np.random.default_rng(seed)
    while True:
        template = list(TEMPLATES)[rng.integers(len(TEMPLATES))]
        signs, text = TEMPLATES[template]
        numbers, steps = _numbers(rng, signs), list[str]()
        answer = numbers[0]
        for sign, number in zip(signs, numbers[1:], strict=True):
            steps.append(f"{answer}{sign}{number}={OPERATIONS[sign](answer, number)}")
            answer = OPERATIONS[sign](answer, number)
        first, second = rng.choice(len(NAMES), 2, replace=False)
        words = {
            "A": NAMES[first],
            "B": NAMES[second],
            "t": THINGS[rng.integers(len(THINGS))],
            "p": PLACES[rng.integers(len(PLACES))],
        }
        name = f"{template}:{','.join(map(str, numbers))}"
        if is_held_out(name, ITEM_BUCKETS) != held_out:
            continue
        question = text.format(*numbers, **words)
        yield Item(name, f"Question: {question}\nAnswer:", str(answer), f" {'. '.join(steps)}.\n#### {answer}\n")


# -------------------------------------------------------------------------------------------------------------- recall

CONSONANTS, VOWELS = (_WORDS["recall"][name] for name in ("consonants", "vowels"))
FILLER_ADJECTIVES, FILLER_NOUNS, FILLER_VERBS = (_WORDS["recall"][name] for name in ("adjectives", "nouns", "verbs"))
MAX_KEYS, MAX_FILLER_LINES = 12, 33


def recall_key(rng: np.random.Generator, held_out: bool) -> str:
    """A word of two consonant-vowel syllables (4,900 of them)."""
    while True:
        c, v = rng.integers(len(CONSONANTS), size=2), rng.integers(len(VOWELS), size=2)
        key = "".join(CONSONANTS[c[i]] + VOWELS[v[i]] for i in range(2))
        if is_held_out(key, ITEM_BUCKETS) == held_out:
            return key


def _filler(rng: np.random.Generator) -> str:
    a, n, v, m = rng.integers(10, size=4)
    return f"the {FILLER_ADJECTIVES[a]} {FILLER_NOUNS[n]} {FILLER_VERBS[v]} near the {FILLER_NOUNS[m]}.\n"


def recall_passage(rng: np.random.Generator, n_keys: int, n_filler_lines: int, held_out: bool) -> tuple[str, dict[str, str]]:
    """Lines `key=value` (two-digit values) in random order with filler lines between them, closed by a line `?`."""
    pairs: dict[str, str] = {}
    while len(pairs) < n_keys:
        pairs[recall_key(rng, held_out)] = f"{rng.integers(10, 100)}"
    lines = [f"{key}={value}\n" for key, value in pairs.items()] + [_filler(rng) for _ in range(n_filler_lines)]
    return "".join(lines[i] for i in rng.permutation(len(lines))) + "?\n", pairs


def recall_items(held_out: bool, seed: int | list[int]) -> Iterator[Item]:
    """Endless passages of at most 400 tokens with ONE query; the prompt ends in `key=`, the answer is the value."""
    rng = np.random.default_rng(seed)
    while True:
        n_keys, n_filler = int(rng.integers(4, MAX_KEYS + 1)), int(rng.integers(0, MAX_FILLER_LINES + 1))
        passage, pairs = recall_passage(rng, n_keys, n_filler, held_out)
        key = list(pairs)[rng.integers(len(pairs))]
        yield Item(f"recall:{n_keys}:{n_filler}:{key}", f"{passage}{key}=", pairs[key], f"{pairs[key]}\n")


def recall_training_passage(rng: np.random.Generator, n_keys: int, n_filler_lines: int) -> str:
    """A passage followed by as many queries as keys: copying forms at once from dense queries, not from sparse ones."""
    passage, pairs = recall_passage(rng, n_keys, n_filler_lines, held_out=False)
    keys = list(pairs)
    return passage + "".join(f"{keys[i]}={pairs[keys[i]]}\n" for i in rng.permutation(len(keys)))


# ------------------------------------------------------------------------------------------------------------ data sets

EVAL_SEED = 7


SHIPPED: dict[str, Callable[[int], list[Item]]] = {
    "code": lambda n: code_files(held_out=True)[:n],
    "docs": lambda n: doc_topics(held_out=True)[:n],
    "math": lambda n: list(islice(math_items(True, EVAL_SEED), n)),
    "recall": lambda n: list(islice(recall_items(True, EVAL_SEED), n)),
}
