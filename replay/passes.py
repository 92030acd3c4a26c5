"""The work of a tape's passes: what their tokens compute and attend to, and the experts that are read and fetched for them."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from tokentape.hw import calibrate
from tokentape.hw import profile as profiles
from tokentape.hw.clock import BACKGROUND, Band, StepCost, clock
from tokentape.hw.profile import Profile
from tokentape.hw.spec import HardwareSpec
from tokentape.hw.work import Floats, Ints, Rows, Values, Work
from tokentape.replay.semantics import Semantics
from tokentape.replay.tokens import Blocks, Tokens, blocks_of
from tokentape.replay.trace import PREFILL, Trace
from tokentape.replay.transformer import ACTIVATION, experts_of, operator_of, steps_of
from tokentape.warehouse.formats import FLOAT_FORMATS
from tokentape.warehouse.geometry import Geometry

_PREPARED: WeakKeyDictionary[Trace, dict[tuple[str, ...], StepCost]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Pricing:
    """How passes are priced. weight_format: of all but the experts; profile: a cost profile's name or path."""

    machine: HardwareSpec
    semantics: Semantics
    weight_format: str
    profile: str


@dataclass(frozen=True, eq=False)
class PassCosts:
    """Of a tape's passes: seconds, joules and, by `joules_of`, what spends them; what its profile leaves out: kind -> (bytes,
    operations); tokens of the longest context; and what is not timed by kernels measured on it, in words."""

    how: Pricing
    seconds: Band
    joules: Band
    joules_of: dict[str, Band]
    uncounted: dict[str, tuple[float, float]]
    longest: int
    not_measured: list[str]


def costs_of(trace: Trace, found: Iterable[tuple[slice, Trace, Floats]], how: Pricing) -> tuple[Ints, PassCosts]:
    """(5, passes): what was found, and what `pass_costs` costs; memory is that of one part and of the passes, whatever the rows.
    found: part by part as `pass_costs` takes it, each with its passes and the trace of them."""
    n, longest = trace.pass_ids.size, 0
    per_pass, bands = np.zeros((5, n), np.int64), dict[str, Band]()
    uncounted: dict[str, tuple[float, float]] = {}
    for at, part, of_part in found:
        per_pass[:, at] = of_part.sum(axis=2)
        _, cost = pass_costs(part, how, of_part, keeps=trace.read is None)
        for name, band in ({"seconds": cost.seconds, "joules": cost.joules} | joules_of(cost, how.machine)).items():
            for whole, values in zip(bands.setdefault(name, Band(*np.zeros((3, n)))), band, strict=True):
                whole[at] = values
        longest = max(longest, int(part.row_position.max(initial=0)) + 1)
        for kind, (n_bytes, ops) in cost.uncounted.items():
            before = uncounted.get(kind, (0.0, 0.0))
            uncounted[kind] = (before[0] + n_bytes, before[1] + ops)
    stored = format_of(trace.geometry, how.weight_format)
    fits = fits_of(how.machine, stored)
    told = not_measured(how.machine, profiles.load(how.profile), fits, trace.geometry, stored, stored, ACTIVATION)
    return per_pass, PassCosts(how, bands.pop("seconds"), bands.pop("joules"), bands, uncounted, longest, told)


def pass_costs(trace: Trace, how: Pricing, found: Floats, keeps: bool = False, by_layer: bool = False) -> tuple[Work, StepCost]:
    """All of a pass's work, and what it costs. found (5, passes, MoE layers): lookups, hits, bytes looked up and missed, fetches.

    keeps: what does not depend on the cache is priced once per tape, machine, semantics, format and profile. by_layer: so that
    the work, too, has every layer apart, where else those that are alike are one but for their experts.
    """
    machine, costs, blocks = how.machine, profiles.load(how.profile), blocks_of(trace.geometry, by_layer=True)
    is_apart = by_layer or not trace.geometry.is_counted or bool(machine.roles.kv_cache)  # which all layers share, in their order
    fits = fits_of(machine, format_of(trace.geometry, how.weight_format))
    held = _PREPARED.setdefault(trace, {})
    key = (machine.sha256, how.semantics.prefill, how.weight_format, costs.sha256)
    prepared = held.get(key)  # threads share it; two may make the same at once
    if prepared is None:
        kinds = blocks if is_apart else blocks_of(trace.geometry)
        others = _others(trace, how, kinds)
        if not is_apart:
            others = replace(others, block_times=1.0, spread=kinds.of)
        prepared = clock(others, machine, costs, fits)
        held.clear()  # of another machine: a study goes machine by machine
        if keeps:
            held[key] = prepared
    experts = Work(n_steps=trace.pass_ids.size, n_blocks=blocks.n, rows=_experts(trace, how, blocks, found))
    cost = clock(experts, machine, costs, fits, on=prepared)
    others = prepared.work
    at = next((i for i, rows in enumerate(others.rows) if rows.kind in ("shared", "dense_ffn", "head")), len(others.rows))
    return Work(n_steps=others.n_steps, n_blocks=blocks.n, rows=(*others.rows[:at], *experts.rows, *others.rows[at:])), cost


