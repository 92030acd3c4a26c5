"""Fitted constants with their origin, and their files: TOML, shipped in hw/fits or written by a `calibrate` command.

A system's constants are a dataclass; numbers, texts, dataclasses in it and dicts of them are its tables, all below [constants].
"""

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tokentape.hw.sourced import BadSpec, build

FITS = Path(__file__).parent / "fits"
T = TypeVar("T")


def solver() -> Any:
    """scipy.optimize.least_squares. Raises ImportError with the remedy."""
    try:
        from scipy.optimize import least_squares
    except ImportError as error:
        raise ImportError("fitting needs scipy: pip install 'tokentape[calibrate]'", name="scipy") from error
    return least_squares


@dataclass(frozen=True)
class Fit(Generic[T]):
    """constants: of the system; fitted_on: ids of the claims; residual: left on them, by the system's measure.

    machine, model, mode: what they were fitted on and with, where there is one; mode: which facts.
    """

    constants: T
    fitted_on: tuple[str, ...]
    residual: float
    machine: str = ""
    model: str = ""
    mode: str = ""


@dataclass(frozen=True)
class FitFiles(Generic[T]):
    """The fits of a system. kind: its constants; measure: what a residual is; digits: of a constant in a file; by: the command
    that writes them, where it is not `calibrate SYSTEM`."""

    system: str
    kind: type[T]
    measure: str
    digits: int = 6
    by: str = ""

    def load(self, name_or_path: str | None = None) -> Fit[T]:
        """A shipped fit by name (`SYSTEM-l1` or `l1`; None: the system's only one), or a file by path (*.toml).

        Raises BadSpec naming the file and the key.
        """
        path = self.path(name_or_path)
        command = f"`{self._command}`"
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
            if data.pop("system", None) != self.system:
                raise ValueError(f'system = "{self.system}" is missing')
            constants = build(self.kind, data.pop("constants", None), "constants")
            fit: Fit[T] = build(Fit, data, "fit", constants=constants)
        except FileNotFoundError:
            shipped = ", ".join(found.stem.removeprefix(f"{self.system}-") for found in sorted(FITS.glob(f"{self.system}*.toml")))
            raise BadSpec(f"{path}: no such file of {self.system} constants; shipped: {shipped}; {command} writes one") from None
        except (TypeError, ValueError) as error:
            raise BadSpec(f"{path}: not a file of {self.system} constants ({error}); write it with {command}") from error
        return fit

    @property
    def _command(self) -> str:
        return f"tokentape calibrate {self.by or self.system}"

    def path(self, name_or_path: str | None = None) -> Path:
        """The file that `load` reads."""
        name = name_or_path or self.system
        stem = name if name == self.system or name.startswith(f"{self.system}-") else f"{self.system}-{name}"
        return Path(name) if name.endswith(".toml") or Path(name).name != name else FITS / f"{stem}.toml"

    def text(self, fit: Fit[T]) -> bytes:
        """Of a fit's file."""
        known = {name: getattr(fit, name) for name in ("machine", "model", "mode")}
        lines = [
            f"# Written by `{self._command}`; hw/fits/README.md says what this is.",
            f'system = "{self.system}"',
            *(f'{name} = "{value}"' for name, value in known.items() if value),
            f"residual = {fit.residual:.6g}  # {self.measure}",
            "fitted_on = [",
            *(f'    "{claim}",' for claim in fit.fitted_on),
            "]",
            *self._table("constants", dataclasses.asdict(fit.constants)),  # type: ignore[call-overload]
        ]
        return ("\n".join(lines) + "\n").encode()

    def _table(self, name: str, values: Mapping[str, Any]) -> Iterator[str]:
        yield from ("", f"[{name}]")
        for key, value in values.items():
            if not isinstance(value, dict):
                number = json.dumps(value) if isinstance(value, str | bool) else f"{value:.{self.digits}g}"
                yield f"{key} = {number}"
        for key, value in values.items():
            if isinstance(value, dict) and all(isinstance(inner, dict) for inner in value.values()):
                for inner, of_inner in value.items():
                    yield from self._table(f'{name}.{key}."{inner}"', of_inner)
            elif isinstance(value, dict):
                yield from self._table(f"{name}.{key}", value)
