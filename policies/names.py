"""What to say when a person types a name that does not exist: for all rooms that may import this one. It imports nothing."""

import difflib
from collections.abc import Iterable


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
    """The error for `name`, with the nearest known name first and all of them after."""
    names = sorted(known)
    return ValueError(f"unknown {kind} {name!r}{nearest(name, names) or ';'} known: {', '.join(names) or 'none'}")


def refuse_unknown(kind: str, name: object, known: Iterable[str]) -> None:
    """Raises that error where the name is none of those known."""
    if name not in (names := [*known]):
        raise unknown(kind, str(name), names)


def refuse_twice(option: str, names: Iterable[str]) -> None:
    """Raises ValueError for a name that an option gives twice: one of the two would be left unread."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise ValueError(f"{option} gives {name} twice; leave one out")
        seen.add(name)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'math'?`, to go on with; empty where nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
