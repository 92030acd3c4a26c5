"""Fitted constants of the GPU operator models: made from measured tables, kept as TOML, used within the range of the fit.

One file holds one setup (device, framework, version, dtype). Of every operator it keeps two sets of constants: `constants`,
fitted on all rows, and `without_held_out`, fitted without the rows that hw/fits/split.toml holds out, to be tried on those.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokentape.hw import reachable, spec
from tokentape.hw.fit_files import FITS
from tokentape.hw.measured import OPERANDS_OF, Measurements, Setup
from tokentape.hw.operators import COLLECTIVES, LINK, OPERATORS, Gpu
from tokentape.hw.operators import fit as fitter
from tokentape.hw.operators.operator import release
from tokentape.hw.sourced import BadSpec, build
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats

POOLED = "any GPU"  # the device of constants that were fitted to several together
EVERY = "all"  # their version, where there is more than one
MOST_ERROR = 0.5  # mean, on the rows of the fit, above which constants say nothing


@dataclass(frozen=True)
class Fit:
    """Constants of one operator in one setup, by parameter name; ranges: argument -> (smallest, largest) fitted on.

    left_out: rows of the sources that the device cannot have reached, file by file.
    """

    operator: str
    setup: Setup
    machine: str
    constants: dict[str, float]
    without_held_out: dict[str, float]
    ranges: dict[str, tuple[float, float]]
    n_rows: int
    sources: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The operator, and the format of weights, or of keys and values, that are not of 16 bits."""
        of = OPERANDS_OF.get(self.setup.dtype)
        return f"{self.operator} {of.form if of else self.setup.dtype}".strip()

    def seconds(self, gpu: Gpu, shapes: Mapping[str, NDArray[np.generic]], held_out: bool = False) -> Floats:
        """(n,) predicted seconds on `gpu`, which need not be the one the constants were fitted on."""
        return np.asarray(OPERATORS[self.operator].seconds(gpu, self._in_order(held_out), shapes))

    def regimes(self, gpu: Gpu, shapes: Mapping[str, NDArray[np.generic]]) -> NDArray[np.str_]:
        """(n,) the term that binds."""
        return np.asarray(OPERATORS[self.operator].regime(gpu, self._in_order(), shapes))

    def _in_order(self, held_out: bool = False) -> Floats:
        constants = self.without_held_out if held_out else self.constants
        return np.array([constants[parameter.name] for parameter in OPERATORS[self.operator].parameters])


def gpu_of(machine: HardwareSpec, dtype: str = "bfloat16") -> Gpu:
    """The datasheet numbers that operator times follow from. Raises BadSpec naming what the machine's file lacks."""
    engine, key = machine.compute, OPERANDS_OF[dtype].ops if dtype in OPERANDS_OF else dtype
    wanted = {
        f"engines.{machine.engine}.n_units": engine.n_units,
        f"engines.{machine.engine}.clock_hz": engine.clock_hz,
        f"engines.{machine.engine}.local_bytes_per_unit": engine.local_bytes_per_unit,
        f"engines.{machine.engine}.compute_capability": engine.compute_capability,
        f"engines.{machine.engine}.ops_per_s.{key}": engine.ops_per_s.get(key),
        "tiers.l2.capacity_bytes": machine.tiers["l2"].capacity_bytes if "l2" in machine.tiers else None,
    }
    absent = [name for name, number in wanted.items() if number is None]
    if absent:
        raise BadSpec(f"{machine.name}: {absent[0]} is missing; GPU operator times need it")
    n_sms, clock, local, capability, ops, l2 = (number.value for number in wanted.values() if number is not None)
    return Gpu(
        n_sms=round(n_sms),
        clock_hz=clock,
        peak_ops_per_s=ops,
        peak_bytes_per_s=machine.tiers[machine.fast].peak_bytes_per_s.value,
        l2_bytes=l2,
        smem_bytes_per_sm=local,
        capability=capability,
    )


