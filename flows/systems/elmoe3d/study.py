"""The ELMoE-3D study: Table 3 under every fit and hit law, sweeps past it, baselines, energy; what tapes and a live model say.

Constants are read from hw/fits/elmoe3d-*.toml (`tokentape calibrate elmoe3d`); nothing is fitted here but the refits that tell
what a fit without some rows would have predicted. Closed forms and tapes take seconds; the live model, minutes. Every tape of the
store is replayed, and one synthetic tape per model of the paper, since its own traces are not public.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

import numpy as np
import polars as pl

from tokentape.capture.synthetic import profiles as synthetic
from tokentape.capture.synthetic.calibrate import spread
from tokentape.capture.synthetic.generator import Generator
from tokentape.capture.synthetic.tape import SynthesisSettings, synthesize
from tokentape.flows.answers import Row, answered, bars_held, numbers, queried
from tokentape.flows.grid import load_hardware, load_trace
from tokentape.flows.running import Running
from tokentape.flows.systems.elmoe3d.settings import CHANGES, PAPER, POINTS, Settings, changed, setup_of
from tokentape.hw import profile as profiles
from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.sourced import Sourced
from tokentape.replay.elmoe3d import rows as views
from tokentape.replay.elmoe3d.checks import HONESTY, held_out, link_checks, low_bits
from tokentape.replay.elmoe3d.events import of_tape, played, texts_of
from tokentape.replay.elmoe3d.fit import cells
from tokentape.replay.elmoe3d.laws import touched, weights_of
from tokentape.replay.elmoe3d.points import EAGLE, ELASTIC, OPTIONAL, QUANT, Setup, points_of
from tokentape.replay.elmoe3d.runs import ALL_THAT_MAY
from tokentape.replay.elmoe3d.tape import coverage, drafted_point, implied, law_of, misses
from tokentape.replay.elmoe3d.work import findings
from tokentape.replay.serving.coverage_points import points as coverage_points
from tokentape.replay.trace import DECODE, Trace
from tokentape.warehouse import models
from tokentape.warehouse.load import claims
from tokentape.warehouse.model_sizes import decode_params, total_params
from tokentape.warehouse.tape import Store

__all__ = ["Settings", "run"]
SKEW_AT = 16  # tokens of different requests: the batch that the exponent of a fit is read off
EXPONENTS = ("exponent_mean", "exponent_min", "exponent_max")
HIT_MODELS = ("paper_law", "physical")  # that answer claims
DRAFTED_BY = {"eagle": EAGLE, "elastic": ELASTIC, "quant": QUANT}  # of a capture's settings
OF_TABLE_3 = ("answers", *(f"elmoe3d_{name}" for name in ("mapping", "platforms", "energy", "intensity", "checks")))  # views
Rows = dict[str, list[dict[str, Any]]]


def run(at: Running) -> list[Row]:
    """The answers; without the live model, by what was measured in it before. The closed forms are written first, with what
    enters the pool by events of the tapes that are drawn.

    Says the errors against the paper, and what to know before trusting them.
    """
    study = at.study
    if at.in_model:
        from tokentape.flows.systems.elmoe3d import live  # needs torch
    inside = live.jobs(study) if at.in_model else []
    at.expect(["closed forms"], inside, ["tapes"])
    setup, table, fits = setup_of(study), cells(claims().to_pylist()), study.load_fits()
    drawn = tapes_drawn(study, at.store, setup, fits[study.headline], ran(setup, table))
    made = closed_forms(study, setup, table, list(fits.values()), [row for rows in drawn.values() for row in rows])
    at.write(made)
    beside = [said for machine in setup.machines.values() for said in findings(machine)]
    at.tell([*([] if study.is_copy else summary(study, made["elmoe3d_checks"])), *dict.fromkeys(beside)])
    at.did("closed forms")
    if at.in_model:
        dict(at.each(live.run_job, inside))
    made |= _from_tapes(at, setup, fits[study.headline], made["elmoe3d_points"], ran(setup, table), drawn)
    made["answers"] += [] if study.is_copy else live_answers(study, study.rows(at.store, POINTS))
    at.write(made)
    at.did("tapes")
    return made["answers"]


def live_answers(study: Settings, points: list[Row]) -> list[Row]:
    """points: rows of acceptance_points; without those of the pools their claim stays open."""
    return answered([study.live_answers], PAPER, {POINTS: points})


def ran(setup: Setup, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of the table whose model and machine are the study's: of a copy, some or none."""
    machine = pl.col("hb_gb").cast(pl.String)
    return table.filter(pl.col("model").is_in(list(setup.models)) & machine.is_in(list(setup.machines)))


