"""Experts streamed from flash, beside an engine that measured it: a tape decoded under its cache, readers and overlap.

A folder of measurements holds settings.csv (means by setting: model, active_experts, cache_mib, reader_threads, overlap,
tokens_per_s, flash_mib_per_token, cache_hit_pct), and logs of BigMoeOnEdge step by step (step, wall_ms, io_ms, compute_ms,
read_bytes, cache_hit_pct, mgmt_ms; cache and rates in a last line `# summary`). What each log ran is a row of offload_logs.csv:
the folder's own, else warehouse/claims/offload_logs.csv; geometry is a shipped model or a config.json beside that list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import ArrayLike

from tokentape.hw import profile as profiles
from tokentape.hw.spec import HardwareSpec, with_values
from tokentape.hw.work import Floats
from tokentape.policies.slots import system_of
from tokentape.replay.further_ranks import widened
from tokentape.replay.serving.validation import NOTHING, Row
from tokentape.replay.system.events import N_EVENTS
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.run import Setting, SystemRun, simulate

PROFILE, MIB = "expert_stream", 2**20
LOGS = Path(__file__).parents[2] / "warehouse" / "claims" / "offload_logs.csv"
METRICS = ("hit_frac", "read_bytes_per_token", "io_s_per_token", "compute_s_per_token", "tokens_per_s")
OF_TAPE = METRICS[:3]  # that no time enters but the storage's
_LOG = ("wall_ms", "io_ms", "compute_ms", "read_bytes", "cache_hit_pct", "mgmt_ms")
_RUN = ("model", "active_experts", "reader_threads", "overlap")
_LISTED = ("log", "geometry", "tape", "tape_of_run", *_RUN, "reads_per_expert", "traced")
_SETTINGS = (*_RUN, "cache_mib", "tokens_per_s", "flash_mib_per_token")
_TEXTS = ("log", "model", "geometry", "tape", "tape_of_run", "overlap", "traced")
_WHOLE = ("active_experts", "reader_threads", "reads_per_expert")
_YES_NO = ("tape_of_run", "overlap", "traced")
_MAY_BE_0 = ("io_ms", "read_bytes", "cache_hit_pct", "mgmt_ms", "cache_mib")


@dataclass(frozen=True)
class Streamed:
    """A setting of the engine, columns of its list among them, and what it measured, means per token of n_tokens decodes.
    reads_per_expert: one per slice; manage_s: of making room in the cache, per token; tape_of_run: the tape is of this very run;
    traced: tracing slowed it."""

    source: str
    model: str
    geometry: str
    tape: str
    tape_of_run: bool
    active_experts: int
    reader_threads: int
    overlap: bool
    reads_per_expert: int
    traced: bool
    cache_mib: float
    n_tokens: int
    measured: dict[str, float] = field(repr=False)
    manage_s: float = 0.0


def read(folder: Path) -> list[Streamed]:
    """The logs of a folder, then its settings. Raises ValueError naming file and field."""
    listed = folder / LOGS.name if (folder / LOGS.name).is_file() else LOGS
    rows = [row for row in _frame(listed, _LISTED).iter_rows(named=True) if (folder / row["log"]).is_file()]
    if not rows:
        raise ValueError(f"{folder}: none of the logs of {listed} lies there; give another folder, or list its logs there")
    for row in rows:  # a config beside the list, or a shipped model
        beside = listed.parent / str(row["geometry"])
        row["geometry"] = str(beside) if beside.is_file() else row["geometry"]
    logs = [_log(folder / row["log"], row) for row in rows]
    path = folder / "settings.csv"
    return logs + (list(_settings(path, logs)) if path.is_file() else [])


def _frame(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> pl.DataFrame:
    """The rows of a CSV file, counts as whole numbers and yes as True. Raises ValueError naming what is missing, or no number."""
    try:
        frame = pl.read_csv(path, comment_prefix="#", infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; needed are columns {', '.join(needed)}") from None
    if missing := [name for name in needed if name not in frame.columns]:
        raise ValueError(f"{path}: column {missing[0]} is missing; needed: {', '.join(needed)}")
    if not frame.height:
        raise ValueError(f"{path}: holds no rows; needed are columns {', '.join(needed)}")
    for name in (name for name in frame.columns if name in needed + optional):
        values, is_text, may_be_0 = frame[name], name in _TEXTS, name in _MAY_BE_0
        told = values if is_text else values.cast(pl.Float64, strict=False)
        is_good = told.is_not_null() if is_text else told.is_finite() & (told >= 0.0 if may_be_0 else told > 0.0)
        is_good &= (told == told.floor()) if name in _WHOLE else True
        bad = ~is_good.fill_null(False) & (values.is_not_null() if name in optional else True)
        if bad.any():
            row, whole = int(bad.arg_true()[0]), "whole " * (name in _WHOLE)
            what = "text" if is_text else f"a {whole}number {'from 0 on' if may_be_0 else 'above 0'}"
            raise ValueError(f"{path}: row {row + 1}: {name} {values[row]} is not {what}")
    counts, flags = (cs.by_name(*{*names}.intersection(needed)) for names in (_WHOLE, _YES_NO))
    return frame.with_columns(counts.cast(pl.Int64), flags.cast(pl.String) == "yes")


def _log(path: Path, row: dict[str, Any]) -> Streamed:
    steps, text = _frame(path, _LOG), path.read_text(encoding="utf-8")
    found = re.search(r"^# summary .*cache_budget_MiB=([0-9.]+)", text, re.MULTILINE)
    if not found:
        raise ValueError(f"{path}: no line `# summary` with cache_budget_MiB; the cache's size is not told")
    if re.search(r"experts_dropped=0*[1-9]", text) or ("turn" in steps.columns and steps["turn"].n_unique() > 1):
        raise ValueError(f"{path}: has several turns, or dropped experts; give the log of one turn without --drop-cold-experts")
    mean = {name: float(steps[name].mean()) for name in _LOG}  # type: ignore[arg-type]
    measured = {
        "hit_frac": steps["cache_hit_pct"][-1] / 100.0,
        "read_bytes_per_token": mean["read_bytes"],
        "io_s_per_token": mean["io_ms"] / 1e3,
        "compute_s_per_token": mean["compute_ms"] / 1e3,
        "tokens_per_s": 1e3 / mean["wall_ms"],
    }
    of_run = {name: row[name] for name in _LISTED[1:]} | {"cache_mib": float(found[1]), "n_tokens": steps.height}
    return Streamed(source=path.stem, **of_run, measured=measured, manage_s=mean["mgmt_ms"] / 1e3)


def _settings(path: Path, logs: list[Streamed]) -> Iterator[Streamed]:
    """Of models that have a log; each as long as the longest of them."""
    for row in _frame(path, _SETTINGS, ("cache_hit_pct",)).iter_rows(named=True):
        of_model = [log for log in logs if log.model == row["model"]]
        if not of_model:
            continue
        longest = max(of_model, key=lambda log: log.n_tokens)
        measured = {"tokens_per_s": row["tokens_per_s"], "read_bytes_per_token": row["flash_mib_per_token"] * MIB}
        if row.get("cache_hit_pct") is not None:
            measured["hit_frac"] = row["cache_hit_pct"] / 100.0
        of_run = {name: row[name] for name in _RUN} | {"cache_mib": float(row["cache_mib"])}
        beside = ", overlap" if row["overlap"] else ""
        source = f"settings: {row['model']}, {row['active_experts']} experts, {row['cache_mib']} MiB{beside}"
        yield replace(longest, source=source, tape_of_run=False, traced=False, measured=measured, manage_s=0.0, **of_run)


def as_run(tape: Recorded, run: Streamed) -> Recorded:
    """The tape's first request, as long as the run and with as many experts per token (`further_ranks`): its decodes again from
    the first on."""
    first, last = int(tape.n_prompt[0]), int(tape.n_inputs[0])
    rows = np.concatenate((np.arange(first), first + np.arange(run.n_tokens) % (last - first)))
    ids = widened(tape.ids[:last], tape.geometry.n_experts, run.active_experts)[rows]
    geometry = tape.geometry.model_copy(update={"top_k": run.active_experts})
    of_rows: dict[str, Any] = {"ids": ids, "gates": np.ones(ids.shape, np.float32), "is_weighted": False}
    of_rows |= {"first": np.array([0, rows.size]), "request_ids": tape.request_ids[:1], "n_prompt": tape.n_prompt[:1]}
    return replace(tape, geometry=geometry, tracks={}, not_run=0, **of_rows)


def decode(tape: Recorded, run: Streamed, machine: HardwareSpec, manage: float) -> SystemRun:
    """The run, on its own tape (`as_run`), in the loop: one request, a global LRU of so many bytes (without one, of one layer's
    experts). manage: seconds of making room over those of reading."""
    of_event = tape.geometry.top_k * max(tape.geometry.recorded_expert_bytes)
    budget = f"{round(run.cache_mib * MIB) or of_event}B"
    system = system_of("lru_offload", {"schedule.max_seqs": "1", "residency.budget": budget})
    numbers = {"numbers.serial": float(not run.overlap), "numbers.manage": manage * (run.cache_mib > 0)}
    profile, dense = profiles.with_values(PROFILE, numbers), tape.geometry.value_format("recorded")
    how = Setting(profile=profile, expert_format="recorded", dense_format=dense)
    return simulate(tape, tape.requests(), system, machine, how, record=True, logs=tape.ids.size)


def decode_s(made: SystemRun) -> float:
    """Mean of an iteration that decodes."""
    told = made.serving.iterations
    return float(told["seconds"][told["n_decode"] > 0].mean())


def compute_s(tape: Recorded, run: Streamed, machine: HardwareSpec) -> float:
    """Of a token: the run on its own tape, with storage that takes no time."""
    flash = f"tiers.{machine.roles.expert_home}"
    at_once = with_values(machine, {f"{flash}.peak_bytes_per_s": 1e18, f"{flash}.latency_s": 0.0})
    return decode_s(decode(tape, run, at_once, 0.0))


def storage_bytes_per_s(machine: HardwareSpec) -> float:
    tier = machine.tiers[machine.roles.expert_home]
    return tier.peak_bytes_per_s.value * tier.efficiency_frac.value


def fitted(tape: Recorded, run: Streamed, machine: HardwareSpec) -> tuple[HardwareSpec, float]:
    """The machine as fast as this run computed, and seconds of making room over those of reading, as this run's."""
    slower = compute_s(as_run(tape, run), run, machine) / run.measured["compute_s_per_token"]
    fast, engine = f"tiers.{machine.roles.expert_cache}", f"engines.{machine.roles.main}"
    of = {
        f"{fast}.efficiency_frac": slower * machine.tiers[machine.roles.expert_cache].efficiency_frac.value,
        f"{engine}.efficiency_frac": slower * machine.engines[machine.roles.main].efficiency_frac.value,
    }
    return with_values(machine, of), run.manage_s * storage_bytes_per_s(machine) / run.measured["read_bytes_per_token"]


