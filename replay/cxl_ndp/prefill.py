"""A batch's prompts through the experts of a system, and whole requests. Source: specification section 5, forms assumed.

Some experts are streamed to the GPU, as many as make the prompts shortest, and the rest compute where they lie; HOBBIT streams
all, beside computing. Every expert is taken to have n k / E of the batch's n tokens. Replicas do not serve prefill.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tokentape.hw.clock import StepCost, clock
from tokentape.hw.work import Rows, Work
from tokentape.replay.cxl_ndp.decode import Decoded
from tokentape.replay.cxl_ndp.setting import Setting
from tokentape.replay.cxl_ndp.system import FETCHED, HOBBIT, IN_PLACE, MONDE, Setup, System
from tokentape.replay.cxl_ndp.work import Items, Share, layer_rows, moved_rows
from tokentape.replay.tokens import Tokens
from tokentape.replay.transformer import steps_of
from tokentape.warehouse.model_sizes import kv_bytes

Row = dict[str, Any]
PARTS = ("prefill_s", "transfer_s", "other_s", "gpu_s", "wait_s", "ndp_s")


@dataclass(frozen=True, eq=False)
class Prefill:
    """cost: of one step through the model, that of placing hot experts which prefill did not stream included."""

    streamed_experts: int
    cost: StepCost

    @property
    def seconds(self) -> float:
        return float(self.cost.seconds.value[0])


def prefill(made: Setup, system: System, n_context_tokens: int, batch: int, hot_experts: int, held_experts: int = 0) -> Prefill:
    """A batch of prompts of n_context_tokens each. hot_experts: of a layer, to lie on the GPU when decoding starts; held_experts:
    those that lie there before."""
    how, n_away = made.elsewhere(system), made.geometry.n_experts - held_experts
    streamed = np.arange(n_away + 1)
    if not made.machine.roles.expert_cache:
        streamed = streamed if how != IN_PLACE else streamed[-1:]
    elif how == FETCHED:
        streamed = streamed[-1:]
    costs = _priced(made, system, n_context_tokens, batch, held_experts, streamed, 0)
    best = int(streamed[costs.seconds.value.argmin()])
    places = system.starts_placed and not system.fetches  # a baseline that starts with residents pays for them too
    unplaced = max(0, hot_experts - held_experts - best) if places else 0
    return Prefill(best, _priced(made, system, n_context_tokens, batch, held_experts, np.array([best]), unplaced))


def _priced(made: Setup, system: System, n_tokens: int, batch: int, held: int, streamed: np.ndarray, unplaced: int) -> StepCost:
    """A step for each number of streamed experts."""
    g, blocks = made.geometry, made.blocks
    shape = (streamed.size, blocks.moe.size)
    each = batch * n_tokens * g.top_k / g.n_experts
    cells = (np.arange(streamed.size)[:, None] * blocks.n + blocks.moe).ravel()

    def share(n: np.ndarray) -> Share:
        active = np.broadcast_to(n[:, None].astype(np.float64), shape)
        items = Items(cells, np.full(cells.size, each), cells, active.ravel()).at_fp16()
        return Share(active, active * each, active, (items,))

    hot, away = share(streamed + held), share(g.n_experts - held - streamed)
    moving = replace(system, overlaps=system.fetches)
    rows = layer_rows(made, moving, hot, away, np.broadcast_to(streamed[:, None].astype(np.float64), shape), "prefill")
    if unplaced:
        rows += moved_rows(made, replace(system, overlaps=False), np.full(shape, float(unplaced)))
    tokens = Tokens(prompt=np.full(streamed.size, float(batch * n_tokens)), prompts=batch)
    others = steps_of(g, made.machine, tokens, (), blocks)
    if not any(made.profile.lane_of(row) for row in others.rows if row.kind == "attend"):
        # Where attention within prompts is not counted, reading a decode's cache stands for it: T_o of the specification.
        cached = batch * kv_bytes(g, made.context_tokens, "fp16", made.machine.tensor_parallel)
        layers, n_bytes = np.arange(blocks.n - 1), cached / g.n_layers
        rows += (Rows(kind="kv_read", name="cached keys and values", tier="kv_home", blocks=layers, bytes=n_bytes),)
    work = Work(n_steps=streamed.size, n_blocks=blocks.n, rows=(*others.rows, *rows))
    return clock(work, made.machine, made.profile, made.fits)


def request(decoded: Decoded, of_prompts: Prefill, n_decode_tokens: int) -> Row:
    """A batch from its prompts to the last token, at the tape's mean decode step: seconds by PARTS, of which ndp_s runs beside
    gpu_s, and e2e_s, the sum of the others; streamed_experts; is_extrapolated: more tokens than the tape decodes."""
    scale = n_decode_tokens / max(1, decoded.n_steps)
    part = {name: seconds * scale for name, seconds in decoded.parts.items()}
    prefill_s, other_s, gpu_s, wait_s = of_prompts.seconds, part["other"] + part["outside"], part["gpu"], part["wait"]
    transfer_s = decoded.layers_s * scale - part["other"] - gpu_s - wait_s
    spent = (prefill_s, transfer_s, other_s, gpu_s, wait_s, part["ndp"] + part["activation"])
    return {
        "streamed_experts": of_prompts.streamed_experts,
        **dict(zip(PARTS, spent, strict=True)),
        "e2e_s": prefill_s + transfer_s + other_s + gpu_s + wait_s,
        "is_extrapolated": n_decode_tokens > decoded.longest,
    }


def request_rows(
    made: Setup,
    setting: Setting,
    by_seed: Sequence[Mapping[str, Decoded]],
    grids: Mapping[str, Sequence[int]],
    decode_tokens: Sequence[int],
) -> Iterator[Row]:
    """Of a model. by_seed: every system's decode in the setting; grids: of prompts, by name.

    Times are means over seeds, so that parts sum to e2e_s; gains are medians. Without study, source and origin.
    """
    batch, hot_experts = setting.batch, setting.hot_experts
    of_prompts = {
        (name, context): prefill(made, one.system, context, batch, hot_experts)
        for name, one in by_seed[0].items()
        for context in set().union(*grids.values())
    }
    for (grid, contexts), n_decode in product(grids.items(), decode_tokens):
        for context in contexts:
            ran = [{name: request(one, of_prompts[name, context], n_decode) for name, one in found.items()} for found in by_seed]
            for system in ran[0]:
                mine = [one[system] for one in ran]
                gain = np.array([one[MONDE]["e2e_s"] / one[system]["e2e_s"] for one in ran])
                yield {
                    "setting": grid,
                    "model_id": made.name,
                    "hardware": made.machine.name,
                    "system": system,
                    "batch": batch,
                    "n_context_tokens": context,
                    "n_decode_tokens": n_decode,
                    **mine[0],
                    **{part: float(np.mean([one[part] for one in mine])) for part in (*PARTS, "e2e_s")},
                    "e2e_gain": float(np.median(gain)),
                    "low": float(gain.min()),
                    "high": float(gain.max()),
                    "gain_over_hobbit": float(np.median([one[HOBBIT]["e2e_s"] / one[system]["e2e_s"] for one in ran])),
                    "n_seeds": len(ran),
                }
