"""Joules per emitted token by part, with the range that the machine's file leaves open (paper section 7, Fig. 15).

The paper gives read energies of HB and EXT alone. Operations, links, static power, reads inside memory devices and how much
of the pool is rewritten are unknown: each has a range, and low and high take all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokentape.hw.sourced import Sourced, exact
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.points import Floats
from tokentape.replay.elmoe3d.runs import Run

PARTS = ("compute", "ext", "hb", "links", "static")
End = Literal["value", "low", "high"]
ENDS: tuple[End, ...] = ("value", "low", "high")
NONE = exact(0.0, "not there")


@dataclass(frozen=True)
class Prices:
    """Of a machine. near_pj_per_bit: reads inside or next to EXT devices; pool_write_frac: share of what may enter the pool."""

    pj_per_op: Sourced
    ext_pj_per_bit: Sourced
    hb_pj_per_bit: Sourced
    link_pj_per_bit: Sourced
    near_pj_per_bit: Sourced
    static_w: Sourced
    pool_write_frac: Sourced


def prices_of(spec: HardwareSpec, near_pj_per_bit: Sourced, pool_write_frac: Sourced) -> Prices:
    """From a machine file; the two numbers no file holds are passed in. A tier `nmp` brings its own."""
    hb, link = spec.tiers.get("hb"), spec.links.get("aggregation")
    return Prices(
        pj_per_op=spec.compute.energy_pj_per_op,
        ext_pj_per_bit=spec.tiers["ext"].read_pj_per_bit,
        hb_pj_per_bit=hb.read_pj_per_bit if hb else NONE,
        link_pj_per_bit=link.energy_pj_per_bit if link else NONE,
        near_pj_per_bit=spec.tiers["nmp"].read_pj_per_bit if "nmp" in spec.tiers else near_pj_per_bit,
        static_w=spec.static_w,
        pool_write_frac=pool_write_frac,
    )


def joules_per_token(run: Run, prices: Prices, end: End = "value") -> dict[str, Floats]:
    """Of every part of PARTS, (n,) each. Reads near memory count as EXT; a write costs what a read does."""

    def at(price: Sourced) -> float:
        return float(getattr(price, end))

    bits = 8e-12
    hb_bytes = run.hb_bytes + at(prices.pool_write_frac) * run.written_bytes
    found = {
        "compute": 1e-12 * at(prices.pj_per_op) * run.ops,
        "ext": bits * (at(prices.ext_pj_per_bit) * run.ext_bytes + at(prices.near_pj_per_bit) * run.near_bytes),
        "hb": bits * at(prices.hb_pj_per_bit) * hb_bytes,
        "links": bits * at(prices.link_pj_per_bit) * run.link_bytes,
        "static": at(prices.static_w) * run.seconds,
    }
    return {part: joules / run.tokens for part, joules in found.items()}
