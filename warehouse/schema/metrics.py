"""Every number that an engine names in its rows: unit and meaning, as metrics.toml declares it. Numbers with a column are
declared there."""

import tomllib
from pathlib import Path

from tokentape.warehouse.schema.table import Column, column

_DEPTHS = 64  # of a draft, at most
_ACCEPTED = {
    "tau_accepted": column("f64", "tokens", "drafted tokens accepted in a round, mean"),
    "tau_committed": column("f64", "tokens", "tokens of a round with the target's own, mean"),
    **{
        f"alpha_{i}_conditional": column("f64", "1", f"share of rounds that accept {i} of those that accept {i - 1}")
        for i in range(1, _DEPTHS)
    },
    **{f"alpha_{i}_marginal": column("f64", "1", f"share of rounds that accept at least {i}") for i in range(1, _DEPTHS)},
    **{f"accepted_{i}": column("f64", "1", f"share of rounds that accept exactly {i}") for i in range(_DEPTHS)},
}

_DECLARED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS: dict[str, Column] = {
    **{name: column("f64", *said) for name, said in _DECLARED.items()},
    **_ACCEPTED,
    **{f"tree_{name}": metric for name, metric in _ACCEPTED.items()},
}