def sweep_points(study: Settings, setup: Setup, table: pl.DataFrame, fit: ELMoE3DConstants) -> tuple[pl.DataFrame, Setup]:
    """Past the paper, at the headline's fit, with the machines that they run on. Acceptance is the paper's at the nearest batch
    below, of the model that this one is like, unless it is given.

    Raises ValueError for a model whose acceptance the paper does not have.
    """
    known = table.select("hb_gb", "scheme", pl.col("batch").cast(pl.Int64), like="model", known="alpha").sort("batch")
    like, machines, made = {one.name: one.like or one.name for one in study.models}, dict(setup.machines), []
    others = {name: OPTIONAL[name] for name in ("hit_model", "context_tokens", "alpha")} | dict.fromkeys(CHANGES)
    for grid in study.grid:
        given = pl.DataFrame(list(grid.points(model=tuple(setup.models), **others)), infer_schema_length=None)
        sizes = pl.DataFrame({"hb_gb": sorted(study.machines) if grid.on_all else [max(study.machines)]})
        points = sizes.join(given, how="cross").with_columns(like=pl.col("model").replace(like), series=pl.lit(grid.series))
        near = points.sort("batch").join_asof(known, on="batch", by=("hb_gb", "like", "scheme"), check_sortedness=False)
        near = near.with_columns(pl.coalesce("alpha", "known"), machine=pl.struct("hb_gb", *CHANGES).struct.json_encode())
        for model, of, scheme in near.filter(pl.col("alpha").is_null()).select("model", "like", "scheme").rows():
            raise ValueError(f"study {study.name}: the paper has no acceptance of {of} under {scheme}; say `like` of {model}")
        for key, gb, *values in near.select("machine", "hb_gb", *CHANGES).unique().rows():
            machines[key] = setup.machines[str(gb)]
            for name, value in zip(CHANGES, values, strict=True):
                machines[key] = machines[key] if value is None else changed(machines[key], name, value)
        made.append(points_of(near.drop("known", *CHANGES), fit, like="like"))
    made.append(points_of(ran(setup, table), fit, accepted_form="chain", series="accepted-form"))
    return pl.concat(made, how="diagonal_relaxed"), replace(setup, machines=machines)


def written(study: Settings, drawn: Sequence[Row]) -> Sourced:
    """Of the missed slices that may enter the pool of the machine that is ours, those that do: mean, least and most of rows of
    elmoe3d_points by events. Without any: bounds."""
    hardware = study.machines[study.platforms.ours_gb]
    found = [row[views.WRITTEN] for row in drawn if row["hardware"] == hardware and row[views.WRITTEN] is not None]
    return Sourced(value=mean(found), low=min(found), high=max(found), source="drawn tapes") if found else ALL_THAT_MAY


def closed_forms(
    study: Settings, setup: Setup, table: pl.DataFrame, fits: list[ELMoE3DConstants], drawn: Sequence[Row] = ()
) -> Rows:
    """Rows of every table that needs no tape, and of elmoe3d_points those that are drawn. fits: the headline's first."""
    headline, mine, profile = fits[0], ran(setup, table), profiles.load(study.profile)
    past, machines = sweep_points(study, setup, table, headline)
    laws = pl.DataFrame({"hit_model": study.hit_models}).join(mine, how="cross", maintain_order="left_right")
    every = pl.concat([*(points_of(laws, fit, series=views.TABLE_SERIES) for fit in fits), past], how="diagonal_relaxed")
    found = views.evaluated(every, machines, profile)
    made: Rows = {name: [] for name in OF_TABLE_3} | {"elmoe3d_points": [*views.point_rows(found, machines), *drawn]}
    if mine.is_empty():  # a copy with other models: Table 3, the mapping and the platforms are of the paper's
        return made
    specs = {views.OURS: load_hardware(study.machines[study.platforms.ours_gb])}
    specs |= {name: load_hardware(name) for name in study.platforms.baselines}
    ran_on = views.platforms(study.platforms, specs, setup, mine, headline, HIT_MODELS, profile, written(study, drawn))
    made |= {
        "elmoe3d_mapping": views.mapping_rows(points_of(mine, headline), setup),
        "elmoe3d_platforms": views.platform_rows(ran_on).to_dicts(),
        "elmoe3d_energy": views.energy_rows(study.platforms, ran_on).to_dicts(),
        "elmoe3d_intensity": views.intensity_rows(study.platforms, setup, mine, headline, profile),
    }
    if study.is_copy:
        return made
    at = {"level": headline.level, "fit": headline.rows, "hit_model": study.hit_models[0]}
    beside = [*link_checks(mine, setup, headline, study.platforms.headline_verify_nodes), *held_out(mine, setup, headline)]
    made["elmoe3d_checks"] = check_rows(study, made["elmoe3d_points"]) + [check | at for check in beside]
    asked = {
        "headline": [at | asdict(study.platforms) | {"name": study.headline}],
        "machines": numbers([*specs.values(), *setup.machines.values()]),
        "models": [sizes(model.name) for model in study.models],
        "runs": ran_on.to_dicts(),
        "low_bits": low_bits(),
    }
    return {**made, "answers": answered(study.answers, PAPER, made | asked)}


