"""Table `losses` of a live model: every expert at 1 to 4 bits by GPTQ and round to nearest, against itself at full precision.

The calibration text runs through the model for as many layers at once as their reservoirs fit into RESERVOIR_BYTES; then one
expert at a time is copied, quantised and compared. A layer is a shard of the tape, so a capture that was stopped goes on with the
next layer; what a layer's reservoirs hold does not depend on which others were watched.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
import torch

from tokentape.capture.live.copies import experts_of, n_experts_of
from tokentape.capture.live.loop import Outcome, Request, Sampling, decode
from tokentape.capture.losses.experts import METHODS, Expert, expert_of, replicas
from tokentape.capture.losses.reservoir import ROWS, Reservoirs, Rows
from tokentape.capture.models import Loaded, input_table
from tokentape.capture.plan import CaptureSettings
from tokentape.capture.shard import request_rows
from tokentape.policies.replicas import GROUP
from tokentape.warehouse.tables import schema
from tokentape.warehouse.tape import TapeWriter

RESERVOIR_BYTES = 1 << 30
Report = Callable[[int, int, str], None]  # done, in all, of what


@dataclass(frozen=True)
class Calibrated:
    """An expert and the hidden vectors that reach it."""

    layer: int
    index: int
    expert: Expert
    rows: Rows

    @property
    def x(self) -> torch.Tensor:
        """(n, H) f32 where the expert is: what calibrates it."""
        return self.rows.calibration.to(self.expert.up.device)


def calibrated(
    loaded: Loaded,
    prompts: Sequence[Request],
    layers: Sequence[int],
    seed: int,
    batch_size: int = 1,
    report: Report = lambda done, total, what: None,
) -> Iterator[Calibrated]:
    """Every expert of `layers`, in order. prompts: their inputs are the calibration text; nothing is generated.

    Raises ValueError for a text that is too short and for layouts that are not known.
    """
    modules = experts_of(loaded.model)
    hidden = input_table(loaded.model)
    n_experts = max(map(n_experts_of, modules.values()))
    at_once = max(1, RESERVOIR_BYTES // (n_experts * ROWS * hidden.shape[1] * hidden.element_size()))
    for first in range(0, len(layers), at_once):
        group = layers[first : first + at_once]
        with Reservoirs(loaded.model, group, seed) as reservoirs:
            for start in range(0, len(prompts), batch_size):
                batch = prompts[start : start + batch_size]
                decode(loaded.model, batch, Sampling(), frozenset(), loaded.pad_id, before_pass=reservoirs.before)
                report(start + len(batch), len(prompts), f"prompts through layers {group[0]} to {group[-1]}")
        for layer in group:
            for index in range(n_experts_of(modules[layer])):
                yield Calibrated(layer, index, expert_of(modules[layer], index), reservoirs.rows(layer, index))


def record_losses(
    loaded: Loaded,
    prompts: Sequence[Request],
    settings: CaptureSettings,
    writer: TapeWriter,
    report: Report = lambda done, total, what: None,
) -> int:
    """Writes a shard for every MoE layer that has none yet; how many there are. The prompts are rows of the first shard."""
    layers, modules = zip(*experts_of(loaded.model).items(), strict=True)
    todo = [layer for shard, layer in enumerate(layers) if not writer.has_shard(shard)]
    n_done, total = 0, sum(n_experts_of(modules[layers.index(layer)]) for layer in todo)
    every = calibrated(loaded, prompts, todo, settings.seed, settings.batch_size, report)
    for layer, experts in groupby(every, lambda found: found.layer):
        rows: list[dict[str, Any]] = []
        for found in experts:
            rows += losses_of(found)
            n_done += 1
            report(n_done, total, "experts")
        shard = layers.index(layer)
        mine = prompts if shard == 0 else ()
        requests = request_rows(mine, [Outcome()] * len(mine), settings.dataset)
        writer.write_shard(shard, {"requests": requests, "losses": pa.Table.from_pylist(rows, schema("losses"))})
    return len(layers)


@torch.inference_mode()
def losses_of(found: Calibrated, group: int = GROUP) -> list[dict[str, Any]]:
    """Rows of table `losses` of one expert."""
    x, held_out = found.x, found.rows.held_out.to(found.expert.up.device)
    y, held_out_y = found.expert(x), found.expert(held_out)
    key = {"layer": found.layer, "expert": found.index, "group": group, "n_tokens": len(x) + len(held_out)}
    return [
        key
        | {"bits": bits, "method": method, "topped_up": found.rows.topped_up}
        | {"mse": _mse(replica(x), y), "heldout_mse": _mse(replica(held_out), held_out_y)}
        for method in METHODS
        for bits, replica in replicas(found.expert, x, method, group)
    ]


def _mse(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Mean over rows and outputs, accumulated in f32."""
    return float((ours - theirs).square().mean())