def fits_of(machine: HardwareSpec, weight_format: str) -> dict[str, calibrate.Fit]:
    """The machine's fitted operators, where some of them were measured with such weights."""
    fits = calibrate.fits_of(machine, calibrate.shipped())
    return fits if any(operator_of(name, weight_format) in fits for name in ("gemm", "moe")) else {}


def not_measured(
    machine: HardwareSpec,
    profile: Profile,
    fits: Mapping[str, calibrate.Fit],
    geometry: Geometry,
    expert_format: str,
    dense_format: str | Mapping[str, str],
    kv_format: str,
) -> list[str]:
    """What of a GPU's step is not timed by kernels that were measured on it: by constants of others, or by the roofline; and
    which widths lie beyond the rows of its constants, as one token meets them."""
    if not (fits or calibrate.is_gpu(machine)) or not any(lane.operators for lane in profile.lanes):
        return []
    dense = {dense_format} if isinstance(dense_format, str) else {ACTIVATION, *dense_format.values()}
    wanted = {operator_of("gemm", of) for of in dense} | ({operator_of("decode_attention", kv_format)} if fits else set())
    wanted |= {operator_of("moe", expert_format)} if geometry.moe_layers else set()
    missing, whole = sorted(wanted - set(fits)), "" if fits else "all is "
    lacks = [f"no table of this GPU has {', '.join(missing)}: {whole}from the roofline"] if missing else []
    used, far = {key: fits[key] for key in sorted(wanted & set(fits))}, list[str]()
    if used and geometry.is_counted:
        blocks = blocks_of(geometry)
        experts = experts_of(geometry, machine, blocks, 1.0, geometry.top_k, geometry.top_k, 0.0, weight_format=expert_format)
        one = Tokens(decodes=1.0, context=2.0)
        work = steps_of(geometry, machine, one, experts, blocks, dense_format, kv_format)
        far = [*of_roofline(work, wanted), *beyond(work, used)]
    return [*calibrate.of_others(machine, used.values()), *lacks, *far]


def floats_on_integers(machine: HardwareSpec, expert_format: str) -> list[str]:
    """A sentence where experts of floating point run on an engine that is rated for integers."""
    is_off = expert_format in FLOAT_FORMATS and machine.dtype.startswith("int")
    return [f"{expert_format} experts on an engine rated for {machine.dtype}"] * is_off


def of_roofline(work: Work, operators: Container[str]) -> list[str]:
    """Operations that none of these times, in words."""
    rows = [rows for rows in work.rows if rows.tier and rows.kind not in ("kv_write", "elementwise", "all_reduce")]
    return [
        f"{of.name}: no measured operator of this kind, so its time is a roofline's"
        for of in rows
        if of.operator not in operators
    ]


def beyond(work: Work, fits: Mapping[str, calibrate.Fit]) -> list[str]:
    """Arguments of operations outside the range of their constants, in words."""
    found = []
    for rows in (rows for rows in work.rows if rows.operator in fits):
        ranges = fits[rows.operator].ranges
        off = [
            f"{name} {value:g} outside {ranges[name][0]:g} to {ranges[name][1]:g}"
            for name, values in work.shapes(rows).items()
            if name in ranges
            for value in np.unique(values)
            if not ranges[name][0] <= value <= ranges[name][1]
        ]
        found += [f"{rows.name}: {', '.join(off)}"] * bool(off)
    return found


def joules_of(cost: StepCost, machine: HardwareSpec) -> dict[str, Band]:
    """Joules as metrics name them: backing (the home of experts that a cache is in front of), fast (all other memory), link,
    compute, background."""
    found: dict[str, Band] = {}
    backing = f"tiers.{machine.roles.expert_home}" if machine.roles.expert_cache else ""
    for part, band in cost.joules_of.items():
        table = part.partition(".")[0]
        name = "backing" if part == backing else {"tiers": "fast", "links": "link", "engines": "compute"}.get(table, BACKGROUND)
        found[name] = Band(*map(np.add, found[name], band)) if name in found else band
    return found


