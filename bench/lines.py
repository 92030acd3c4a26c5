"""Lines of Python by room, product and tests: `python -m bench.lines`, or `make lines`; the last line is JSON.

Every line of a file counts, comments and blank ones too. The product is the rooms and the public face.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS: tuple[str, ...] = tuple(PYPROJECT["tool"]["tokentape"]["rooms"])
PRODUCT = (*ROOMS, "tokentape")
BESIDE = ("tests", "bench")
# What may not be exceeded (tests/bench/test_lines.py): what is reached. The aim is 50,000 lines, and .55 of them in tests. Tests
# have a number of their own, not a share: a change that takes away product alone is none against them.
BUDGET, TESTS = 59_048, 37_339


def lines(folder: str) -> int:
    """Lines of all Python files below a folder of the checkout."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))


def count() -> dict[str, float]:
    """Lines by folder, of the product, and tests as a share of it."""
    counted = {folder: lines(folder) for folder in (*PRODUCT, *BESIDE)}
    product = sum(counted[folder] for folder in PRODUCT)
    return {**counted, "product": product, "tests_frac": round(counted["tests"] / product, 3)}


def main() -> None:
    counted = count()
    for folder in (*PRODUCT, *BESIDE):
        print(f"{folder + '/':12}{counted[folder]:>8,}")
    share = f"tests {counted['tests']:,} of {TESTS:,}, {counted['tests_frac']:.2f} of the product"
    print(f"{'product':12}{counted['product']:>8,} of {BUDGET:,}   {share}")
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
