"""What a tape says of itself: the model, the tables, how they were made, and the sum of every file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tables import SCHEMA_VERSION


class BadTape(ValueError):
    """A tape that cannot be read; the message names it, says why and what to do."""


class Manifest(BaseModel):
    """What makes a tape's rows meaningful. Written last; a tape without it is unfinished."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    trace_id: str
    origin: str  # captured | imported | synthetic
    source: str  # model id, file name or generator
    model_id: str
    model_revision: str | None = None
    dataset: str
    geometry: Geometry
    score_rule: str | None = None  # softmax | softmax_topk | sigmoid_bias_groups; None: no scores recorded
    score_params: dict[str, Any] = {}  # norm_topk_prob, routed_scaling_factor, n_group, topk_group, bias per layer
    attention: dict[str, Any] = {}  # reduction, head map, dtype
    tables: tuple[str, ...]
    rows: dict[str, int]
    n_shards: int
    recorded: dict[str, tuple[str, ...]] = {}  # the optional columns of a table that hold anything; written by `finish`
    sha256: dict[str, tuple[str, ...]] = {}  # of every shard, by table, in order; written by `finish`
    weights: dict[str, Any] = {}  # of a model whose weights are quantised, or were: how, and which modules
    tokenizer_sha256: str | None = None
    seed: int | None = None
    settings: dict[str, Any] = {}  # what the capture or import was asked for
    statistics: dict[str, Any] = {}  # what a synthetic tape was fitted to
    flags: dict[str, Any] = {}  # contamination findings: name -> detail
    versions: dict[str, str] = {}
    created_utc: str
