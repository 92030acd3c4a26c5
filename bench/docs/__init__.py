"""What writes the pages of docs/ and README.md that are made of numbers: `python -m bench.docs.NAME PAGE...`, in a checkout.

A page holds what is written between `<!-- KIND WORDS -->` and `<!-- end -->`; tests hold it to what is written now.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tokentape.warehouse.atomic_files import replace


def blocks(kind: str) -> re.Pattern[str]:
    """Of a kind, a regular expression: the words of each, and what it holds."""
    return re.compile(rf"(?s)<!-- ((?:{kind})[^>]*?) -->(.*?)<!-- end -->")


def rewritten(text: str, kind: str, made: Callable[[str, str], str]) -> str:
    """The page with what `made` makes of every block, of its words and of what it holds."""
    return blocks(kind).sub(lambda block: f"<!-- {block[1]} -->{made(block[1], block[2])}<!-- end -->", text)


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Lines of a Markdown table."""
    names = list(head)
    lines = ["".join(f"| {cell} " if cell != "" else "| " for cell in line) + "|\n" for line in (names, *rows)]
    return "".join([lines[0], "|---" * len(names), "|\n", *lines[1:]])


def write(usage: str, pages: Iterable[str], made: Callable[[str], str]) -> None:
    """Writes pages anew, each by what it is now; says the usage where none is named."""
    named = list(map(Path, pages))
    if not named:
        sys.exit(f"usage: python -m bench.docs.{usage}")
    for page in named:
        replace(page, made(page.read_text(encoding="utf-8") if page.exists() else "").encode())