def machine_of(device: str, others: tuple[HardwareSpec, ...] = ()) -> HardwareSpec:
    """The single-device machine whose `measured_as` is this device, among `others` first. Raises BadSpec if none is."""
    known = [*others, *map(spec.load, spec.shipped())]
    found = [machine for machine in known if machine.measured_as == device and machine.n_devices == 1]
    if not found:
        named = ", ".join(sorted({machine.measured_as for machine in known if machine.measured_as}))
        raise BadSpec(f'no machine has measured_as = "{device}"; give --hardware my.toml with that key (shipped: {named})')
    return found[0]


def with_links(tables: Iterable[Measurements], others: tuple[HardwareSpec, ...] = ()) -> tuple[list[Measurements], list[str]]:
    """The tables, those of collectives with the rate of the link between the GPUs, which a machine of several with this
    `measured_as` tells; and a line on each of those that none does, which are left out."""
    known, kept, left_out = [*others, *map(spec.load, spec.shipped())], [], []
    for table in tables:
        device = table.setup.device
        if table.operator in COLLECTIVES:
            links = [link[1] for of in known if of.measured_as == device and (link := of.link(of.roles.peer, of.roles.peer))]
            if not links:
                said = f'no machine of several has measured_as = "{device}"; give --hardware of one with the link between them'
                left_out.append(f"{table.operator}, {table.setup}: left out, {said}")
                continue
            rate = np.full(table.seconds.size, links[0].peak_bytes_per_s.value)
            table = replace(table, shapes={**table.shapes, LINK: rate})
        kept.append(table)
    return kept, left_out


def held_out(measurements: Measurements) -> NDArray[np.bool_]:
    """(n,) the rows that a calibration may not see, by hw/fits/split.toml."""
    every = tomllib.loads((FITS / "split.toml").read_text(encoding="utf-8"))["held_out_every"]
    return np.asarray(measurements.shape_ids() % every == every - 1)


def calibrate(measurements: Measurements, machine: HardwareSpec) -> Fit:
    """Fits the operator's constants on all rows that the machine can have reached, and once more without the held-out ones.

    Deterministic. Raises ValueError where there are fewer rows than constants.
    """
    module, gpu = OPERATORS[measurements.operator], gpu_of(machine, measurements.setup.dtype)
    n_rows = measurements.seconds.size
    measurements, beyond = reachable.split(measurements, gpu)
    asked = f"is `latency` in milliseconds, and {machine.name} the machine that was measured?"
    if beyond and measurements.seconds.size < len(module.parameters):
        left = f"{measurements.seconds.size} of {n_rows} rows stay, too few for {len(module.parameters)} constants"
        raise ValueError(f"{reachable.said(beyond)}; {left}: {asked}")
    if len(beyond) > max(reachable.FEW_ROWS, reachable.FEW_FRAC * n_rows):
        raise ValueError(f"{reachable.said(beyond)}; of {n_rows:,} rows too many to believe the rest: {asked}")
    return fitted(measurements, machine.name, gpu, held_out(measurements), tuple(reachable.by_source(beyond)))


def fitted(
    of: Measurements,
    machine: str,
    gpu: Gpu,
    unseen: NDArray[np.bool_],
    left_out: tuple[str, ...] = (),
    seconds: fitter.Seconds | None = None,
) -> Fit:
    """Constants of all rows, and of all but the unseen ones. seconds: in place of the operator's own."""
    operator, rows = OPERATORS[of.operator], (of, of.take(~unseen) if unseen.any() else of)
    names = [parameter.name for parameter in operator.parameters]
    sets = [fitter.fit(operator, gpu, some.shapes, some.seconds, seconds) for some in rows]
    everything, without = (dict(zip(names, map(float, constants), strict=True)) for constants in sets)
    numbers = {name: values for name, values in of.shapes.items() if np.issubdtype(values.dtype, np.number)}
    ranges = {name: (float(values.min()), float(values.max())) for name, values in numbers.items()}
    return Fit(of.operator, of.setup, machine, everything, without, ranges, of.seconds.size, of.sources, left_out)


