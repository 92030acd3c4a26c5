"""One decode step of every system on every machine, by profile physical.

python -m bench.docs.every_machine docs/every_machine.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from bench.docs import write
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import load as load_constants
from tokentape.hw.spec import HardwareSpec, load, shipped
from tokentape.policies.serving import Layered
from tokentape.policies.sliced import SlicedCache
from tokentape.replay.cxl_ndp.decode import place
from tokentape.replay.cxl_ndp.decode import replay as near_replay
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.system import Setup, ours
from tokentape.replay.elmoe3d import points as elmoe3d
from tokentape.replay.elmoe3d.timing import evaluate
from tokentape.replay.estimate import estimate
from tokentape.replay.kelle.step import decode_steps
from tokentape.replay.kelle.systems import FITS, KELLE, WHOLE, systems
from tokentape.replay.kelle.systems import Work as KelleWork
from tokentape.replay.passes import fits_of
from tokentape.replay.serving.coverage import IndependentCoverage
from tokentape.replay.serving.iteration import iteration_costs
from tokentape.replay.serving.memory import footprint
from tokentape.replay.slicemoe import token_cost
from tokentape.replay.tokens import Tokens
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry

MODEL, CONTEXT, HOT_FRAC, MISS_FRAC, BUDGET, BITS = "qwen3-30b-a3b", 4096, 0.25, 0.05, 1024, 3.0

_HEAD = f"""# Every system on every machine

One decode step of {MODEL} (one request, {CONTEXT} tokens of context), by cost profile `physical`, in milliseconds. Written by
`python -m bench.docs.every_machine docs/every_machine.md`. Each system has its own formats and its own decisions, so a row
compares what they make of one machine:

- `held`: all experts at bf16 where they are read
- SliceMoE: {100 * MISS_FRAC:g} % of a token's high-bit bytes missed and fetched (MAT84, half of the accesses whole)
- ELMoE-3D: one token without speculation, INT8
- Kelle: {BUDGET} tokens kept, INT8
- Layered Prefill: an iteration of its server with the experts that fit, bf16
- GPU-NDP: {100 * HOT_FRAC:g} % of the experts hot, the others at {BITS:g} bits on average, routing drawn

