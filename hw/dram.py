"""How much of its peak a DRAM channel reaches, in closed form from the timing parameters of its standard; nothing is fitted.

    stream       f  = 1 - (nRFC + nRTP + nRP + nRCD) / nREFI                     all banks close, refresh and reopen every nREFI
    any block    f x min(1, data / commands, data / four-activate window, data / queue)
    row map      f x row / (row + exposed x (1 - nBL / nCCDL))                   row: clocks of data in one row

Times of a block of b bytes, with a activates: data = b / peak; commands = what a x (ACT + PRE) and the reads occupy on the bus;
window = a x tFAW / (4 x pseudo-channels); queue = a x (tRP + tRCD) / entries, which is Little's law. The bank-group map spreads
consecutive 64 B over pseudo-channels and bank groups, so a small block opens a row for every 64 B; the row map opens one.

Reads only, one channel, one controller, all-bank refresh. Bank conflicts are not in the form, so it is an upper bound for random
access; docs/dram.md prints it beside a cycle-level simulator. Not covered: writes and their turnaround, per-bank refresh.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tokentape.hw.sourced import BadSpec, Sourced, build, parsed, unknown
from tokentape.hw.work import Floats

TIMINGS = Path(__file__).parent / "timings"
ADDRESS_MAPS = ("bank-group", "row")
ROW_BUSES = ("shared", "own")  # row and column commands on one bus, or a bus for rows (HBM)
ACCESS_BYTES = 64  # what the maps interleave by and a queue entry holds: a cache line
WINDOW_ACTIVATES = 4  # the F of tFAW
ROUNDING = 1.01  # tCK is rounded to whole picoseconds


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One channel. n<NAME> counts clock cycles of tCK_ps; nRP is that of one bank; the other names carry their unit."""

    name: str
    standard: str
    density: str  # of a die; key of rfc_ns_by_density
    row_bus: str  # one of ROW_BUSES
    peak_bytes_per_s: Sourced  # all pseudo-channels together
    n_pseudo_channels: Sourced
    n_bank_groups: Sourced  # 1 where banks have no groups
    row_bytes: Sourced  # of one bank, all devices of the (pseudo-)channel
    transaction_bytes: Sourced  # of one read command
    queue_entries: Sourced  # reads of 64 B that the controller holds by default
    tCK_ps: Sourced
    nRFC: Sourced  # all-bank refresh
    nREFI: Sourced  # refresh interval
    nRTP: Sourced  # read to precharge
    nRP: Sourced  # precharge
    nRCD: Sourced  # activate to read
    nFAW: Sourced  # window of four activates, per pseudo-channel
    nBL: Sourced  # data of one read
    nCCDL: Sourced  # read to read within a bank group
    act_cycles: Sourced  # command bus, here and below
    pre_cycles: Sourced
    rd_cycles: Sourced
    rfc_ns_by_density: dict[str, Sourced] = field(default_factory=dict)

    def at_density(self, density: str) -> Timing:
        """The same channel with dies of another density: larger ones refresh longer. Raises BadSpec naming the known ones."""
        if density not in self.rfc_ns_by_density:
            raise BadSpec(f"{self.name}: no refresh time for density {density!r}; known: {', '.join(self.rfc_ns_by_density)}")
        rfc_ns = self.rfc_ns_by_density[density]
        cycles = {end: float(math.ceil(getattr(rfc_ns, end) * 1000.0 / self.tCK_ps.value)) for end in ("value", "low", "high")}
        return replace(self, density=density, nRFC=Sourced(source=rfc_ns.source, **cycles))

    @property
    def clock_s(self) -> float:
        """Seconds of one clock cycle."""
        return self.tCK_ps.value * 1e-12


def presets() -> list[str]:
    """Names of the shipped timings."""
    return sorted(path.stem for path in TIMINGS.glob("*.toml"))


