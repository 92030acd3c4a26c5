"""The levels of an expert's 1 to 4 bit replica: groups of weights along the input share 2^bits evenly spaced levels.

Two or more bits: from the group's least weight to its largest. One bit: -s and s with s = mean |w|. Least level and step are
FP16. Round to nearest takes `nearest` as it is; GPTQ (capture/losses/gptq.py) rounds column by column onto the same levels. Runs
on numpy arrays and torch tensors alike. Formulas: docs/losses.md (CXL-NDP, section 4.4 of its specification).
"""

from dataclasses import dataclass

import numpy as np

from tokentape.policies.quantise import Array, cast, namespace

WIDTHS = (1, 2, 3, 4)
GROUP = 128
SMALLEST_STEP = 2.0**-24  # the least FP16 above zero: a group of equal weights divides by this


@dataclass(frozen=True)
class Levels:
    """low, step: (rows, groups) f32 holding FP16 values. Level c of a group, 0 <= c < 2^bits, is low + c step."""

    low: Array
    step: Array
    bits: int
    group: int

    def nearest(self, w: Array, first: int = 0) -> Array:
        """The level next to each weight, f32. w: (rows, n) f32, columns `first` and on of the matrix the levels are of."""
        xp = namespace(w)
        columns = [(first + j) // self.group for j in range(w.shape[1])]
        low, step = self.low[:, columns], self.step[:, columns]
        return low + step * xp.clip(xp.round((w - low) / step), 0, 2**self.bits - 1)


def levels(w: Array, bits: int, group: int = GROUP) -> Levels:
    """Levels of a matrix w (rows, inputs) of any float dtype; the last group of a row may be short.

    Raises ValueError for a width outside 1..4, a group below 1, and weights that are not finite or beyond FP16.
    """
    if bits not in WIDTHS or group < 1:
        raise ValueError(f"a replica has 1 to 4 bits and groups of at least 1 weight, got {bits} bits in groups of {group}")
    xp, w = namespace(w), cast(w, "float32")
    parts = [w[:, start : start + group] for start in range(0, w.shape[1], group)]
    if bits == 1:
        scale = _half(xp.stack([xp.abs(part).mean(-1) for part in parts], -1))
        low, step = -scale, 2 * scale
    else:
        low = _half(xp.stack([xp.amin(part, -1) for part in parts], -1))
        step = _half((xp.stack([xp.amax(part, -1) for part in parts], -1) - low) / (2**bits - 1))
    if not bool(xp.all(xp.isfinite(low) & xp.isfinite(step))):
        raise ValueError("a replica's scales are FP16: weights must be finite and below 65504")
    return Levels(low, xp.clip(step, SMALLEST_STEP, None), bits, group)


def _half(x: Array) -> Array:
    with np.errstate(over="ignore"):  # refused by name
        return cast(cast(x, "float16"), "float32")
