"""What a study's rows say of a paper's numbers: rows of view `answers`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from tokentape.warehouse.load import claims

Row = dict[str, Any]


@lru_cache
def stated(paper: str) -> dict[str, Row]:
    """The paper's claims by id."""
    return {row["claim_id"]: row for row in claims().to_pylist() if row["paper"] == paper}


def answer(claim_id: str, value: float, how: str, mode: str = "paper", ends: Sequence[float | None] = (None, None)) -> Row:
    """A row of view `answers`. ends: of the band, in any order; none where one is missing."""
    low, high = (None, None) if None in ends else sorted(end for end in ends if end is not None)
    return {"claim_id": claim_id, "mode": mode, "value": float(value), "low": low, "high": high, "how": how}
