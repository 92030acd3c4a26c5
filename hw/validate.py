"""How wrong the cost models are: predicted against measured, by operator and regime, on rows fitted, held out and elsewhere.

A frame of comparisons has a row per measurement: `check` (gpu_operator or dram), where it was measured, `operator`, `split`
(fitted, held_out, other_version, same_generation, pooled, other_device, or closed_form: nothing fitted), regime, measured,
predicted, and, of at most MAX_POINTS of an operator and split, evenly spaced, its shape.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl

from tokentape.hw import dram, reachable
from tokentape.hw.calibrate import POOLED, Fit, fits_of, gpu_of, held_out, machine_of
from tokentape.hw.measured import Measurements
from tokentape.hw.operators import Gpu
from tokentape.hw.spec import HardwareSpec

MAX_POINTS = 400  # of a scatter, per operator and split
SIMULATOR = {"framework": "Ramulator", "version": "2.1"}  # what the DRAM anchors were measured in
WHERE = ("check", "device", "framework", "version", "operator", "split")
POINT = (*WHERE, "regime", "shape", "measured", "predicted", "unit")
ERROR = (pl.col("predicted") / pl.col("measured") - 1.0).abs()


def errors(found: pl.DataFrame) -> pl.DataFrame:
    """Rows of table validation: n comparisons, mean, median and 95th percentile of |predicted / measured - 1|; of GPU operators
    also by regime, as check gpu_operator_regime of `operator: regime`."""
    by_regime = found.filter(pl.col("check") == "gpu_operator").with_columns(
        check=pl.lit("gpu_operator_regime"), operator=pl.format("{}: {}", "operator", "regime")
    )
    return (
        pl.concat([found, by_regime])
        .group_by(WHERE, maintain_order=True)
        .agg(n=pl.len(), mape_frac=ERROR.mean(), median_frac=ERROR.median(), p95_frac=ERROR.quantile(0.95, "linear"))
    )


def points(found: pl.DataFrame) -> pl.DataFrame:
    """Rows of table validation_points: the comparisons that have a shape."""
    return found.filter(pl.col("shape").is_not_null()).select(POINT)


def compare(
    tables: Iterable[Measurements], fits: Iterable[dict[str, Fit]], machines: tuple[HardwareSpec, ...] = ()
) -> Iterator[pl.DataFrame]:
    """Every measured table against the constants of its own setup (fitted and held-out rows) and of every other device; one of a
    setup that no constants are of against those that engines take for it (other_version, same_generation or pooled).

    Rows that the device cannot have reached are left out, as they are of every fit. `machines`: a user's own, for devices that no
    shipped machine is measured as. Raises BadSpec if a device is unknown.
    """
    known = list(fits)
    for measurements in tables:
        machine = machine_of(measurements.setup.device, machines)
        gpu = gpu_of(machine, measurements.setup.dtype)
        measurements, _ = reachable.split(measurements, gpu)
        if not measurements.seconds.size:
            continue
        fits_of_table = [of[measurements.operator] for of in known if measurements.operator in of]
        of_format = [fit for fit in fits_of_table if fit.setup.dtype == measurements.setup.dtype]
        others = [fit for fit in of_format if fit.setup.device not in (measurements.setup.device, POOLED)]
        own = [fit for fit in of_format if fit.setup == measurements.setup]
        for fit in own:
            yield _comparison([fit], measurements, "fitted", gpu)
            unseen = measurements.take(held_out(measurements))
            if unseen.seconds.size:
                yield _comparison([fit], unseen, "held_out", gpu)
        for fit in () if own else fits_of(machine, [{str(fit.setup): fit} for fit in of_format]).values():
            of = {measurements.setup.device: "other_version", POOLED: "pooled"}.get(fit.setup.device, "same_generation")
            yield _comparison([fit], measurements, of, gpu)
        if others:
            yield _comparison(others, measurements, "other_device", gpu)


def _comparison(fits: list[Fit], of: Measurements, split: str, gpu: Gpu) -> pl.DataFrame:
    """Every row by each of the constants: of several other devices, all errors together."""
    shape = np.full(len(fits) * of.seconds.size, None, object)
    for i in np.unique(np.linspace(0, shape.size - 1, MAX_POINTS).astype(np.int64)):
        shape[i] = ", ".join(f"{name} {values[i % of.seconds.size]}" for name, values in of.shapes.items())
    return pl.DataFrame(
        {
            "check": "gpu_operator",
            **{name: getattr(of.setup, name) for name in ("device", "framework", "version")},
            "operator": of.operator,
            "split": split,
            "regime": np.concatenate([fit.regimes(gpu, of.shapes) for fit in fits]).tolist(),
            "shape": shape.tolist(),
            "measured": np.tile(of.seconds, len(fits)),
            "predicted": np.concatenate([fit.seconds(gpu, of.shapes, held_out=split == "held_out") for fit in fits]),
            "unit": "s",
        }
    )


def _pattern(anchor: dram.Anchor) -> str:
    """What was measured, in words; queue and dies only where they are not the preset's own."""
    timing = dram.timing(anchor.preset)
    words = [anchor.pattern.replace("_", " ")]
    if anchor.block_bytes is not None:
        n_kib = anchor.block_bytes / 1024
        words[0] += f" {n_kib:.4g} KiB" if n_kib >= 1 else f" {anchor.block_bytes} B"
    words += ["row map"] if anchor.address_map == "row" else []
    words += [f"queue {anchor.queue_depth}"] if anchor.queue_depth != timing.queue_entries.value else []
    words += [f"{anchor.density} dies"] if anchor.density != timing.density else []
    return ", ".join(words)


def dram_anchors() -> pl.DataFrame:
    """The closed form of hw/dram.py against its committed anchors, as fractions of peak bandwidth; nothing is fitted. The regime
    says whether the form claims to cover the pattern."""
    return pl.DataFrame(
        {
            "check": "dram",
            "device": anchor.preset,
            **SIMULATOR,
            "operator": _pattern(anchor),
            "split": "closed_form",
            "regime": "covered" if anchor.covered else "not covered",
            "shape": _pattern(anchor),
            "measured": anchor.measured_frac,
            "predicted": anchor.predicted_frac,
            "unit": "1",
        }
        for anchor in dram.anchors()
    )
