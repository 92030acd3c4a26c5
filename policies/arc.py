"""Adaptive replacement cache: experts seen once and experts seen again share the room, as the ghosts of each say they should.

Source: N. Megiddo, D. S. Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003, figure 4; sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.lists import ARC as WHICH
from tokentape.policies.sieve import Sieve


@dataclass(frozen=True)
class ARC(Sieve):
    """A miss on what left as seen once makes room for such experts, one on what left as seen again for those."""

    which: ClassVar[int] = WHICH