def timing(name: str) -> Timing:
    """A shipped timing by name (upper or lower case), or one's own by the path of its TOML file. Raises BadSpec."""
    path = Path(name) if name.endswith(".toml") else TIMINGS / f"{name.lower()}.toml"
    if path.parent == TIMINGS and path.stem not in presets():
        raise unknown("DRAM timing", name.lower(), presets())
    data, _ = parsed(path, "timing file", presets())
    made: Timing = build(Timing, data, str(path), data.pop("source", ""))
    _check(made, str(path))
    return made


def refresh_frac(timing: Timing) -> float:
    """Share of time that refresh keeps the channel from moving data: all banks close, refresh and reopen once per interval."""
    lost = timing.nRFC.value + timing.nRTP.value + timing.nRP.value + timing.nRCD.value
    return lost / timing.nREFI.value


def stream_frac(timing: Timing, address_map: str = "bank-group", queue_depth: float | None = None) -> float:
    """Fraction of peak for a sequential read. Raises ValueError on an unknown map.

    In the row map a row is read from one bank at the pace of its bank group (nCCDL), and the next row opens (nRP + nRCD) as soon
    as the queue reaches into it. An upper bound there: consecutive rows that fall into one bank group are not in the form.
    """
    _check_map(address_map)
    streamed = 1.0 - refresh_frac(timing)
    if address_map == "bank-group":
        return streamed
    n_channels = timing.n_pseudo_channels.value
    row_s = timing.row_bytes.value * n_channels / timing.peak_bytes_per_s.value
    ahead_s = _queue(timing, queue_depth) * ACCESS_BYTES / timing.peak_bytes_per_s.value - row_s
    exposed_s = max(0.0, (timing.nRP.value + timing.nRCD.value) * timing.clock_s - max(0.0, ahead_s))
    return streamed * row_s / (row_s + exposed_s * (1.0 - timing.nBL.value / timing.nCCDL.value))


def access_frac(
    timing: Timing, block_bytes: ArrayLike, address_map: str = "bank-group", queue_depth: float | None = None
) -> Floats:
    """Fraction of peak for blocks read at random places; an upper bound, at most that of streaming.

    block_bytes: any shape, contiguous bytes on this channel; the result has its shape. Bytes that the last read brings unasked
    count as lost. queue_depth: reads of 64 B in flight, by default the preset's; below that the bound is loose. Raises ValueError
    on blocks under 1 byte and on an unknown map.
    """
    block = np.asarray(block_bytes, np.float64)
    if not np.all(block >= 1.0):
        raise ValueError(f"block_bytes must be at least 1, found {block.min() if block.size else 'none'}")
    n_reads = np.ceil(block / timing.transaction_bytes.value)
    moved = n_reads * timing.transaction_bytes.value
    n_activates = _activates(timing, block, address_map)
    data_s = moved / timing.peak_bytes_per_s.value
    window_s = n_activates * timing.nFAW.value * timing.clock_s / (WINDOW_ACTIVATES * timing.n_pseudo_channels.value)
    queue_s = n_activates * (timing.nRP.value + timing.nRCD.value) * timing.clock_s / _queue(timing, queue_depth)
    data_cycles = n_reads * timing.nBL.value / timing.n_pseudo_channels.value
    limits = (data_cycles / _command_cycles(timing, n_reads, n_activates), data_s / window_s, data_s / queue_s)
    random = stream_frac(timing) * np.minimum.reduce([np.ones_like(block), *limits])
    return np.asarray(np.minimum(random, stream_frac(timing, address_map, queue_depth)) * block / moved)


def _activates(timing: Timing, block: Floats, address_map: str) -> Floats:
    """Rows opened per block: one per 64 B until every bank group has one (bank-group map), then one per row's worth of bytes."""
    _check_map(address_map)
    n_spread = timing.n_pseudo_channels.value * timing.n_bank_groups.value if address_map == "bank-group" else 1.0
    opened = np.minimum(np.ceil(block / ACCESS_BYTES), n_spread)
    return np.asarray(np.maximum(opened, block / timing.row_bytes.value))


