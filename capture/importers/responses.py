"""Responses of an OpenAI-style server, as they came: one JSON object or list of them per line, or one over many lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokentape.capture.importers.limits import BadImport, json_lines, json_value, text

REMEDY = "give the server's responses as they came"


def responses(raw: bytes, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, response) of each; what a stream sends under `data` is taken out. Raises BadImport."""
    content = text(raw, path)
    is_lines = _is_first_line_whole(content)
    values = (value for _, value in json_lines(content, path)) if is_lines else [json_value(content, str(path), REMEDY)]
    for number, body in enumerate((one for value in values for one in (value if isinstance(value, list) else [value])), 1):
        where = f"{path}, response {number}"
        if not isinstance(body, dict):
            raise BadImport(f"{where}: {type(body).__name__} in place of an object; {REMEDY}")
        yield where, body["data"] if isinstance(body.get("data"), dict) else body


def _is_first_line_whole(content: str) -> bool:
    """Whether the first line is a value of its own: one object may be printed over many."""
    try:
        return any(True for _ in json_lines(content, Path()))
    except BadImport:
        return False
