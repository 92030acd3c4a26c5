"""What no importer believes: how much a file may hold once read, how large a number may be, how deep JSON may go. One place;
of the columns of a table: column_limits.py.

Everything here raises BadImport with one line that names the file and the place, so that an importer only states what it wants.
"""

import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

DEFAULT_MAX_BYTES = 2 << 30  # of a file as it is once unpacked, and of the rows made from it
MAX_EXPERTS = 8192  # of a layer: four times the most of any published model (Switch-C, 2,048); a tape's ids are uint16
MAX_LAYERS = 4096  # four times the deepest transformer published (DeepNet, 1,000)
MAX_TOKENS = 1 << 27  # of a request: above the longest context published (100 M)
MAX_LAYER_BYTES = 1 << 50  # of one layer's weights: a pebibyte
MAX_GATE_WEIGHT = 1000.0  # as applied; the largest published scaling factor is 16 (DeepSeek-V2)
MAX_SPAN_S = 1e9  # between a trace's first and last arrival: 32 years
MAX_TIME_S = 1e11  # of an arrival since 1970: the year 5138
U32 = (1 << 32) - 1
_SHOWN_CHARACTERS = 60
AS_SENT = "give the server's responses as they came"


class BadImport(ValueError):
    """A trace that cannot become a tape; the message names the file, the row and the remedy. The store is unchanged."""


def shown(value: Any) -> str:
    """A value as an error line shows it: never longer than a few words."""
    value = value.to_list() if hasattr(value, "to_list") else value  # a Polars list
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number of more than 64 bits"
    content = repr(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return content if len(content) <= _SHOWN_CHARACTERS else f"{content[:_SHOWN_CHARACTERS]}..."


def reason(error: BaseException) -> str:
    """What a library's error says, in one line of bearable length."""
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__


# ------------------------------------------------------------------------------------------------------------------- bytes


def read(path: Path, max_bytes: int) -> bytes:
    """The file's bytes, unpacked where its name ends in .gz. Raises BadImport if there are more than `max_bytes`, OSError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadImport(f"{path}: cannot be unpacked ({reason(error)}); download it again") from None
    within(len(raw), max_bytes, str(path))
    return raw


def read_all(paths: Iterable[Path], max_bytes: int) -> list[bytes]:
    """The bytes of several files, which together have at most `max_bytes`. Raises as `read`."""
    contents: list[bytes] = []
    for path in paths:
        contents.append(read(path, max_bytes - sum(map(len, contents))))
    return contents


def within(n_bytes: int, max_bytes: int, where: str) -> None:
    """Raises BadImport if what `where` holds, or expands to, exceeds --max-bytes."""
    if n_bytes > max_bytes:
        raise BadImport(f"{where}: more than {max_bytes:,} bytes once read; if that is meant, give a larger --max-bytes")


def text(raw: bytes, path: Path) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadImport(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); download it again") from None


# -------------------------------------------------------------------------------------------------------------------- JSON


def json_value(content: str, where: str, remedy: str = "download the file again") -> Any:
    """One JSON value, without the NaN and Infinity that Python would accept. Raises BadImport."""
    try:
        return json.loads(content, parse_constant=_no_constant)
    except RecursionError:
        told = "nested too deeply"
    except ValueError as error:  # JSONDecodeError, and a number of more digits than Python turns into an int
        told = reason(error).split("; use sys.")[0]
    raise BadImport(f"{where}: not JSON ({told}); {remedy}")


def json_file(raw: bytes, path: Path, remedy: str = "download the file again") -> Any:
    """The JSON value that a file is. Raises BadImport."""
    return json_value(text(raw, path), str(path), remedy)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def json_lines(raw: bytes, path: Path) -> Iterator[tuple[int, Any]]:
    """(number of the line, value) of every line that is not empty, one line taken out at a time. Raises BadImport."""
    content, end = text(raw, path), -1
    for number in count(1):
        start, end = end + 1, content.find("\n", end + 1)  # not splitlines: JSON strings may hold its other line ends
        line = content[start:] if end < 0 else content[start:end]
        if line.strip():
            yield number, json_value(line, f"{path}: line {number}")
        if end < 0:
            return


def responses(raw: bytes, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, response) of each that an OpenAI-style server gave: objects or lists of them, one per line, or one over
    many lines; what a stream sends under `data` is taken out. Raises BadImport."""
    values = (value for _, value in json_lines(raw, path)) if _is_first_line_whole(raw, path) else [json_file(raw, path, AS_SENT)]
    for number, body in enumerate((one for value in values for one in (value if isinstance(value, list) else [value])), 1):
        where = f"{path}, response {number}"
        if not isinstance(body, dict):
            raise BadImport(f"{where}: {type(body).__name__} in place of an object; {AS_SENT}")
        yield where, body["data"] if isinstance(body.get("data"), dict) else body


def _is_first_line_whole(raw: bytes, path: Path) -> bool:
    """Whether the first line is a value of its own: one object may be printed over many."""
    try:
        return any(True for _ in json_lines(raw, path))
    except BadImport:
        return False


# ----------------------------------------------------------------------------------------------------------------- numbers


def whole(value: Any, where: str, most: int = U32, least: int = 0) -> int:
    """An int of JSON between `least` and `most`; never text, a fraction or a truth value. Raises BadImport."""
    if type(value) is not int or not least <= value <= most:
        raise BadImport(f"{where} is {shown(value)}, not a whole number from {least} to {most}; the file is damaged")
    return value


def finite(value: Any, where: str) -> float:
    """A number of JSON that a float can hold. Raises BadImport."""
    if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
        raise BadImport(f"{where} is {shown(value)}, not a finite number; the file is damaged")
    return float(value)


def words(value: Any, where: str) -> str:
    """Text that can be written into a manifest and onto one line. Raises BadImport."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > 500:
        raise BadImport(f"{where} is {shown(value)}, not a name; the file is damaged")
    return value
