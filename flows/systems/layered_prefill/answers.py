"""What the study's points say about the paper's numbers: rows of view `answers`, one per claim and mode.

Mode `paper` counts as the paper's tables do; `physical` stands beside it where the paper's own numbers disagree on the counting.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tokentape.flows.answers import Row, answer, stated
from tokentape.flows.serving.setup import Point, engine_of
from tokentape.replay.serving.facts import PAPER
from tokentape.replay.serving.knees import Curve
from tokentape.warehouse.tape import Store

if TYPE_CHECKING:
    from tokentape.flows.systems.layered_prefill.study import Job, Settings

Values = Mapping[str, tuple[float, float | None, float | None]]  # metric -> value, low, high
SI = {"s": 1.0, "ms": 1e-3, "percent": 1e-2, "GB": 1e9, "TB": 1e12, "mJ": 1e-3}  # other units: as they are
ONE_MATRIX = "expert_load_total_100req"  # fits the paper only with one of an expert's three matrices counted (docs)
HELD = 0.9  # of the requests: the paper's line
LEAD, CLEAR_LEAD = "slo_clear_advantage_rate", 0.5  # the latter assumed
CHUNK = 512


def answers(store: Store, study: Settings, points: Mapping[Job, Values]) -> list[Row]:
    """points: of each job that may answer. Raises ValueError for a pattern of the study file that names no claim."""
    claims = stated(PAPER)
    rows: list[Row] = []
    for job, found in points.items():
        for pattern in job.claims:
            ids = fnmatch.filter(claims, f"{PAPER}/{pattern}")
            if not ids:
                raise ValueError(f"study {study.name}, series {job.series}: no claim is named {PAPER}/{pattern}")
            rows += [row for claim_id in ids for row in _of_point(study, claims[claim_id], job, found)]
    return [*rows, *_largest(study, points), *_steps(store, study), *knees(study, points)]


def _of_point(study: Settings, claim: Row, job: Job, found: Values) -> Iterator[Row]:
    metric = study.metrics[claim["metric"]]
    unit = (-1.0 if metric.startswith("-") else 1.0) / SI.get(claim["unit"], 1.0)
    ends = [None if end is None else end * unit for end in found[metric.lstrip("-")]]
    how = f"{metric.lstrip('-')}, {job}, {f'{job.point.n_seeds} seeds' if job.point.n_seeds > 1 else 'one run'}"
    if claim["metric"] == ONE_MATRIX:
        third = [None if end is None else end / 3.0 for end in ends]
        yield _answer(claim, third, f"{how}; one of an expert's three matrices counted")
        yield _answer(claim, ends, f"{how}; whole experts counted", "physical")
    else:
        yield _answer(claim, ends, how)


def _largest(study: Settings, points: Mapping[Job, Values]) -> Iterator[Row]:
    """The abstract's largest reductions, over all points that are compared with another."""
    compared = [(job, found) for job, found in points.items() if job.against]
    for claim in stated(PAPER).values():
        if claim["location"] == "Abstract" and compared:
            metric = study.metrics[claim["metric"]].lstrip("-")
            job, found = min(compared, key=lambda pair: pair[1][metric][0])
            ends = [None if end is None else -end / SI[claim["unit"]] for end in found[metric]]
            yield _answer(claim, ends, f"most over the compared points: {job}, {job.point.model}")


def _steps(store: Store, study: Settings) -> Iterator[Row]:
    """Decode-only iterations, and Table 1 itself, which the engine reads."""
    for name, (batch, context) in study.decode_steps.items():
        claim = stated(PAPER)[f"{PAPER}/{name}"]
        point = Point(scheduler="chunked", model=claim["claim_id"].split("/")[3], profile=study.profile)
        seconds = engine_of(store, point).cost.decode_step_s(batch, context) / SI[claim["unit"]]
        yield answer(claim["claim_id"], seconds, f"an iteration of {batch} decodes at {context} tokens of context")
    cost = engine_of(store, Point(scheduler="chunked", profile=study.profile)).cost
    for claim in stated(PAPER).values():
        if claim["metric"] == "expert_coverage":
            n = int(claim["setting"].split("batch")[1].lstrip(">="))
            share = float(cost.cov_decode[n, 0]) / SI[claim["unit"]]
            yield answer(claim["claim_id"], share, "an input: the engine reads this table")


