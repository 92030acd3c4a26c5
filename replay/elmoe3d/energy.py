"""Joules by part, with the range that the machine's file leaves open (paper section 7, Fig. 15).

The paper gives read energies of HB and EXT alone. Operations, links, static power, reads inside memory devices and how much
of the pool is rewritten are unknown: each has a range, and low and high take all of them together.
"""

from __future__ import annotations

import numpy as np

from tokentape.hw.clock import BACKGROUND, StepCost
from tokentape.hw.profile import ENDS
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.points import Floats

PARTS = ("compute", "ext", "hb", "links", "static")
Joules = dict[str, Floats]  # of every part of PARTS, (3, n): at the ends of ENDS


def nothing(n: int) -> Joules:
    """Of n points."""
    return {part: np.zeros((len(ENDS), n)) for part in PARTS}


def parts_of(cost: StepCost, machine: HardwareSpec) -> Joules:
    """hb: the tier in front of the experts' home, ext: all other memory."""
    found = nothing(cost.seconds.value.size)
    hb = f"tiers.{machine.roles.expert_cache}"
    for name, band in cost.joules_of.items():
        kind = {BACKGROUND: "static", hb: "hb"}.get(name) or {"tiers": "ext", "engines": "compute"}.get(
            name.split(".")[0], "links"
        )
        for i, end in enumerate(ENDS):
            found[kind][i] += getattr(band, end)
    return found


def total(*of: tuple[Floats | float, Joules]) -> Joules:
    """Sums of so many times each."""
    return {part: np.asarray(sum(times * joules[part] for times, joules in of)) for part in PARTS}