def check_rows(study: Settings, points: list[Row]) -> list[Row]:
    """Rows of elmoe3d_checks: of every fit and hit law of Table 3's points, rows of elmoe3d_points."""
    bars = [{"block": block, "bar_low": low, "bar_high": high} for block, (low, high) in study.bars.items()]
    return queried(study.checks, PAPER, {"elmoe3d_points": points, "bars": bars}, "elmoe3d_checks")


def sizes(model: str) -> Row:
    """Of a model, by metric of a claim; parameters in billions."""
    geometry = models.load(model).geometry
    params = {"total_params": total_params(geometry) / 1e9, "active_params": decode_params(geometry) / 1e9}
    experts = {"routed_experts": geometry.n_experts, "shared_experts": geometry.n_shared_experts, "top_k": geometry.top_k}
    return {"model_id": model, **params, **{name: float(count) for name, count in experts.items()}}


def _skewed(model: str, fit: ELMoE3DConstants, seed: int) -> synthetic.Profile:
    """How a model's tape is drawn: with the popularity at which the fit has SKEW_AT tokens touch as many experts."""
    geometry = models.load(model).geometry
    drawn = synthetic.profile(model, geometry)
    if model not in fit.laws or not isinstance(drawn.generator, Generator):
        return drawn
    weights = weights_of([(geometry.n_experts, geometry.top_k, fit.laws[model].exponent)])
    experts = float(touched(weights, np.array([float(SKEW_AT)]))[0])
    generator = spread(drawn.generator, geometry, SKEW_AT, experts, seed)
    sources = drawn.statistics["sources"] | {
        "sd_b": f"{SKEW_AT} tokens touch {experts:.1f} experts of a layer, as {fit.name} has it"
    }
    return replace(
        drawn, generator=generator, statistics=drawn.statistics | {"parameters": asdict(generator), "sources": sources}
    )


