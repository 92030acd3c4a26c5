"""Recomputing K and V from the layer input instead of loading them: two ways to count it, and where it stands on the roofline.

The paper gives 1.1 us to load a KV vector of LLaMA2-7B and 3.2 us to recompute it. Its own array and DRAM say 0.256 and 16.4 us.
Mode `paper` keeps the paper's ratio of the two on top of the load that the bytes take, mode `physical` counts multiply-adds.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from tokentape.hw import profile as profiles
from tokentape.hw.clock import clock
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Rows
from tokentape.hw.work import Work as Counted
from tokentape.replay.kelle.step import INPUT_BYTES, bytes_of, fed, kv_elements, kv_frac, rows_of
from tokentape.replay.kelle.systems import MODES, PROFILE, Work
from tokentape.replay.tokens import Tokens
from tokentape.replay.transformer import WEIGHTS, weight_bytes
from tokentape.warehouse.geometry import Geometry

GRID = tuple(i / 20 for i in range(21))  # shares that the curve is drawn at


def vector_times_s(geometry: Geometry, machine: HardwareSpec, mode: str = "physical") -> tuple[float, float]:
    """Seconds to load K and V of a token in a layer from DRAM, and to compute them from the layer input, as Kelle counts."""
    elements = kv_elements(geometry, MODES[mode])
    load = Rows(kind="kv_read", tier="kv_home", bytes=elements * INPUT_BYTES)
    anew = Rows(kind="recompute", engine="main", ops=2.0 * geometry.hidden * elements)
    cost = clock(Counted(n_steps=1, n_blocks=1, rows=(load, anew)), machine, profiles.load(PROFILE), ends=("value",))
    return float(cost.rows_s[id(load)].item()), float(cost.rows_s[id(anew)].item())


def roofline(
    geometry: Geometry,
    machine: HardwareSpec,
    work: Work,
    mode: str,
    slowdown: float | None = None,
    shares: Iterable[float] = GRID,
) -> list[dict[str, Any]]:
    """A decode step at its final length by the share of recomputed vectors, array and DRAM side by side (Kelle Figure 16a);
    operations include the recomputation's.

    slowdown: recomputing a vector over loading it; None: what the array takes. Labelled are no recomputation, the share at which
    both take equally long (moderate) and all vectors (excessive). A point above its roof asks more of the array than it has.
    """
    none, every = _of_shares(geometry, machine, work, mode, slowdown)
    gap_s, slope_s = none[2] - none[3], none[2] - none[3] - every[2] + every[3]
    moderate = float(min(1.0, max(0.0, gap_s / slope_s))) if slope_s > 0.0 else 0.0
    labels = {moderate: "moderate", 1.0: "excessive", 0.0: "none"}
    at = np.array(sorted({*shares, *labels}))
    n_bytes, ops, dram_s, array_s = (none + at[:, None] * (every - none)).T
    step_s, peak = np.maximum(dram_s, array_s), machine.compute.mac_ops_per_s(machine.dtype)
    roof = np.minimum(peak or machine.compute.ops_per_s[machine.dtype].value, ops / dram_s)
    told = {
        "recomputed_frac": at, "ops_per_byte": ops / n_bytes, "ops_per_s": ops / step_s, "roof_ops_per_s": roof,
        "is_compute_bound": array_s > dram_s, "step_s": step_s, "label": [labels.get(share, "") for share in at.tolist()],
    }  # fmt: skip
    return pl.DataFrame(told).to_dicts()


def _of_shares(geometry: Geometry, machine: HardwareSpec, work: Work, mode: str, slowdown: float | None) -> Floats:
    """(2, 4) of no and of all vectors recomputed: bytes from DRAM, operations, and how long either takes; linear in between."""
    accounting, share = MODES[mode], np.array([0.0, 1.0])
    charged = share if accounting.charges_recompute else 0.0 * share
    n_kept = min(work.n_tokens, work.budget_tokens or work.n_tokens)
    frac = kv_frac(geometry, accounting) * work.kv_bits / 16 * (1.0 - (share - charged))
    in_dram = replace(machine, roles=replace(machine.roles, kv_cache=""))
    tokens = Tokens(decodes=work.batch, context=n_kept, kv_frac=frac, recomputed=charged)
    made = rows_of(geometry, in_dram, tokens, accounting)
    vectors = float(work.batch * n_kept * geometry.n_layers)
    elements = vectors * kv_elements(geometry, accounting) * np.ones(2)
    passing = fed(in_dram, made, np.zeros(2), elements, is_written=False)
    placed = clock(replace(made, rows=(*made.rows, passing)), in_dram, profiles.load(PROFILE), ends=("value",)).at_end["value"]
    load_s, anew_s = vector_times_s(geometry, machine, mode)
    recompute_s = vectors * share * (anew_s if slowdown is None else slowdown * load_s)
    of_weights = sum(made.total(made.by_cell(one, one.ops)) for one in made.rows if one.kind in WEIGHTS)
    return np.stack(
        [
            made.total(weight_bytes(made)) + bytes_of(made, "kv_read", "kv_home"),
            of_weights + 2.0 * elements * (1.0 + share * geometry.hidden),
            placed.total("w", "bytes") + placed.total("kv", "bytes"),
            placed.total("w", "ops") + placed.total("beside", "fixed") + recompute_s,
        ],
        axis=1,
    )
