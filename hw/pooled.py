"""Operator constants of several GPUs together, for one that nobody measured: every device counts with the same number of rows."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokentape.hw import reachable
from tokentape.hw.calibrate import EVERY, POOLED, Fit, fitted, gpu_of, held_out, machine_of
from tokentape.hw.measured import Measurements
from tokentape.hw.operators import OPERATORS, Gpu, Operator
from tokentape.hw.operators import fit as fitter
from tokentape.hw.operators.operator import Floats, Shapes
from tokentape.hw.spec import HardwareSpec

_ROWS_OF_EACH = 10_000
_DEVICE = "device"  # argument that says whose row it is


def refuse_one(tables: Sequence[Measurements]) -> None:
    """Raises ValueError where tables are of one device, or of two dtypes."""
    dtypes, devices = ({getattr(table.setup, name) for table in tables} for name in ("dtype", "device"))
    if len(devices) < 2 or len(dtypes) != 1:
        raise ValueError(f"constants of several GPUs together need tables of two at least; found {', '.join(sorted(devices))}")


def pool(tables: Sequence[Measurements], machines: tuple[HardwareSpec, ...] = ()) -> list[Fit]:
    """One set of constants per operator. Deterministic. Raises ValueError as `refuse_one`."""
    refuse_one(tables)
    versions, fits = {table.setup.version for table in tables}, []
    for operator in dict.fromkeys(table.operator for table in tables):
        of_operator = [table for table in tables if table.operator == operator]
        gpus = tuple(gpu_of(machine_of(table.setup.device, machines), table.setup.dtype) for table in of_operator)
        kept = []
        for table, gpu in zip(of_operator, gpus, strict=True):
            reached = reachable.split(table, gpu)[0]
            drawn = np.random.default_rng(0).permutation(reached.seconds.size)[:_ROWS_OF_EACH]
            kept.append(reached.take(np.sort(drawn)))
        shapes = {name: np.concatenate([table.shapes[name] for table in kept]) for name in kept[0].shapes}
        shapes[_DEVICE] = np.repeat(np.arange(len(kept)), [table.seconds.size for table in kept])
        seconds = np.concatenate([table.seconds for table in kept])
        unseen = np.concatenate([held_out(table) for table in kept])
        version = min(versions) if len(versions) == 1 else EVERY
        setup = replace(of_operator[0].setup, device=POOLED, version=version)
        together = Measurements(operator, setup, shapes, seconds, tuple(source for table in kept for source in table.sources))
        fit = fitted(together, POOLED, gpus[0], unseen, seconds=_on_each(OPERATORS[operator], gpus))
        fits.append(replace(fit, ranges={name: ends for name, ends in fit.ranges.items() if name != _DEVICE}))
    return fits


def _on_each(operator: Operator, gpus: Sequence[Gpu]) -> fitter.Seconds:
    """Seconds of rows of several GPUs, each on its own."""

    def seconds(gpu: Gpu, constants: Floats, shapes: Shapes) -> Floats:
        made = np.empty(shapes[_DEVICE].size)
        for device, own in enumerate(gpus):
            rows = shapes[_DEVICE] == device
            made[rows] = operator.seconds(own, constants, {name: values[rows] for name, values in shapes.items()})
        return made

    return seconds
