"""A synthetic tape: generated requests written through the store like any other tape, a few requests in memory at a time.

Requests run back to back, one at a time: the prompt is one pass, every further token one. The tape appears whole or not at all:
its manifest is written last, and what a failed or stopped run wrote is removed, by the run itself or by the next of its kind.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata

import pyarrow as pa

from tokentape.capture.importers.rows import tables_of
from tokentape.capture.synthetic.calibrate import HalfCached
from tokentape.capture.synthetic.generator import VERSION
from tokentape.capture.synthetic.profiles import ANCHOR, Profile, profile
from tokentape.capture.synthetic.routes import Length, routes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store, TapeWriter

TABLES = ("requests", "tokens", "passes", "routing", "scores")
SHARD_VALUES = 2**24  # numbers of the widest column held in memory: 64 MiB as f32
MOST_VALUES = 2**28  # of one request
PACKAGES = ("tokentape", "numpy", "pyarrow")
DATASET = "synthetic"


@dataclass(frozen=True)
class SynthesisSettings:
    """Everything that decides a tape, beside the model. prompt, output: tokens of every request; scores: keep all logits."""

    requests: int = 8
    prompt: int = 500
    output: int = 128
    seed: int = 0
    scores: bool = True

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("prompt", 1), ("output", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {least} or more")

    @property
    def length(self) -> Length:
        return Length(self.prompt, self.output)

    @property
    def tables(self) -> tuple[str, ...]:
        return TABLES if self.scores else TABLES[:-1]


def synthesize(
    model: str,
    geometry: Geometry,
    settings: SynthesisSettings,
    store: Store,
    progress: Callable[[int, int], None] | None = None,
    shard_requests: int | None = None,
    drawn: Profile | None = None,
) -> str:
    """Writes a tape of `model`'s geometry and returns its trace id; at once if the store already holds it.

    progress: called with requests done and in all. shard_requests: requests per file; None: as many as memory is meant to hold.
    It changes no row. drawn: how requests are drawn; None: as profile() says. Raises ValueError for a dense model and
    for requests too long to hold.
    """
    if not geometry.moe_layers:
        raise ValueError(
            f"{model} is dense: it has no experts to route to; give a mixture-of-experts model (`tokentape models list`)"
        )
    width = geometry.n_experts if settings.scores else geometry.top_k
    per_request = settings.length.n_inputs * len(geometry.moe_layers) * width  # numbers in a request's widest column
    if per_request > MOST_VALUES:
        raise ValueError(
            f"a request of {settings.length.n_inputs:,} tokens holds {per_request:,} numbers, {MOST_VALUES:,} are the most; "
            "lower --prompt or --output, or give --no-scores"
        )
    drawn = drawn or profile(model, geometry)
    writer = store.writer(_trace_id(model, geometry, settings, drawn))
    if writer.is_finished:
        return writer.trace_id
    with writer.whole():
        _write(writer, model, geometry, settings, drawn, progress, shard_requests or max(1, SHARD_VALUES // per_request))
    return writer.trace_id


def _trace_id(model: str, geometry: Geometry, settings: SynthesisSettings, drawn: Profile) -> str:
    """Slug of the model and 8 hex digits of all that decides the rows."""
    shape = geometry.model_dump(mode="json", exclude_defaults=True)  # what later versions add leaves the id of other models alone
    decides = [VERSION, shape, asdict(settings), asdict(drawn)]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-") or "model"
    return f"{slug}-synthetic-{digest[:8]}"


def _write(
    writer: TapeWriter,
    model: str,
    geometry: Geometry,
    settings: SynthesisSettings,
    drawn: Profile,
    progress: Callable[[int, int], None] | None,
    shard_requests: int,
) -> None:
    half_cached = HalfCached(geometry)
    starts = range(0, settings.requests, shard_requests)
    for shard, first in enumerate(starts):
        made: list[dict[str, pa.Table]] = []
        for request in range(first, min(first + shard_requests, settings.requests)):
            rows, scores = routes(
                drawn.generator, drawn.score_rule, drawn.score_params, geometry,
                settings.seed, request, settings.length, settings.scores,
            )  # fmt: skip
            half_cached.advance(rows)
            tables = tables_of(rows, DATASET, {request: settings.output}, {})
            if scores is not None:
                column = pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), scores.shape[1])  # not copied
                tables["scores"] = tables["routing"].select(["request_id", "position", "layer"]).append_column("scores", column)
            made.append(tables)
            if progress is not None:
                progress(request + 1, settings.requests)
        writer.write_shard(shard, {name: pa.concat_tables([of[name] for of in made]) for name in settings.tables})
    achieved = {"anchor": ANCHOR, "lru_miss_frac": half_cached.miss_frac, "n_lookups": half_cached.n_lookups}
    writer.finish(
        settings.tables,
        len(starts),
        origin="synthetic",
        source=f"capture.synthetic, generator version {VERSION}",
        model_id=model,
        dataset=DATASET,
        geometry=geometry,
        score_rule=drawn.score_rule,
        score_params=drawn.score_params,
        seed=settings.seed,
        settings=asdict(settings),
        statistics={**drawn.statistics, "achieved": achieved},
        versions={name: metadata.version(name) for name in PACKAGES},
    )
