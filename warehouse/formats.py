"""Number formats: bytes of a weight, an activation or a cached value, and of the slices a quantised tensor splits into.

Knows nothing of models: counts of values go in, bytes come out.
"""

GROUP = 32  # values that share a scale, in every grouped format here
SCALE_BYTES = 2  # one FP16 scale per group

# Bytes per value with the scale's share: int8-g32 and int4 carry one FP16 scale per 32 weights (ELMoE-3D section 3), MXFP4 one
# 8-bit scale per 32 (OCP Microscaling v1.0).
EXPERT_FORMATS: dict[str, float] = {
    "int8-g32": 1.0 + SCALE_BYTES / GROUP,
    "int4": 0.5 + SCALE_BYTES / GROUP,
    "mxfp4": 4.25 / 8,
    "fp8": 1.0,
    "fp16": 2.0,
    "bf16": 2.0,
    "fp32": 4.0,
}
# Activations, cached keys and values, and weights in groups so large that the papers leave their scales out (SliceMoE section 2).
VALUE_FORMATS: dict[str, float] = {**EXPERT_FORMATS, "int8": 1.0}
FLOAT_FORMATS = ("fp16", "bf16", "fp32")


def value_bytes(n_values: int, value_format: str) -> int:
    """Bytes of `n_values` in a format of VALUE_FORMATS, scales included. Raises ValueError naming the known formats."""
    return round(n_values * bytes_per_value(value_format))


def bytes_per_value(value_format: str) -> float:
    """Of a format of VALUE_FORMATS, with the share of its scales. Raises ValueError naming the known formats."""
    if value_format not in VALUE_FORMATS:
        raise ValueError(f"unknown number format {value_format!r}; known: {', '.join(VALUE_FORMATS)}")
    return VALUE_FORMATS[value_format]


def slice_bytes(n_weights: int, bits_high: int, bits_low: int) -> tuple[int, int]:
    """(MSB, LSB) slice bytes of `n_weights` quantised to `bits_high`, of which the MSB slice holds the upper `bits_low`; of
    equal widths the LSB slice has none.

    An FP16 scale and a 1-byte zero point per 32 weights, both with the MSB slice (SliceMoE section 2; MAT84 is bits 8 and 4).
    Raises ValueError unless 0 < bits_low <= bits_high.
    """
    if not 0 < bits_low <= bits_high:
        raise ValueError(f"slices need 0 < bits_low <= bits_high, got bits_low {bits_low} and bits_high {bits_high}")
    n_groups = -(-n_weights // GROUP)
    msb, lsb = (-(-n_weights * bits // 8) for bits in (bits_low, bits_high - bits_low))
    return msb + n_groups * (SCALE_BYTES + 1), lsb