What a machine lacks changes a decision. *n*: experts away from the cache compute near their memory; *p*: they are read in place;
*f*: they are fetched; *h*: no tier is in front of the experts' home; *k*: keys and values have no memory of their own; *!*: a
tier does not hold what lies in it.
"""


@dataclass(frozen=True)
class Cell:
    """Seconds, or why there are none; marks: of the text above."""

    seconds: float | None
    marks: str = ""
    why: str = ""

    def __str__(self) -> str:
        if self.seconds is None:
            return self.why
        return f"{1e3 * self.seconds:.3g}" + (f" *{self.marks}*" if self.marks else "")


@dataclass(frozen=True)
class EveryMachine:
    """One model's step on a machine under every system."""

    machine: HardwareSpec
    geometry: Geometry
    model: str = MODEL

    def cells(self) -> Iterator[Cell]:
        """In the order of SYSTEMS."""
        for cell in SYSTEMS.values():
            try:
                yield cell(self)
            except ValueError as error:
                yield Cell(None, why=str(error).partition(":")[0])

    @property
    def _away(self) -> str:
        """What is done with experts that are not where the main engine reads them."""
        roles = self.machine.roles
        return "h" if not roles.expert_cache else "p" if roles.expert_home in roles.reads else "f"

    def held(self) -> Cell:
        """All experts where the engine reads them."""
        fits = fits_of(self.machine, "bf16")
        made = estimate(self.geometry, self.machine, Tokens(decodes=1, context=CONTEXT), self.geometry.top_k, fits)
        is_full = any("does not hold" in sentence for sentence in made.outside)
        return Cell(float(made.cost.seconds.value[0]), "!" * is_full)

    def slicemoe(self) -> Cell:
        """With the misses of its budget."""
        cost = token_cost(self.geometry, self.machine, SlicedCache(8, 4), 0.5, MISS_FRAC, profiles.PHYSICAL, CONTEXT)
        return Cell(float(cost.seconds.value[0]), "h" if not self.machine.roles.expert_cache else "f")

    def elmoe3d(self) -> Cell:
        """Without speculation: its cache is filled with what fits."""
        table = pl.DataFrame({"model": self.model, "machine": self.machine.name, "scheme": "Elastic-SD", "batch": 1})
        points = elmoe3d.points_of(table, load_constants("elmoe3d-l1").constants, accepted_len=0.0, context_tokens=CONTEXT)
        setup = elmoe3d.Setup({self.model: (self.geometry, elmoe3d.STATIC_FORMAT)}, {self.machine.name: self.machine})
        found = evaluate(elmoe3d.as_points(points, setup), profiles.load(profiles.PHYSICAL)).ar
        return Cell(float(found.seconds[0]), self._away)

    def kelle(self) -> Cell:
        """Its fifth system: evicts, recomputes and refreshes by importance."""
        system, shares = systems(lambda name: self.machine)[KELLE], FITS.load().constants
        work = KelleWork(CONTEXT, 0, 1, BUDGET)
        (step,) = decode_steps(self.geometry, [(system, work)], shares.once, profiles.load(profiles.PHYSICAL), WHOLE)
        return Cell(step.seconds, ("" if self.machine.roles.kv_cache else "k") + "!" * bool(step.overflow_bytes))

    def layered_prefill(self) -> Cell:
        """An iteration without prefill."""
        rule = Layered().rule(self.geometry.n_layers)
        size = footprint(self.model, self.geometry, self.machine, "bf16", rule, 1)
        held = size.held_frac(size.kv_blocks())
        fits = fits_of(self.machine, "bf16")
        cost = iteration_costs(self.geometry, self.machine, IndependentCoverage(), fits=fits, held_frac=held)
        return Cell(cost.decode_step_s(1, CONTEXT), self._away if held < 1.0 else "")

    def cxl_ndp(self) -> Cell:
        """Hot experts by the prompt, the others at low precision."""
        made = Setup(
            machine=self.machine,
            profile=profiles.load(profiles.PHYSICAL),
            name=self.model,
            geometry=self.geometry,
            context_tokens=CONTEXT,
        )
        system, n_hot = ours(BITS), round(HOT_FRAC * self.geometry.n_experts)
        found = near_replay(self._routing, place(self._routing, 1, n_hot), made, system)
        return Cell(float(found.seconds.value.mean()), {"near": "n", "in place": "p", "fetched": "f"}[made.elsewhere(system)])

    @cached_property
    def _routing(self) -> CXLNDPRouting:
        """One sequence whose decode follows its prompt: a Zipf popularity of its own in every layer."""
        g, rng, n_steps = self.geometry, np.random.default_rng(0), 16
        popularity = rng.permuted(np.tile(1.0 / np.arange(1, g.n_experts + 1), (len(g.moe_layers), 1)), axis=1)
        drawn = np.log(popularity) + rng.gumbel(size=(1, n_steps, *popularity.shape))
        ids = np.argsort(-drawn, axis=-1)[..., : g.top_k].astype(np.int16)
        counts = rng.poisson(512 * g.top_k * popularity / popularity.sum(axis=1, keepdims=True)).astype(np.int32)[None]
        lengths = np.full(1, n_steps, np.int32)
        return CXLNDPRouting(
            "drawn", "synthetic", tuple(g.moe_layers), np.arange(1), counts, counts.astype(np.float64), ids, lengths
        )


SYSTEMS: dict[str, Callable[[EveryMachine], Cell]] = {
    "held": EveryMachine.held,
    "SliceMoE": EveryMachine.slicemoe,
    "ELMoE-3D": EveryMachine.elmoe3d,
    "Kelle": EveryMachine.kelle,
    "Layered Prefill": EveryMachine.layered_prefill,
    "GPU-NDP": EveryMachine.cxl_ndp,
}


def page(geometry: Geometry) -> str:
    """The whole document; geometry: MODEL's."""
    lines = [_HEAD, f"| machine | {' | '.join(SYSTEMS)} |", f"|---|{'---|' * len(SYSTEMS)}"]
    return "\n".join([*lines, *(line(name, geometry) for name in shipped())]) + "\n"


def line(machine: str, geometry: Geometry) -> str:
    """One machine's row of the table."""
    return f"| {machine} | {' | '.join(map(str, EveryMachine(load(machine), geometry).cells()))} |"


if __name__ == "__main__":
    write("every_machine docs/every_machine.md", sys.argv[1:], lambda _: page(models.load(MODEL).geometry))