def unfit(fit: Fit, mape_frac: float) -> str | None:
    """Why the constants are of no use, in a line: their error on the rows they were fitted on; None if they may stand."""
    if mape_frac <= MOST_ERROR:
        return None
    return (
        f"{fit.operator}, {fit.setup}: constants are {100 * mape_frac:.0f} % off on the {fit.n_rows:,} rows they were fitted on "
        f"(at most {100 * MOST_ERROR:.0f} %); the table is not of {fit.machine} or not of this operator; --force writes them"
    )


def file_name(setup: Setup) -> str:
    """What the file of a setup's constants is called."""
    words = (setup.device, f"{setup.framework}-{setup.version}", setup.dtype)
    return "_".join(re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-") for word in words) + ".toml"


def text(fits: list[Fit]) -> bytes:
    """Of the file of one setup's fits, TOML. Raises ValueError if they belong to several."""
    setups = {fit.setup for fit in fits}
    if len(setups) != 1:
        raise ValueError(f"a file of constants holds one setup, got {len(setups)}; give one file per setup")
    setup = fits[0].setup
    lines = [
        "# Written by `tokentape calibrate gpu`; hw/fits/README.md says what this is.",
        f"machine = {json.dumps(fits[0].machine)}",
    ]
    lines += [f"{name} = {json.dumps(getattr(setup, name))}" for name in ("device", "framework", "version", "dtype")]
    for fit in sorted(fits, key=lambda fit: list(OPERATORS).index(fit.operator)):
        units = {p.name: f"{p.meaning} [{p.unit}]" for p in OPERATORS[fit.operator].parameters}
        sources = json.dumps(["/".join(Path(source).parts[-2:]) for source in fit.sources])
        lines += ["", f"[{fit.operator}]", f"n_rows = {fit.n_rows}", f"sources = {sources}"]
        lines += [f"left_out = {json.dumps(fit.left_out)}"] if fit.left_out else []
        lines += [f"constants.{name} = {value:.9g}  # {units[name]}" for name, value in fit.constants.items()]
        lines += [f"without_held_out.{name} = {value:.9g}" for name, value in fit.without_held_out.items()]
        lines += [f"ranges.{name} = [{low:.9g}, {high:.9g}]" for name, (low, high) in fit.ranges.items()]
    return ("\n".join(lines) + "\n").encode()


def load(path: Path) -> dict[str, Fit]:
    """The fits of a file by operator. Raises BadSpec naming the file and the key that is wrong."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        told = {name: data.pop(name) for name in ("device", "framework", "version", "dtype", "machine")}
        if not all(isinstance(text, str) for text in told.values()):
            raise ValueError(f"{', '.join(told)} must be texts")
        of_file = {"machine": told.pop("machine"), "setup": Setup(**told)}
        fits = {name: build(Fit, table, name, operator=name, **of_file) for name, table in data.items()}
    except FileNotFoundError as error:
        raise BadSpec(f"{path}: no such file of constants; `tokentape calibrate gpu FILES --out {path}` writes one") from error
    except (KeyError, ValueError) as error:
        raise BadSpec(f"{path}: not a file of fitted constants ({error}); write it with `tokentape calibrate gpu`") from error
    for fit in fits.values():
        _check(fit, path)
    return fits


def _check(fit: Fit, path: Path) -> None:
    """Raises BadSpec unless the file has exactly the constants of the operator's model as it is now."""
    if fit.operator not in OPERATORS:
        raise BadSpec(f"{path}: unknown operator {fit.operator!r}; known: {', '.join(OPERATORS)}")
    names = [p.name for p in OPERATORS[fit.operator].parameters]
    for constants in (fit.constants, fit.without_held_out):
        if sorted(constants) != sorted(names):
            raise BadSpec(f"{path}: {fit.operator} needs the constants {', '.join(names)}; calibrate again with this version")
        if not all(0.0 < value < float("inf") for value in constants.values()):
            raise BadSpec(f"{path}: {fit.operator} has a constant that is not finite and above 0; calibrate again")


def known(folder: Path | None = None) -> Sequence[dict[str, Fit]]:
    """The constants that ship and, last, so that they count, those of a folder. Raises BadSpec if the folder has none."""
    if folder is None:
        return shipped()
    mine = [load(path) for path in sorted(folder.glob("*.toml"))]
    if not mine:
        raise BadSpec(f"{folder}: no folder with files of constants; `tokentape calibrate gpu FILES --out {folder}` writes them")
    setups = {fit.setup for fits in mine for fit in fits.values()}
    return [*(fits for fits in shipped() if not any(fit.setup in setups for fit in fits.values())), *mine]


def shipped() -> tuple[dict[str, Fit], ...]:
    """The fits that come with the project, file by file."""
    return tuple(_shipped().values())


@cache
def _shipped() -> dict[Path, dict[str, Fit]]:
    return {path: load(path) for path in sorted(FITS.glob("*_*_*.toml"))}  # as `file_name` calls them


def fits_of(machine: HardwareSpec, known: Iterable[dict[str, Fit]]) -> dict[str, Fit]:
    """Of the known constants, the nearest to this machine's device by operator and format (`Fit.key`); none where it is no GPU.

    Its own; else those of a device of its generation (compute capability), whose kernels are its own; else those of all GPUs
    together (`POOLED`), which count before a generation's where that was timed in an older version than all of theirs.
    """
    near = [(rank, fit) for fits in known for fit in fits.values() if (rank := _nearness(machine, fit))]
    return {fit.key: fit for _, fit in sorted(near, key=lambda pair: pair[0])}


def fits_with(machine: HardwareSpec, folder: Path | None) -> dict[str, Fit]:
    """`fits_of` the shipped constants and those of a folder. Raises BadSpec where the machine takes none of these."""
    chosen, others = fits_of(machine, known(folder)), {id(fit) for fits in shipped() for fit in fits.values()}
    if folder is not None and all(id(fit) in others for fit in chosen.values()):
        raise BadSpec(f"{folder}: {machine.name} takes none of these constants: they are of another device; leave --fits out")
    return chosen


def of_others(machine: HardwareSpec, fits: Iterable[Fit]) -> tuple[str, ...]:
    """In words, in which of these operators this GPU was not measured, and whose constants time them: a line per device."""
    by_device: dict[str, list[str]] = {}
    for fit in fits:
        if fit.setup.device != machine.measured_as:
            by_device.setdefault(fit.setup.device, []).append(fit.key)
    return tuple(
        f"this GPU was not measured in {', '.join(sorted(set(keys)))}: times follow from its data sheet and constants of "
        + ("all that were" if device == POOLED else f"{device}, of its generation")
        for device, keys in sorted(by_device.items())
    )


def _nearness(machine: HardwareSpec, fit: Fit) -> tuple[int, ...]:
    """How near constants are to a machine's device, for sorting; () where they say nothing of it. Its own stay in the order in
    which they are known: of later versions, and last a user's."""
    setup, operands = fit.setup, OPERANDS_OF.get(fit.setup.dtype) if fit.operator not in COLLECTIVES else None
    if setup.device == (machine.measured_as or "-"):
        return (2,)
    capability = machine.compute.compute_capability
    if capability is None or (operands and operands.ops not in machine.compute.ops_per_s):
        return ()
    if setup.device == POOLED:
        return (0,) if setup.version == EVERY else (1, *release(setup.version), 0)
    return (1, *release(setup.version), 1) if _capability(fit.machine) == capability.value else ()


@cache
def _capability(machine: str) -> float | None:
    """Of a shipped machine's GPU; None for others: constants name a user's own machine, not its file."""
    found = spec.load(machine).compute.compute_capability if machine in spec.shipped() else None
    return found.value if found else None


def files_of(machine: HardwareSpec) -> tuple[Path, ...]:
    """Where the shipped constants of `fits_of` are kept."""
    chosen = {id(fit) for fit in fits_of(machine, shipped()).values()}
    return tuple(path for path, fits in _shipped().items() if chosen & {id(fit) for fit in fits.values()})


def is_gpu(machine: HardwareSpec) -> bool:
    """Whether operator times follow from the machine's data sheet: it names its kernels' generation."""
    return machine.compute.compute_capability is not None
