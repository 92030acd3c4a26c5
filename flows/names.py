"""What to say when a person types a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for `name`, with the nearest known name first and all of them after."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ValueError(f"unknown {kind} {name!r}; {hint}known: {', '.join(names) or 'none'}")
