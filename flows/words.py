"""What commands, options and names were called before: for one release, an old spelling is told the new one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

COMMANDS = {
    "acceptance": "decide draft",
    "bits": "decide precision",
    "calibrate cxl-ndp": "calibrate cxl_ndp",
    "capacity": "serving capacity",
    "kv": "decide kv",
    "kv-step": "step kelle",
    "ndp": "step cxl_ndp",
    "placement": "decide place",
    "quantise-report": "models quantise",
    "simulate": "serving simulate",
    "speculate": "step elmoe3d",
    "step": "step gpu|kelle|elmoe3d|cxl_ndp",  # that of a GPU was the only one
    "train-embedded": "models train",
}
NAMES = {"cxl-ndp": "cxl_ndp", "layered-prefill": "layered_prefill", "ndp": "cxl_ndp"}
NAMING = ("calibrate cxl_ndp", "claims", "evaluate", "orderings", "serve", "step cxl_ndp", "study")


def of_command(group: str, name: str) -> str | None:
    """What to say of a command that `group` (empty: the command line) has not; None where there was none of the name."""
    path = f"{group} {name}".strip()
    old = path if path in COMMANDS else group
    return f"`tokentape {old}` is `tokentape {COMMANDS[old]}` now" if old in COMMANDS else None


def of_arguments(command: str, given: Sequence[str]) -> str | None:
    """What to say of the first of the words given to a command that is written otherwise now."""
    words = [word for argument in given for word in argument.split("=", 1)]
    if ("--format", "json") in pairwise(words):
        return "`--format json` is `--json` now"
    old = next((word for word in words if word in NAMES), None) if command in NAMING else None
    return f"`{old}` is `{NAMES[old]}` now" if old else None