def knees(study: Settings, points: Mapping[Job, Values]) -> Iterator[Row]:
    """Sections 5.2 and 5.3, as far as the study sweeps: where attainment falls."""
    sweeps = {job.series: job for job in points if job.last_rate is not None}
    for sweep in sweeps.values():
        for claim in stated(PAPER).values():
            of_sweep = f"/{sweep.point.model}/{sweep.point.workload}-" in claim["claim_id"]
            if of_sweep and claim["metric"] in {*study.drops, *study.holds, LEAD}:
                yield _answer(claim, *_rate(study, points, sweep, claim))
    for workload in dict.fromkeys(sweep.point.workload for sweep in sweeps.values()):
        claim = stated(PAPER)[f"{PAPER}/sec-5.2/mean_decode_batch/{workload}-slo-attainment-90-models-both"]
        met = [
            found["decode_batch_mean"]
            for job, found in points.items()
            if job.series in sweeps and job.point.workload == workload and found["slo_frac"][0] > HELD
        ]
        if met:
            yield _answer(claim, list(max(met)), f"largest of {len(met)} swept points with more than {HELD:.0%} within limits")
    held = {series: [_curve(points, series, name).falls_below(HELD)[0] for name in ("layered", "chunked")] for series in sweeps}
    gains = {series: ours / theirs - 1.0 for series, (ours, theirs) in held.items()}
    for name, pick in (("min", min), ("max", max)) if gains else ():
        series = pick(gains, key=lambda series: gains[series])
        how = f"rate at which {HELD:.0%} are within limits, layered over chunked {CHUNK}; {name} of the sweeps: {series}"
        yield answer(f"{PAPER}/sec-5.2/capacity_gain/{name}/layered-vs-chunked-models-both", 100.0 * gains[series], how)


def _rate(study: Settings, points: Mapping[Job, Values], sweep: Job, claim: Mapping[str, Any]) -> tuple[list[float | None], str]:
    """The rate that a claim asks for, with its band, and how it was read."""
    metric, series, last = claim["metric"], sweep.series, sweep.last_rate or 0.0
    scheduler = "layered" if claim["claim_id"].endswith("-layered") else "chunked"
    if metric in study.drops:
        share = study.drops[metric]
        rates = _curve(points, series, scheduler).falls_below(share)
        return [*rates], f"attainment of {scheduler} falls below {share:.0%}; {series}"
    if metric in study.holds:
        of, share = "slo_ttft_frac" if metric.startswith("no_ttft") else "slo_frac", study.holds[metric]
        rates = _curve(points, series, scheduler, of).falls_below(share)
        how = f"{of} of {scheduler} stays at {share:.0%} to {rates[0]:.3g}/s; the paper sweeps to {last:g}"
        return [min(rate, last) for rate in rates], how
    ours, theirs = (_curve(points, series, name) for name in ("layered", "chunked"))
    return [*theirs.led_by(ours).falls_below(1.0 - CLEAR_LEAD)], f"layered leads chunked by {CLEAR_LEAD:.0%}; {series}"


def _curve(points: Mapping[Job, Values], series: str, scheduler: str, metric: str = "slo_frac") -> Curve:
    """Of the swept points of a scheduler, by rate; of chunked those of the one chunk."""
    return Curve.of(
        (job.point.rate_per_s or 0.0, found[metric])
        for job, found in points.items()
        if job.series == series and job.point.scheduler == scheduler and job.point.params.get("chunk_tokens", CHUNK) == CHUNK
    )


def _answer(claim: Mapping[str, Any], ends: list[float | None], how: str, mode: str = "paper") -> Row:
    """ends: value, and the band's two ends in any order."""
    value, *band = ends
    assert value is not None
    return answer(claim["claim_id"], value, how, mode, band)
