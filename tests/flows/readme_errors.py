"""The README's line of errors of a system, as it stands there."""

from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"
AGAIN = "run `python -m bench.docs.errors README.md`"


def stands(system: str) -> list[str]:
    start = f"| [{system}](docs/{system}.md) |"
    return [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(start)]
