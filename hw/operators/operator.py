"""What a GPU operator is: a closed form of its time with few fitted constants, over shapes (arrays by name, one entry per call).

Formulas are written in functions that numpy has for arrays and policies/machine_code.py for numbers, and decide by numbers of the
GPU alone, else by np.where.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAY_BE_0 = ("step", "window_size", "stores_kv", "is_warm", "kernel", "prompt_tokens", "decodes", "context", "longest", "before")

Shapes = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]

# Fixed costs of kernels and tiles are cycles; constants state them in seconds at this clock, an H100's.
REFERENCE_HZ = 1.755e9
# The L2 cache feeds every SM with as many bytes in a cycle: a fifth of the 64 that its port takes. Chosen for all devices with
# the L40S and RTX PRO 6000 tables in view, as is the sharpness with which a footprint that outgrows the cache is missed.
_L2_BYTES_PER_CYCLE = 12.8
_L2_SHARPNESS = 6.0
COLD = 1e18  # a footprint that no cache holds
# What products of quantised weights are: bits of a weight (its share of the scales with it) and of the other operand, and the
# tensor rate of the operands over that of 16-bit ones, where the GPU's peak is that of these.
OPERANDS = ("weight_bits", "value_bits", "speedup")
PLAIN = {"weight_bits": 16, "value_bits": 16, "speedup": 1}
OUTPUT_BITS = 16.0


class Gpu(NamedTuple):
    """Datasheet numbers of one GPU that operator times follow from.

    n_sms: streaming multiprocessors; clock_hz: the clock at which the peaks hold; peak_ops_per_s: dense tensor throughput of
    the operands' dtype (a multiply-add is two); peak_bytes_per_s: off-chip memory; l2_bytes: last-level cache;
    smem_bytes_per_sm: shared memory that one SM's thread blocks can use together; capability: CUDA's compute capability (8.0:
    A100, 8.9: Ada, 9.0: Hopper, 10.x: data-centre Blackwell, 12.x: other Blackwell), which decides the kernels that run.
    """

    n_sms: float
    clock_hz: float
    peak_ops_per_s: float
    peak_bytes_per_s: float
    l2_bytes: float
    smem_bytes_per_sm: float
    capability: float

    @property
    def slower(self) -> float:
        """How much longer a cycle is than an H100's."""
        return REFERENCE_HZ / self.clock_hz

    def s_per_byte(self, efficiency_frac: float, footprint_bytes: Floats) -> Floats:
        """Seconds per byte that is read again after `footprint_bytes` of others, from L2 where they fit; (n,)."""
        memory = self.peak_bytes_per_s * efficiency_frac
        l2 = np.maximum(_L2_BYTES_PER_CYCLE * self.n_sms * self.clock_hz, memory)
        hit = 1.0 / (1.0 + (footprint_bytes / self.l2_bytes) ** _L2_SHARPNESS)
        made: Floats = hit / l2 + (1.0 - hit) / memory
        return made


@dataclass(frozen=True)
class Parameter:
    """A constant that is fitted to measurements; `start`, `low`, `high` are in `unit` ("frac" for a dimensionless efficiency)."""

    name: str
    unit: str
    start: float
    low: float
    high: float
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Operator:
    """columns: arguments that measured tables have; arguments: all of `time`; defaults: what they are where shapes do not say;
    grows: sizes with which a call takes longer, whatever the tiles.

    terms: parts of the time of calls, each (n,) seconds, named in `regimes`: of a GPU, constants in the order of `parameters`,
    arguments; they add up, but the second and the third run side by side where there is an `overlap`: how sharp the maximum
    of the two is (1 adds them, infinity takes the larger). least: operations and bytes of shapes, (n,) each, which no device can
    do without. of_shapes: arguments that shapes stand for, where they are not columns of these; of_table: those that a measured
    table has no column for, by the framework's version, the kernels' names and the shapes.
    """

    name: str
    columns: tuple[str, ...]
    arguments: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    grows: tuple[str, ...]
    terms: Callable[..., tuple[Floats, ...]]
    least: Callable[[Shapes], tuple[Floats, Floats]]
    regimes: tuple[str, ...] = ("launch", "compute", "memory")
    overlap: float | None = None
    of_table: Callable[[str, NDArray[np.str_], Shapes], dict[str, NDArray[Any]]] = lambda version, kernels, shapes: {}
    defaults: Mapping[str, float] = field(default_factory=dict)
    of_shapes: Callable[[Shapes], Iterable[Any]] | None = None

    def time(self, gpu: Gpu, constants: Iterable[float], *arguments: Floats) -> Floats:
        """Seconds, element by element, as a compiler takes them."""
        return self._whole(self.terms(gpu, constants, *arguments))

    def seconds(self, gpu: Gpu, constants: Floats, shapes: Shapes) -> Floats:
        """Seconds of each shape, (n,) f64. Raises ValueError naming what is missing, below 1 or unknown."""
        return self._whole(self._terms(gpu, constants, shapes))

    def regime(self, gpu: Gpu, constants: Floats, shapes: Shapes) -> NDArray[np.str_]:
        """Name of the largest part of each shape's time, (n,)."""
        largest = np.argmax(np.stack(self._terms(gpu, constants, shapes)), axis=0)
        return np.asarray(np.array(self.regimes)[largest])

    def _terms(self, gpu: Gpu, constants: Floats, shapes: Shapes) -> tuple[Floats, ...]:
        given = self.of_shapes(shapes) if self.of_shapes else columns(shapes, self.arguments, self.defaults)
        return self.terms(gpu, constants, *given)

    def _whole(self, terms: Iterable[Floats]) -> Floats:
        if self.overlap is not None:
            launch_s, one, other, *more = terms
            terms = (launch_s, (one**self.overlap + other**self.overlap) ** (1.0 / self.overlap), *more)
        return reduce(add, terms)


def release(version: str) -> tuple[int, int]:
    """Major and minor number of a framework's version. Raises ValueError if the text is not one."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise ValueError(f"version {version!r} is not a version such as 0.19.0")
    return int(parts[0]), int(parts[1])


def columns(shapes: Shapes, names: Iterable[str], defaults: Mapping[str, float] | None = None) -> list[Floats]:
    """The named arguments as (n,) f64, the default where one is absent. The first name must be given: it says how long they are.

    Raises ValueError naming the first one that is missing, or below 1 where it may not be.
    """
    names, defaults = list(names), defaults or {}
    absent = [name for name in names if name not in shapes and name not in defaults]
    if absent:
        raise ValueError(f"shapes have no {absent[0]!r}; give {', '.join(names)}")
    made = []
    for name in names:
        values = np.asarray(shapes[name] if name in shapes else defaults[name], dtype=np.float64)
        if not np.all(values >= 1) and name not in MAY_BE_0:
            raise ValueError(f"shapes[{name!r}] row {int(np.argmin(values >= 1))}: must be at least 1")
        made.append(np.broadcast_to(values, np.shape(shapes[names[0]])))
    return made
