"""Recomputing K and V from the layer input instead of loading them: two ways to count it, and where it stands on the roofline.

The paper gives 1.1 us to load a KV vector of LLaMA2-7B and 3.2 us to recompute it. Its own array and DRAM say 0.256 and 16.4 us.
Mode `paper` keeps the paper's ratio of the two on top of the load that the bytes take, mode `physical` counts multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows
from tokentape.hw.work import Work as Counted
from tokentape.replay.kelle.step import INPUT_BYTES, bytes_of, fed, kv_elements, kv_frac, rows_of
from tokentape.replay.kelle.systems import PROFILE
from tokentape.replay.kelle.work import MODES, Work
from tokentape.replay.transformer import WEIGHTS, Tokens, weight_bytes
from tokentape.warehouse.geometry import Geometry

GRID = tuple(i / 20 for i in range(21))  # shares that the curve is drawn at
DRAM, ARRAY = "w.bytes + kv.bytes", "w.ops + beside.fixed + recompute"  # side by side


def seconds_of(machine: HardwareSpec, *rows: Rows) -> list[float]:
    """Each of the rows by itself, as Kelle counts."""
    cost = clock(Counted(n_steps=1, n_blocks=1, rows=rows), machine, profiles.load(PROFILE), ends=("value",))
    return [float(cost.rows_s[id(one)].item()) for one in rows]


def vector_times_s(geometry: Geometry, machine: HardwareSpec, mode: str = "physical") -> tuple[float, float]:
    """Seconds to load K and V of a token in a layer from DRAM, and to compute them from the layer input."""
    elements = kv_elements(geometry, MODES[mode])
    load = Rows(kind="kv_read", tier="kv_home", bytes=elements * INPUT_BYTES)
    anew = Rows(kind="recompute", engine="main", ops=2.0 * geometry.hidden * elements)
    load_s, recompute_s = seconds_of(machine, load, anew)
    return load_s, recompute_s


def balanced_frac(load_s: float, recompute_s: float) -> float:
    """The share to recompute, so that the array and the DRAM take equally long."""
    return load_s / (load_s + recompute_s)


@dataclass(frozen=True)
class RooflinePoint:
    """recomputed_frac: of the kept vectors; operations include the recomputation's; label: none, moderate, excessive or empty."""

    recomputed_frac: float
    ops_per_byte: float
    ops_per_s: float
    roof_ops_per_s: float
    is_compute_bound: bool
    step_s: float
    label: str


@dataclass(frozen=True, eq=False)
class Sides:
    """(n,) of a decode step by the recomputed share: bytes from DRAM, operations, and how long either takes."""

    n_bytes: Floats
    ops: Floats
    dram_s: Floats
    array_s: Floats


def roofline(
    geometry: Geometry,
    machine: HardwareSpec,
    work: Work,
    mode: str,
    slowdown: float | None = None,
    shares: Iterable[float] = GRID,
) -> list[RooflinePoint]:
    """A decode step at its final length by the share of recomputed vectors, array and DRAM side by side (Kelle Figure 16a).

    slowdown: recomputing a vector over loading it; None: what the array takes. Labelled are no recomputation, the share at which
    both take equally long (moderate) and all vectors (excessive). A point above its roof asks more of the array than it has.
    """
    ends = _sides(geometry, machine, work, mode, slowdown, (0.0, 1.0))
    gap_s = ends.dram_s - ends.array_s
    moderate = float(min(1.0, max(0.0, gap_s[0] / (gap_s[0] - gap_s[1])))) if gap_s[0] > gap_s[1] else 0.0
    labels = {moderate: "moderate", 1.0: "excessive", 0.0: "none"}
    at = sorted({*shares, *labels})
    found = _sides(geometry, machine, work, mode, slowdown, at)
    step_s, mac_ops_per_s = np.maximum(found.dram_s, found.array_s), machine.compute.mac_ops_per_s(machine.dtype)
    peak = mac_ops_per_s or machine.compute.ops_per_s[machine.dtype].value
    roof = np.minimum(peak, found.ops / found.dram_s)
    columns = (found.ops / found.n_bytes, found.ops / step_s, roof, found.array_s > found.dram_s, step_s)
    told = (column.tolist() for column in columns)
    return list(map(RooflinePoint, at, *told, [labels.get(share, "") for share in at]))


def _sides(
    geometry: Geometry, machine: HardwareSpec, work: Work, mode: str, slowdown: float | None, shares: Iterable[float]
) -> Sides:
    accounting, share = MODES[mode], np.array(list(shares))
    kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    charged = share if accounting.charges_recompute else 0.0 * share
    frac = kv_frac(geometry, accounting) * work.kv_bits / 16 * (1.0 - (share - charged))
    tokens = Tokens(decodes=work.batch, context=kept, kv_frac=frac, recomputed=charged)
    in_dram = replace(machine, roles=replace(machine.roles, kv_cache=""))
    made = rows_of(geometry, in_dram, tokens, accounting)
    vectors = float(work.batch * kept * geometry.n_layers)
    elements = np.full(share.size, vectors * kv_elements(geometry, accounting))
    anew = Rows(kind="recompute", engine="main", blocks=np.array([made.n_blocks - 1]))
    if slowdown is None:
        anew = replace(anew, ops=2.0 * geometry.hidden * (elements * share)[:, None])
    else:
        anew = replace(anew, count=(vectors * share)[:, None])
    rows = (
        *(one for one in made.rows if one.kind != "recompute"),
        fed(in_dram, made, np.zeros(share.size), elements, False),
        anew,
    )
    made = replace(made, rows=rows)
    each_s = 0.0 if slowdown is None else slowdown * vector_times_s(geometry, machine, mode)[0]

    def seconds(step: str) -> Floats:
        profile = profiles.with_values(PROFILE, {"step": step, "lane.recompute.each_s": each_s})
        return clock(made, in_dram, profile, ends=("value",)).seconds.value

    of_weights = sum(made.total(made.by_cell(one, one.ops)) for one in made.rows if one.kind in WEIGHTS)
    return Sides(
        made.total(weight_bytes(made)) + bytes_of(made, "kv_read", "kv_home"),
        of_weights + 2.0 * elements * (1.0 + share * geometry.hidden),
        seconds(DRAM),
        seconds(ARRAY),
    )
