"""An estimated serving step: a model's geometry, a machine, its fitted constants and a coverage of experts, put together."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from tokentape.flows import machines, steps
from tokentape.flows.grid import load_hardware, load_trace
from tokentape.hw import calibrate
from tokentape.hw import profile as profiles
from tokentape.hw.clock import not_counted, power_findings
from tokentape.hw.coverage import FORMS, Form, errors
from tokentape.policies.names import unknown
from tokentape.replay import coverage as tapes
from tokentape.replay.estimate import Estimate, estimate
from tokentape.replay.passes import fits_of
from tokentape.replay.tokens import Tokens
from tokentape.warehouse.at_rest import hash_of
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.models import load as load_model
from tokentape.warehouse.tape import Store

RECORDED = "recorded"
WITHOUT_TAPE = "uniform"


@dataclass(frozen=True)
class Estimated:
    """A step that was estimated. coverage: how many experts it touches and how that is known; outside: what is extrapolated."""

    step_id: str
    title: str
    step: Estimate
    coverage: tuple[str, ...]
    outside: tuple[str, ...]

    def by_name(self) -> pl.DataFrame:
        """operation, how often it runs, seconds, bytes and ops over all layers, the longest first."""
        of_step = self.step.operations()
        found = of_step.group_by("operation", maintain_order=True).agg(pl.len(), pl.sum("seconds", "bytes", "ops"))
        return found.sort("seconds", descending=True, maintain_order=True)

    def write(self, store: Store) -> None:
        """Records the step in table `operations`, and its machine beside it."""
        machines.record(store, self.step.machine)
        steps.write(store, self.step_id, self.title, self.step.machine, self.step.operations())


def estimated(
    store: Store,
    model: str,
    hardware: str,
    load: Tokens,
    trace: str | None = None,
    coverage: str = "",
    weight_format: str = "bf16",
    fits: Mapping[str, calibrate.Fit] | None = None,
    profile: str = profiles.PHYSICAL,
) -> Estimated:
    """The step. trace: a tape of this model, or None. coverage: recorded, a form's name, or `form=parameter`; empty: recorded
    where there is a tape, else uniform. fits: constants of the machine's operators; None: those that ship, for bf16 weights;
    empty: the roofline. Raises ValueError on names, and where tape and model differ."""
    found, machine = load_model(model), load_hardware(hardware)
    geometry = found.geometry
    told, costs = "fitted operators", profiles.load(profile)
    if fits:  # one's own, told apart
        constants = sorted((key, str(fit.setup), sorted(fit.constants.items())) for key, fit in fits.items())
        told += f" {hashlib.sha256(repr(constants).encode()).hexdigest()[:8]}"
    is_timed = any(lane.operators for lane in costs.lanes)
    if fits and not is_timed:
        raise ValueError(f"--fits has no effect with --profile {costs.name}, which takes no fitted operators; leave one out")
    if fits is None:
        fits = fits_of(machine, weight_format) if is_timed else {}
    active, sentences = _coverage(store, geometry, load, trace, coverage)
    made = estimate(geometry, machine, load, active, fits, weight_format, profile)
    how = coverage or (RECORDED if trace else WITHOUT_TAPE) if geometry.n_experts else ""
    carried = [f"batch {load.decodes} at {load.context:,} tokens" if load.decodes else ""]
    carried += [f"{load.prompt:,} prompt tokens" if load.prompt else ""]
    costing = f"{costs.name}, {told if fits else 'roofline'}"
    title = f"{found.name} on {machine.name}, {' + '.join(filter(None, carried))}, {weight_format}, {costing}"
    title += f", {how} coverage" if how else ""
    version = hash_of([geometry.model_dump(mode="json"), machine.sha256, costs.sha256])[:8]  # of what names stand for
    sizes = (str(load.decodes), str(load.context), str(int(load.prompt)))
    parts = (found.name, machine.name, *sizes, weight_format, costing, how, trace or "", version)
    step_id = "/".join(filter(None, parts))
    cost = made.cost
    cost.profile.refuse_no_time(float(cost.seconds.value[0]))
    power_w = float(cost.joules.value[0] / cost.seconds.value[0])
    outside = (*found.doubts, *made.outside, *power_findings(machine, power_w), *not_counted(cost.uncounted, machine, costs))
    return Estimated(step_id, title, made, sentences, outside)


def _coverage(store: Store, geometry: Geometry, load: Tokens, trace: str | None, coverage: str) -> tuple[float, tuple[str, ...]]:
    """Distinct experts per layer, and sentences: how known, and how far each closed form is from the tape."""
    if not geometry.n_experts:
        if trace or coverage:
            raise ValueError("the model has no experts; leave --trace and --coverage out")
        return 0.0, ()
    coverage = coverage or (RECORDED if trace else WITHOUT_TAPE)
    size = (geometry.n_experts, geometry.top_k)
    if trace is None:
        if coverage == RECORDED:
            raise ValueError("--coverage recorded needs --trace, a tape of this model")
        form = _form(coverage)
        active = _union(size, [float(form.distinct(n, *size)) for n in (load.decodes, load.prompt)])
        return active, (f"experts touched per layer: {active:.1f} of {size[0]} ({coverage}; no tape to check it against)",)
    tape = load_trace(store, store.resolve(trace))
    if (tape.geometry.n_experts, tape.geometry.top_k) != size:
        theirs = f"{tape.geometry.n_experts} experts, top-{tape.geometry.top_k}"
        raise ValueError(f"tape {tape.trace_id} routes over {theirs}; the model has {size[0]}, top-{size[1]}")
    parts, sentences = [], []
    for n, phase in ((load.decodes, "decode"), (load.prompt, "prefill")):
        if not n:
            continue
        curve = tapes.recorded(tape, phase)
        forms = tapes.forms_of(tape, curve)
        off = errors(forms, curve.n_tokens, curve.distinct, *size)
        listed = ", ".join(f"{name} {100 * share:.1f} %" for name, share in off.items())
        sentences.append(
            f"{phase}: mean error of the closed forms against the tape, 1 to {curve.n_tokens[-1]:g} tokens: {listed}"
        )
        chosen = forms.get(coverage) if coverage in forms else None if coverage == RECORDED else _form(coverage)
        parts.append(curve.at(float(n)) if chosen is None else float(chosen.distinct(n, *size)))
    active = _union(size, parts)
    return active, (f"experts touched per layer: {active:.1f} of {size[0]} ({coverage}, tape {tape.trace_id})", *sentences)


def _union(size: tuple[int, int], parts: list[float]) -> float:
    """Experts of decodes and prompt together, taken as independent of each other."""
    return size[0] * (1.0 - math.prod(1.0 - part / size[0] for part in parts))


def _form(text: str) -> Form:
    """A closed form from `name` or `name=parameter`. Raises ValueError with the nearest name, or with the parameter it needs."""
    name, _, parameter = text.partition("=")
    if name not in FORMS:
        raise unknown("coverage", name, (*FORMS, RECORDED))
    wanted = [field.name for field in dataclasses.fields(FORMS[name])]  # type: ignore[arg-type]
    if len(wanted) != bool(parameter):
        need = f"needs {wanted[0]}, as in {name}=0.8, or a --trace that tells it" if wanted else "takes no parameter"
        raise ValueError(f"coverage {text!r}: {name} {need}")
    try:
        return FORMS[name](**{key: float(parameter) for key in wanted})
    except ValueError as error:
        raise ValueError(f"coverage {text!r}: {error}") from error
