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
from tokentape.replay.cxl_ndp.prefill import Request, prefill, request
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting
from tokentape.replay.cxl_ndp.setting import Setting, compared, run, stand_in_losses
from tokentape.replay.cxl_ndp.system import HOBBIT, MONDE, OURS, Setup, notes, system_of
from tokentape.warehouse import models
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store

KINDS = ("all", "ours", "monde", "monde-never", "monde-always", "monde-ema", "hobbit")


@dataclass(frozen=True)
class Answer:
    """Metrics by system (replay.cxl_ndp.decode.UNITS and gains), and what to know of them."""

    title: str
    metrics: dict[str, dict[str, float]]
    decoded: dict[str, Decoded]
    made: Setup
    setting: Setting
    notes: list[str]

    def request(self, system: str, n_context_tokens: int, n_decode_tokens: int) -> Request:
        """A batch of whole requests on one of the systems."""
        decoded, of = self.decoded[system], self.setting
        return request(decoded, prefill(self.made, decoded.system, n_context_tokens, of.batch, of.hot_experts), n_decode_tokens)


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
    return Answer(title, metrics, decoded, made, setting, list(dict.fromkeys(said)))


def _systems(of: SimpleNamespace) -> list[str]:
    refuse_unknown("system", of.system, KINDS)
    if of.system not in ("all", "ours"):
        return [of.system]
    try:
        ours = [f"{OURS}-{float(text):.12g}" for text in of.bits.split(",")]
    except ValueError:
        raise ValueError(f"--bits {of.bits}: give mean bits from 1 to 4, or 16, with commas") from None
    return ours if of.system == "ours" else [*ours, MONDE, HOBBIT]


def _setup(of: SimpleNamespace, name: str, geometry: Geometry) -> Setup:
    fit = FILES.load(of.fit).constants if of.fit else None
    return Setup(
        machine=load_hardware(of.hardware),
        profile=fit.profile() if fit else profiles.load(of.profile or profiles.PHYSICAL),
        name=name,
        geometry=geometry,
        context_tokens=of.context,
        hobbit_bits=Settings.shipped().hobbit_bits,
    )


def _source(of: SimpleNamespace, store: Store, setting: Setting) -> tuple[Setup, Callable[[], CXLNDPRouting]]:
    """The model on its machine, and what reads the tape's routing or draws one."""
    if of.tape is None:
        if of.model is None:
            raise ValueError("nothing to decode: give --model, --tape or both")
        model = models.load(of.model)
        made = _setup(of, model.name, model.geometry)
        n_sequences = max(setting.batch, cxl_ndp_routing.N_PROMPT // 8)
        return made, partial(cxl_ndp_routing.drawn, model.geometry, n_sequences, setting.seed)
    (trace_id, *others) = matching((of.tape,), store.trace_ids())
    if others:
        raise ValueError(f"--tape {of.tape} fits {len(others) + 1} tapes: {trace_id}, {', '.join(others)}; give more of one id")
    manifest = store.open(trace_id).manifest
    named = models.load(of.model) if of.model else None
    made = _setup(of, named.name, named.geometry) if named else _setup(of, manifest.model_id, manifest.geometry)
    return made, partial(cxl_ndp_routing.of_tape, store, trace_id)
