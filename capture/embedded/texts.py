"""Four data sets made on this machine, with no download: code, docs, math and recall.

`code` is the running interpreter's standard library, `docs` its pydoc topics: both follow the interpreter, so figures that
rest on them are comparable only between equal Python versions. `math` and `recall` are generated from a seed and are the same
everywhere. Train and held-out never overlap: files and topics are split by a hash of their name, problems by a hash of
(template, numbers), passages by a hash of the key. Knows nothing of tokenizers or models.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
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


def is_held_out(key: str, n_buckets: int) -> bool:
    """True for one key in `n_buckets`, the same keys on every machine."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % n_buckets == 0


@cache
def code_files(held_out: bool) -> list[Item]:
    """Whole standard-library modules, sorted by path; build-specific files (`_sysconfigdata*`) are left out. Read once."""
    root = Path(sysconfig.get_paths()["stdlib"])
    items = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]) or parts[-1].startswith("_sysconfigdata"):
            continue
        name = "/".join(parts)
        if is_held_out(name, CODE_BUCKETS) == held_out:
            items.append(Item(name, path.read_text(encoding="utf-8", errors="replace")))
    return items


def doc_topics(held_out: bool) -> list[Item]:
    """The interpreter's help topics (`pydoc_data.topics`), sorted by name."""
    from pydoc_data.topics import topics

    return [Item(f"topic:{name}", topics[name]) for name in sorted(topics) if is_held_out(name, DOCS_BUCKETS) == held_out]


# ---------------------------------------------------------------------------------------------------------------- math

NAMES = [
    "Ann", "Ben", "Cara", "Dan", "Eve", "Finn", "Gia", "Hugo", "Iris", "Jon", "Kim", "Leo", "Mia", "Ned", "Ola", "Pia",
    "Raj", "Sue", "Tom", "Uma",
]  # fmt: skip
THINGS = [
    "apples", "books", "coins", "pens", "cards", "eggs", "shells", "stamps", "keys", "cups", "nuts", "bolts", "maps",
    "seeds", "tiles",
]  # fmt: skip
PLACES = ["boxes", "bags", "shelves", "trays", "baskets", "drawers"]


def _add(rng: np.random.Generator, total: int) -> int:
    return int(rng.integers(1, 100 - total)) if total < 99 else 0


# Each template: (numbers from rng, text, worked steps). Every operand and result lies in 0..99; divisions are exact.
def _one_add(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a = int(rng.integers(2, 90))
    b = _add(rng, a)
    return (a, b), "{A} has {0} {t}. {B} gives {A} {1} more. How many {t} does {A} have?", [f"{a}+{b}={a + b}"]


def _one_sub(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a = int(rng.integers(10, 100))
    b = int(rng.integers(1, a))
    return (a, b), "{A} has {0} {t} and gives {1} to {B}. How many {t} are left?", [f"{a}-{b}={a - b}"]


def _factors(rng: np.random.Generator) -> tuple[int, int]:
    a = int(rng.integers(2, 25))
    return a, int(rng.integers(2, max(3, min(13, 99 // a + 1))))


def _one_mul(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a, b = _factors(rng)
    return (a, b), "There are {0} {p} with {1} {t} in each. How many {t} are there?", [f"{a}*{b}={a * b}"]


def _one_div(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a, b = _factors(rng)
    n = a * b
    return (n, b), "{A} puts {0} {t} into {1} {p}, the same number in each. How many {t} are in each?", [f"{n}/{b}={a}"]


def _add_sub(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a = int(rng.integers(2, 90))
    b = _add(rng, a)
    c = int(rng.integers(1, a + b))
    text = "{A} has {0} {t}. {A} finds {1} more and then loses {2}. How many {t} does {A} have?"
    return (a, b, c), text, [f"{a}+{b}={a + b}", f"{a + b}-{c}={a + b - c}"]


def _mul_add(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a, b = _factors(rng)
    c = _add(rng, a * b)
    text = "{A} buys {0} {p} with {1} {t} in each. {B} brings {2} more {t}. How many {t} are there?"
    return (a, b, c), text, [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"]


def _mul_sub(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a, b = _factors(rng)
    c = int(rng.integers(1, a * b))
    text = "{A} fills {0} {p} with {1} {t} in each and sells {2} {t}. How many {t} are left?"
    return (a, b, c), text, [f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"]


def _sub_div(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a, b = _factors(rng)
    n = a * b
    c = _add(rng, n)
    text = "{A} has {0} {t}, keeps {1} and shares the rest among {2} friends. How many {t} does each friend get?"
    return (n + c, c, b), text, [f"{n + c}-{c}={n}", f"{n}/{b}={a}"]


def _three(rng: np.random.Generator) -> tuple[tuple[int, ...], str, list[str]]:
    a, b = _factors(rng)
    n = a * b
    c = _add(rng, n)
    d = int(rng.integers(1, n + c))
    text = "{A} packs {0} {p} with {1} {t} in each, adds {2} {t} and gives {3} to {B}. How many {t} are left?"
    return (a, b, c, d), text, [f"{a}*{b}={n}", f"{n}+{c}={n + c}", f"{n + c}-{d}={n + c - d}"]


TEMPLATES = (_one_add, _one_sub, _one_mul, _one_div, _add_sub, _mul_add, _mul_sub, _sub_div, _three)


def math_items(held_out: bool, seed: int | list[int]) -> Iterator[Item]:
    """Endless templated word problems of 1 to 3 steps; the worked line comes before `#### <integer>` as in GSM8K."""
    rng = np.random.default_rng(seed)
    while True:
        which = int(rng.integers(len(TEMPLATES)))
        numbers, text, steps = TEMPLATES[which](rng)
        first, second = rng.choice(len(NAMES), 2, replace=False)
        words = {
            "A": NAMES[first],
            "B": NAMES[second],
            "t": THINGS[rng.integers(len(THINGS))],
            "p": PLACES[rng.integers(len(PLACES))],
        }
        name = f"{TEMPLATES[which].__name__[1:]}:{','.join(map(str, numbers))}"
        if is_held_out(name, ITEM_BUCKETS) != held_out:
            continue
        answer = steps[-1].split("=")[1]
        question = text.format(*numbers, **words)
        yield Item(name, f"Question: {question}\nAnswer:", answer, f" {'. '.join(steps)}.\n#### {answer}\n")


# -------------------------------------------------------------------------------------------------------------- recall

CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
FILLER_ADJECTIVES = ["quiet", "old", "green", "small", "bright", "slow", "cold", "round", "open", "early"]
FILLER_NOUNS = ["river", "house", "garden", "road", "tower", "field", "lamp", "boat", "hill", "door"]
FILLER_VERBS = ["stands", "waits", "turns", "rests", "shines", "falls", "grows", "stays", "moves", "sleeps"]
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


def _first(items: Iterator[Item], n: int) -> list[Item]:
    return [next(items) for _ in range(n)]


SHIPPED: dict[str, Callable[[int], list[Item]]] = {
    "code": lambda n: code_files(held_out=True)[:n],
    "docs": lambda n: doc_topics(held_out=True)[:n],
    "math": lambda n: _first(math_items(True, EVAL_SEED), n),
    "recall": lambda n: _first(recall_items(True, EVAL_SEED), n),
}
