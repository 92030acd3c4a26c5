"""What the options of `step cxl_ndp` name, as the replays that answer it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

from tokentape.flows.cxl_ndp import routing as cxl_ndp_routing
from tokentape.flows.grid import load_hardware
from tokentape.flows.study import matching
from tokentape.flows.systems.cxl_ndp.settings import Settings
from tokentape.hw import profile as profiles
from tokentape.policies.names import refuse_unknown
from tokentape.replay.cxl_ndp.decode import Decoded
from tokentape.replay.cxl_ndp.fit import FILES
from tokentape.replay.cxl_ndp.prefill import Row, prefill, request
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Setting, compared, run, stand_in_losses
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE, OURS, Setup, notes, system_of
from tokentape.warehouse import models
from tokentape.warehouse.tape import Store

KINDS = ("all", "ours", "monde", "monde-never", "monde-always", "monde-ema", "hobbit")


@dataclass(frozen=True)
class Answer:
    """Metrics by system (replay.cxl_ndp.decode.UNITS and gains), a batch of whole requests on each, and what to know of them."""

    title: str
    metrics: dict[str, dict[str, float]]
    decoded: dict[str, Decoded]
    requests: dict[str, Row]
    notes: list[str]


def answer(of: SimpleNamespace, store: Store, setting: Setting) -> Answer:
    """Replays every system asked for. of: options of `step cxl_ndp`; setting: theirs, but for its hot experts.

    Raises ValueError for an unknown name and for a tape of another model.
    """
    asked = _systems(of)
    made, routing_of = _source(of, store, setting)
    hot = made.geometry.n_experts // 2 if of.hot is None else of.hot
    setting = replace(setting, hot_experts=hot)
    setting.refuse_what_is_not(made.geometry.n_experts)
    systems = [system_of(name, made).name for name in asked]
    routing = routing_of()
    spread, g = Settings.shipped().losses.spread, made.geometry
    losses = stand_in_losses(len(g.moe_layers), g.n_experts, setting.seed, spread)
    decoded = run(routing, made, setting, dict.fromkeys([*systems, MONDE]), losses)
    metrics = {name: of for name, of in compared(decoded).items() if name in systems}
    title = (
        f"{made.name} on {made.machine.name}, {made.profile.name}, batch {setting.batch} at {of.context:,} tokens, "
        f"{hot} of {g.n_experts} experts hot, {routing.trace_id}"
    )
    said = [*notes(made, hot, setting.batch), *(text for name in metrics for text in made.decided(decoded[name].system))]
    n_cut = routing.n_sequences % setting.batch if of.tape else 0
    said += [f"left out, since they fill no batch: the tape's last {n_cut} of {routing.n_sequences} sequences"] if n_cut else []
    left_out = dict.fromkeys(kind for name in metrics for kind, of in decoded[name].uncounted.items() if any(of))
    said += [f"not counted by profile {made.profile.name}: {', '.join(left_out)}"] if left_out else []
    prompts = {name: prefill(made, decoded[name].system, of.prompt, setting.batch, hot) for name in metrics}
    requests = {name: request(decoded[name], of_prompts, of.output) for name, of_prompts in prompts.items()}
    is_longer = any(whole["is_extrapolated"] for whole in requests.values())
    said += ["more output tokens than the routing has: its mean step is used throughout"] if is_longer else []
    return Answer(title, metrics, decoded, requests, list(dict.fromkeys(said)))


def _systems(of: SimpleNamespace) -> list[str]:
    refuse_unknown("system", of.system, KINDS)
    if of.system not in ("all", "ours"):
        return [of.system]
    try:
        ours = [f"{OURS}-{float(text):.12g}" for text in of.bits.split(",")]
    except ValueError:
        raise ValueError(f"--bits {of.bits}: give mean bits from 1 to 4, or 16, with commas") from None
    return ours if of.system == "ours" else [*ours, MONDE, HOBBIT]


def _source(of: SimpleNamespace, store: Store, setting: Setting) -> tuple[Setup, Callable[[], CXLNDPRouting]]:
    """The model on its machine, and what reads the tape's routing or draws one."""
    (trace_id, *others) = (None,) if of.tape is None else matching((of.tape,), store.trace_ids())
    if others:
        raise ValueError(f"--tape {of.tape} fits {len(others) + 1} tapes: {trace_id}, {', '.join(others)}; give more of one id")
    if of.model:
        model = models.load(of.model)
        name, geometry = model.name, model.geometry
    elif trace_id:
        manifest = store.open(trace_id).manifest
        name, geometry = manifest.model_id, manifest.geometry
    else:
        raise ValueError("nothing to decode: give --model, --tape or both")
    fit = FILES.load(of.fit).constants if of.fit else None
    made = Setup(
        machine=load_hardware(of.hardware),
        profile=fit.profile() if fit else profiles.load(of.profile or profiles.PHYSICAL),
        name=name,
        geometry=geometry,
        context_tokens=of.context,
        hobbit_bits=Settings.shipped().hobbit_bits,
    )
    if trace_id:
        return made, partial(cxl_ndp_routing.of_tape, store, trace_id)
    return made, partial(cxl_ndp_routing.drawn, geometry, max(setting.batch, cxl_ndp_routing.N_PROMPT // 8), setting.seed)