def _command_cycles(timing: Timing, n_reads: Floats, n_activates: Floats) -> Floats:
    """Cycles of a block on the command bus, which the pseudo-channels share; with a bus for rows, the busier of the two."""
    rows = n_activates * (timing.act_cycles.value + timing.pre_cycles.value)
    columns = n_reads * timing.rd_cycles.value
    return np.asarray(np.maximum(rows, columns) if timing.row_bus == "own" else rows + columns)


def _queue(timing: Timing, queue_depth: float | None) -> float:
    depth = timing.queue_entries.value if queue_depth is None else queue_depth
    if not depth >= 1:
        raise ValueError(f"queue_depth must be at least 1, found {depth}")
    return depth


def _check_map(address_map: str) -> None:
    if address_map not in ADDRESS_MAPS:
        raise ValueError(f"unknown address map {address_map!r}; known: {', '.join(ADDRESS_MAPS)}")


def _check(timing: Timing, where: str) -> None:
    """Raises BadSpec on a timing that no channel can have."""
    if timing.row_bus not in ROW_BUSES:
        raise BadSpec(f"{where}: row_bus = {timing.row_bus!r}; known: {', '.join(ROW_BUSES)}")
    for declared in fields(timing):
        number = getattr(timing, declared.name)
        if isinstance(number, Sourced) and number.low <= 0.0:
            raise BadSpec(f"{where}: {declared.name} must be above 0")
    if refresh_frac(timing) >= 1.0:
        raise BadSpec(f"{where}: nRFC + nRTP + nRP + nRCD reaches nREFI = {timing.nREFI.value:g}; no time is left to read")
    if timing.nCCDL.value < timing.nBL.value:
        raise BadSpec(f"{where}: nCCDL = {timing.nCCDL.value:g} is below nBL = {timing.nBL.value:g}; reads would overlap")
    carried = timing.n_pseudo_channels.value * timing.transaction_bytes.value / (timing.nBL.value * timing.clock_s)
    if not 1.0 / ROUNDING <= timing.peak_bytes_per_s.value / carried <= ROUNDING:
        raise BadSpec(
            f"{where}: peak_bytes_per_s = {timing.peak_bytes_per_s.value:g}, but transaction_bytes every nBL make {carried:g}; "
            "correct one of them"
        )


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A measured fraction of peak, to be held against the form. timing: of the preset, with dies of that density."""

    preset: str
    density: str
    pattern: str  # stream, stream_no_refresh or random
    block_bytes: int | None  # None: one endless run
    address_map: str
    queue_depth: int
    measured_frac: float
    source: str
    timing: Timing = field(repr=False)

    @property
    def covered(self) -> bool:
        """The form claims to be near: bank-group map, queue no smaller than the preset's. Elsewhere it is an upper bound."""
        return self.address_map == "bank-group" and self.queue_depth >= int(self.timing.queue_entries.value)

    @cached_property
    def predicted_frac(self) -> float:
        """By the form."""
        of = (self.address_map, self.queue_depth)
        if self.block_bytes is not None:
            return float(access_frac(self.timing, self.block_bytes, *of))
        streamed = stream_frac(self.timing, *of)
        return streamed / (1.0 - refresh_frac(self.timing)) if self.pattern == "stream_no_refresh" else streamed

    @property
    def deviation_frac(self) -> float:
        """Form / measured - 1."""
        return self.predicted_frac / self.measured_frac - 1.0


def anchors() -> list[Anchor]:
    """Every measurement of hw/timings/anchors.csv beside the form."""
    with (TIMINGS / "anchors.csv").open(newline="", encoding="utf-8") as file:
        return [_anchor(row) for row in csv.DictReader(file)]


def _anchor(row: dict[str, Any]) -> Anchor:
    channel = timing(row["preset"])
    channel = channel.at_density(row["density"]) if row["density"] else channel
    numbers = {
        "block_bytes": int(row["block_bytes"]) if row["block_bytes"] else None,
        "queue_depth": int(row["queue_depth"] or channel.queue_entries.value),
        "measured_frac": float(row["measured_frac"]),
    }
    return Anchor(**row | numbers | {"density": channel.density, "timing": channel})