def drawn_rows(trace: Trace, study: Settings, setup: Setup, fit: ELMoE3DConstants, cells: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of elmoe3d_points, series table-3: of a tape of the model, at the paper's acceptance, by events."""
    of, texts, profile = study.tapes, texts_of(trace), profiles.load(study.profile)
    assert of
    rows = []
    for cell in points_of(cells.filter(pl.col("batch") <= len(texts.tokens)), fit, series=views.TABLE_SERIES).iter_slices(1):
        rows += views.point_rows(played(cell, setup, profile, texts, of.warm_steps), setup)
    return rows


def tapes_drawn(study: Settings, store: Store, setup: Setup, fit: ELMoE3DConstants, table: pl.DataFrame) -> Rows:
    """A tape per model: by its trace id rows of elmoe3d_points by events, of Table 3 where that has the model."""
    if not (of := study.tapes):
        return {}
    how, made = SynthesisSettings(requests=of.requests, prompt=of.prompt, output=of.output, seed=of.seed, scores=False), Rows()
    for model in study.models:
        trace_id = synthesize(model.name, models.load(model.name).geometry, how, store, drawn=_skewed(model.name, fit, of.seed))
        cells = table.filter(pl.col("model") == model.name)
        made[trace_id] = [] if cells.is_empty() else drawn_rows(load_trace(store, trace_id), study, setup, fit, cells)
    return made


def _from_tapes(
    at: Running, setup: Setup, fit: ELMoE3DConstants, points: list[dict[str, Any]], table: pl.DataFrame, drawn: Rows
) -> Rows:
    """Misses and unique experts of every tape that decodes; adds points by events of every tape that recorded acceptance."""
    study, store = at.study, at.store
    made: Rows = {"elmoe3d_misses": [], "coverage_points": []}
    if not (of := study.tapes):
        return made
    for model, trace_id in zip(study.models, drawn, strict=True):
        cells = table.filter(pl.col("model") == model.name)
        if not cells.is_empty():
            skew = implied(views.evaluated(points_of(cells, fit), setup, study.profile), setup, profiles.load(study.profile))
            shares = [skew[f"experts_{end}"].to_numpy() / setup.models[model.name][0].n_experts for end in ("mean", "min", "max")]
            of_skew = ("implied", trace_id, model.name, "decode", "all", skew["batch"].to_numpy())
            made["coverage_points"] += coverage_points(*of_skew, *shares)
            exponents = [f"{b}: {s:.2f} ({low:.2f} to {high:.2f})" for b, s, low, high in skew.select("batch", *EXPONENTS).rows()]
            at.tell(
                [f"{model.name}: exponent of popularity that Table 3 implies without a cache, by batch {', '.join(exponents)}"]
            )
    for tape in (tape for tape in store.readable() if tape.has("routing") and tape.geometry.moe_layers):
        trace, m = load_trace(store, tape.trace_id), tape.manifest
        if (trace.pass_kind == DECODE).any():
            law = fit.laws.get(m.model_id) or law_of(trace)
            where = {"origin": m.origin, "model_id": m.model_id, "dataset": m.dataset}
            made["elmoe3d_misses"] += misses(trace, where, law, of.batches, of.cache_fracs, of.warm_steps)
            made["coverage_points"] += coverage(trace, m.model_id, law)
        points += measured_rows(store, study, setup, fit, tape.trace_id)
    return made


def measured_rows(store: Store, study: Settings, setup: Setup, fit: ELMoE3DConstants, trace_id: str) -> list[dict[str, Any]]:
    """Rows of elmoe3d_points: a tape's own rounds through the machine, by events, requests side by side in batches; none where
    nothing was drafted by a scheme of the paper."""
    tape = store.open(trace_id)
    drafted = tape.manifest.settings.get("speculation") or {}
    scheme = DRAFTED_BY.get(drafted.get("draft", ""))
    if scheme is None or not (tape.has("rounds") and tape.has("node_routing")) or not study.tapes:
        return []
    tables = {name: tape.read(name) for name in ("rounds", "node_routing")}
    trace, largest, rows = load_trace(store, trace_id), setup.machines[str(max(study.machines))], list[dict[str, Any]]()
    texts, profile = texts_of(trace), profiles.load(study.profile)
    batches = {int(tape.manifest.settings.get("batch_size") or 1), *study.tapes.batches}
    for batch in sorted(batch for batch in batches if batch <= len(texts.tokens)):
        point, own = drafted_point(tape.manifest.model_id, trace, drafted, scheme, batch, largest, fit)
        rounds = of_tape(trace, texts, tables, batch)
        found = played(point.with_columns(series=pl.lit(views.MEASURED)), own, profile, texts, study.tapes.warm_steps, rounds)
        rows += views.point_rows(found, own)
    return rows


def summary(study: Settings, checked: list[dict[str, Any]]) -> list[str]:
    """What was reached against what counts as reproduced, at the headline, and the sentence that belongs beside it."""
    name = study.load_fits()[study.headline]
    law = study.hit_models[0]
    at = [row for row in checked if (row["level"], row["fit"], row["hit_model"]) == (name.level, name.rows, law)]
    errors = {row["block"]: row["value"] for row in at}
    ar, sd = errors["Phi_AR error, open rows, mean"], errors["Phi_SD error, predicted open rows, mean"]
    off = f"{study.headline}: Phi_AR off by {ar:.1%} on open rows, Phi_SD by {sd:.1%} on predicted ones"
    return [f"{off}; {bars_held(at, 'block')}", HONESTY]
