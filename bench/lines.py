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


def lines(folder: str) -> int:
    """Lines of all Python files below a folder of the checkout."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / folder).rglob("*.py"))


def main() -> None:
    counted = {folder: lines(folder) for folder in (*PRODUCT, *BESIDE)}
    product = sum(counted[folder] for folder in PRODUCT)
    for folder, n in counted.items():
        print(f"{folder + '/':12}{n:>8,}")
    print(f"{'product':12}{product:>8,}   tests over product {counted['tests'] / product:.2f}")
    print(json.dumps({**counted, "product": product, "tests_frac": round(counted["tests"] / product, 3)}))


if __name__ == "__main__":
    main()