def busy_s(n_reads: ArrayLike, readers: int, read_s: ArrayLike) -> Floats:
    """Summed over readers that take equal reads in turns and share the storage's rate; read_s: of one that has it alone."""
    turns, rest = np.divmod(np.asarray(n_reads), readers)
    return np.asarray((turns * readers**2 + rest**2) * np.asarray(read_s), np.float64)


def predicted(tape: Recorded, run: Streamed, machine: HardwareSpec, manage: float) -> dict[str, float]:
    """By METRICS. io_s_per_token: summed over readers."""
    tape = as_run(tape, run)
    made = decode(tape, run, machine, manage)
    slots = made.slots
    lookups = slots.of_iteration[:, 0].astype(np.int64)
    n_events = int(slots.how[N_EVENTS])
    starts = slots.log_starts[:n_events]
    misses = np.add.reduceat(1 - slots.log_hits[: lookups.sum()].astype(np.int64), starts)
    decodes = starts >= int(lookups[made.serving.iterations["n_decode"] == 0].sum())
    size = np.array(slots.sizes, np.float64)[slots.log_keys[starts] // tape.geometry.n_experts]
    read_s = size / run.reads_per_expert / storage_bytes_per_s(machine)
    busy = busy_s(misses * run.reads_per_expert, run.reader_threads, read_s)
    return {
        "hit_frac": 1.0 - float(misses.sum() / lookups.sum()),
        "read_bytes_per_token": float((misses * size)[decodes].sum()) / run.n_tokens,
        "io_s_per_token": float(busy[decodes].sum()) / run.n_tokens,
        "compute_s_per_token": compute_s(tape, run, machine),
        "tokens_per_s": 1.0 / decode_s(made),
    }


def compare(tape: Recorded, run: Streamed, machine: HardwareSpec, manage: float, fitted_on: str) -> Iterator[Row]:
    """A row per metric that was measured. fitted_on: the log whose compute time and time to make room are taken."""
    found = predicted(tape, run, machine, manage)
    for metric in METRICS:
        if metric in run.measured:
            told = run.measured[metric]
            is_free = metric in OF_TAPE
            on = NOTHING if is_free else f"compute_s and manage_s of {fitted_on}"
            is_fitted = not is_free and run.source == fitted_on
            yield Row(run.source, 0, metric, "mean", told, found[metric], found[metric] / told - 1.0, on, is_fitted)
