"""Responses of an OpenAI-style server, as they came: one JSON object per line, a list of them, or one object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokentape.capture.importers.limits import BadImport, json_lines, json_value, text

REMEDY = "give the server's responses as they came"


def responses(raw: bytes, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, response) of each; what a stream sends under `data` is taken out. Raises BadImport."""
    content = text(raw, path)
    if content.lstrip().startswith("["):
        bodies = json_value(content, str(path), REMEDY)
    elif _is_first_line_whole(content):
        bodies = (body for _, body in json_lines(content, path))
    else:
        bodies = [json_value(content, str(path), REMEDY)]
    for number, body in enumerate(bodies, 1):
        where = f"{path}, response {number}"
        if not isinstance(body, dict):
            raise BadImport(f"{where}: {type(body).__name__} in place of an object; {REMEDY}")
        yield where, body["data"] if isinstance(body.get("data"), dict) else body


def _is_first_line_whole(content: str) -> bool:
    """Whether the first line is a value of its own: one object may be printed over many."""
    try:
        start = len(content) - len(content.lstrip())
        end = content.find("\n", start)
        json_value(content[start : None if end < 0 else end], "")
    except BadImport:
        return False
    return True