def tokens_of(trace: Trace, semantics: Semantics) -> Tokens:
    """Of every pass. A batch of prompts shares its tokens evenly; tokens of a decode pass attend to their mean context. Prompts
    that are taken token by token are decodes in turn."""
    bounds = np.searchsorted(trace.row_pass, np.arange(trace.pass_ids.size + 1, dtype=np.int32))  # they are in order
    n_rows, (first, sums) = np.diff(bounds), np.zeros((2, trace.pass_ids.size))
    starts = bounds[:-1][n_rows > 0]
    first[n_rows > 0] = np.minimum.reduceat(trace.row_position, starts)
    sums[n_rows > 0] = np.add.reduceat(trace.row_position, starts, dtype=float)
    context = sums / np.maximum(1, n_rows) + 1.0
    batch, n_tokens = np.diff(trace.member_offsets), trace.pass_tokens.astype(np.float64)
    in_turn = (trace.pass_kind == PREFILL) & (semantics.prefill == "token-major")
    is_prompt = (trace.pass_kind == PREFILL) & ~in_turn
    requests = np.minimum(batch, n_tokens)  # of which each decodes: a verify pass has more tokens than it has requests
    return Tokens(
        decodes=np.where(is_prompt, 0.0, np.where(in_turn, 1.0, requests)),
        nodes=np.where(is_prompt | in_turn, 1.0, n_tokens / np.maximum(1, requests)),
        context=np.where(is_prompt, 0.0, context),
        prompt=np.where(is_prompt, n_tokens, 0.0),
        prompts=np.where(is_prompt, batch, 1),
        before=np.where(is_prompt, first, 0.0),
        turns=passes_over_weights(trace, semantics),
    )


def passes_over_weights(trace: Trace, semantics: Semantics) -> Ints:
    """(p,) how often a pass reads the non-expert weights: once, or once per token in token-major prefill."""
    if semantics.prefill == "token-major":
        return np.where(trace.pass_kind == PREFILL, trace.pass_tokens, 1)
    return np.ones(trace.pass_ids.size, np.int64)


def _others(trace: Trace, how: Pricing, blocks: Blocks) -> Work:
    """All but the routed experts; of a tape without widths, or whose attention is not known, the bytes that it records."""
    if trace.geometry.is_counted:
        stored = format_of(trace.geometry, how.weight_format)
        return steps_of(trace.geometry, how.machine, tokens_of(trace, how.semantics), (), blocks, stored)
    by_layer = np.array(trace.geometry.non_expert_bytes_by_layer(how.weight_format), np.float64)
    n_bytes = passes_over_weights(trace, how.semantics)[:, None] * by_layer
    rows = (Rows(kind="proj", name="other weights", tier="weights_home", engine="main", bytes=n_bytes),)
    return Work(n_steps=trace.pass_ids.size, n_blocks=blocks.n, rows=rows)


def format_of(geometry: Geometry, weight_format: str) -> str:
    """Of the weights but the experts, and of what experts are computed with; one byte a weight where an engine recorded sizes and
    the tape has no widths to tell theirs by."""
    return geometry.value_format(weight_format) if geometry.expert_params else "int8"


def _experts(trace: Trace, how: Pricing, blocks: Blocks, found: Floats) -> tuple[Rows, ...]:
    """Experts read by the main engine, and those that are missing fetched before or, overlapped, ahead."""
    n_lookups, _, looked_up, missed, n_fetches = found
    n, layers = trace.pass_ids.size, len(trace.geometry.moe_layers)
    tokens, stored = trace.pass_tokens[:, None], format_of(trace.geometry, how.weight_format)
    chosen: Values = tokens * float(trace.geometry.top_k)
    if trace.pass_tokens.sum() * trace.geometry.top_k * layers != trace.ids.size:  # some rows are not there
        at = trace.row_pass.astype(np.int64) * layers + trace.row_layer
        chosen = np.bincount(at, np.diff(trace.offsets), n * layers).reshape(n, layers)
    if (n_lookups == n_lookups[:, :1]).all() and (looked_up == looked_up[:, :1]).all():  # one token's: priced once for all layers
        n_lookups, looked_up = n_lookups[:, :1], looked_up[:, :1]
    rows = experts_of(trace.geometry, how.machine, blocks, tokens, n_lookups, chosen, looked_up, weight_format=stored)
    return (*fetched(how.machine, blocks, missed, n_fetches, how.semantics.fetching == "overlapped"), *rows)


def fetched(machine: HardwareSpec, blocks: Blocks, missed: Values, n_fetches: Values, is_ahead: bool) -> tuple[Rows, ...]:
    """Missing experts, moved from their home into the cache before they are used or, told ahead, while other layers compute.

    Bytes and reads broadcast to (S, MoE blocks). Nothing on a machine without a cache: experts are read at home.
    """
    if not machine.roles.expert_cache or not np.any(missed):
        return ()
    return (
        Rows(
            kind="prefetch" if is_ahead else "fetch",
            name="fetch missing experts",
            tier="expert_home",
            target="expert_cache",
            blocks=blocks.moe,
            bytes=missed,
            count=n_fetches,
        ),
    )
