"""Files of fitted constants: TOML with what they were fitted on, shipped in hw/fits or written by a `calibrate` command."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tokentape.hw.files import write_text
from tokentape.hw.sourced import BadSpec

FITS = Path(__file__).parent / "fits"
T = TypeVar("T")


def read_fit(name_or_path: str, like: str, what: str, command: str, parse: Callable[[dict[str, Any]], T], lead: str = "") -> T:
    """A shipped fit by its name, or a file by path (*.toml), through `parse`.

    like: pattern of shipped files; lead: what their names begin with and a person leaves out. what: its words in errors. Raises
    BadSpec naming the file and the key.
    """
    path = Path(name_or_path) if name_or_path.endswith(".toml") else FITS / f"{lead}{name_or_path}.toml"
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        shipped = ", ".join(found.stem.removeprefix(lead) for found in sorted(FITS.glob(f"{like}.toml")))
        raise BadSpec(f"{path}: no such file of {what}; shipped: {shipped}; `{command}` writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadSpec(f"{path}: not a file of {what} ({error}); write it with `{command}`") from error


def write_fit(
    path: Path,
    command: str,
    facts: Mapping[str, str | float],
    fitted_on: Sequence[str],
    sections: Mapping[str, Mapping[str, float]],
    digits: int = 6,
) -> None:
    """Writes a fit as TOML, aside and then renamed. facts: of the fit as a whole; sections: constants by table."""
    lines = [
        f"# Written by `{command}`; hw/fits/README.md says what this is.",
        *(f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value:.6g}" for name, value in facts.items()),
        "fitted_on = [",
        *(f'    "{claim}",' for claim in fitted_on),
        "]",
    ]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{name} = {value:.{digits}g}" for name, value in values.items())]
    write_text(path, "\n".join(lines) + "\n")
