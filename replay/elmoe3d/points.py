"""Points of ELMoE-3D's space: rows of a frame, a model on a machine under a scheme, at a batch and a context; and as arrays."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.elmoe3d_constants import ROWS, ELMoE3DConstants
from tokentape.hw.spec import HardwareSpec, MemTier
from tokentape.hw.work import Floats, Ints
from tokentape.replay.elmoe3d.laws import FORMS, HIT_LAWS, weights_of
from tokentape.warehouse.formats import EXPERT_FORMATS, value_bytes
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.model_sizes import kv_bytes, static_bytes

Flags = NDArray[np.bool_]
EAGLE, SLM, QUANT, ELASTIC = SCHEMES = ("EAGLE3", "SLM-SD", "Quant-SD", "Elastic-SD")
CONTEXT_TOKENS = 1024  # of a sequence, in every row of the paper
KV_FORMAT, STATIC_FORMAT, DRAFT_FORMAT = "int8", "int8-g32", "int4"  # of keys and values, of the target and of its draft
BYTES_PER_PARAM = EXPERT_FORMATS[STATIC_FORMAT]
DRAFT_FRAC = EXPERT_FORMATS[DRAFT_FORMAT] / BYTES_PER_PARAM  # bytes of a 4-bit copy over the INT8 original
# Of published EAGLE-3 heads (RedHatAI's and SpecForge's, of Qwen3-30B-A3B and gpt-oss-20b): values, hidden states, output tokens.
HEAD_FORMAT, FUSED_STATES, HEAD_VOCAB = "fp16", 3, 32_000
SLICE_FRAC = 0.5  # bytes of an MSB or an LSB slice over its INT8 expert, the scale split evenly
SLICED_FORMATS = (STATIC_FORMAT,)  # whose experts split into an MSB and an LSB slice of equal size; MXFP4 is never sliced
# Columns of points beside model, machine, scheme, batch and a fit's, and what they are where nothing is said. verify_nodes,
# draft_nodes: tokens that a step computes per request, nodes of the tree that are verified, and drafted in one step; 0 leaves
# operations of both out, as the paper's table seems to.
OPTIONAL: dict[str, Any] = {
    "alpha": None,
    "accepted_len": None,
    "accepted_form": "linear",
    "context_tokens": CONTEXT_TOKENS,
    "hit_model": "paper_law",
    "verify_nodes": 0.0,
    "draft_nodes": 0.0,
}
OF_FIT = ("beta", "own_table", "verify_tokens", "draft_tokens", "growth", "fade", "n_draft_steps")
NUMBERS = (*OF_FIT, "batch", *(name for name in OPTIONAL if name not in ("accepted_form", "hit_model")))
CHOICES = {"scheme": ("scheme", SCHEMES), "hit_model": ("hit model", HIT_LAWS), "accepted_form": ("form of acceptance", FORMS)}
RANGES = {
    **dict.fromkeys(("batch", "context_tokens"), (1.0, np.inf, "at least 1")),
    "accepted_len": (0.0, np.inf, "at least 0"),
    "alpha": (0.0, 1.0, "between 0 and 1"),
}


@dataclass(frozen=True)
class Setup:
    """What a frame of points names: models with the format of their experts, machines (those of the paper by GB of HB), and the
    small model of SLM-SD, dense."""

    models: Mapping[str, tuple[Geometry, str]]
    machines: Mapping[str, HardwareSpec]
    drafter: Geometry | None = None


@dataclass(frozen=True, eq=False)
class Group:
    """Points of one model on one machine; at: their indices."""

    machine: HardwareSpec
    geometry: Geometry
    drafter: Geometry | None
    at: Ints


@dataclass(frozen=True, eq=False)
class Points:
    """n points as (n,) arrays; weights: (n, N) of laws.py; hit_model: (n,) names.

    static_bytes: everything but routed experts that a decode step reads; embedding_bytes: the input table, which only takes room.
    hb_bytes: capacity of the experts' cache, infinite where the machine has none. verify_nodes, draft_nodes: 0 where operations
    are left out.
    """

    static_bytes: Floats
    embedding_bytes: Floats
    kv_bytes: Floats
    expert_bytes: Floats
    n_layers: Floats
    n_experts: Floats
    is_sliced: Flags
    hb_bytes: Floats
    is_eagle: Flags
    is_slm: Flags
    is_quant: Flags
    batch: Floats
    context_tokens: Floats
    beta: Floats
    head_read_bytes: Floats
    own_table: Floats
    slm_bytes: Floats
    slm_read_bytes: Floats
    slm_kv_bytes: Floats
    verify_tokens: Floats
    draft_tokens: Floats
    growth: Floats
    fade: Floats
    n_draft_steps: Floats
    accepted_len: Floats
    verify_nodes: Floats
    draft_nodes: Floats
    weights: Floats
    hit_model: NDArray[np.str_]
    groups: tuple[Group, ...]

    @property
    def head_bytes(self) -> Floats:
        """Of EAGLE's head at rest."""
        return self.head_read_bytes + self.own_table * self.embedding_bytes

    @property
    def is_elastic(self) -> Flags:
        return ~(self.is_eagle | self.is_slm | self.is_quant)

    @property
    def is_self(self) -> Flags:
        """The model drafts for itself."""
        return self.is_quant | self.is_elastic

    def __len__(self) -> int:
        return len(self.batch)


def cache_of(machine: HardwareSpec) -> MemTier:
    """The tier in front of the experts' home; without one, that home."""
    return machine.tiers[machine.roles.expert_cache or machine.roles.expert_home]


def points_of(table: pl.DataFrame, fit: ELMoE3DConstants, like: str = "model", **changed: Any) -> pl.DataFrame:
    """Rows of Table 3, or rows with columns of its names, as points under a fit. like: the column with the model whose law is
    taken; changed: columns, each with the one value that it has instead. Raises ValueError for a model without a law."""
    for model in set(table[like]) - fit.laws.keys():
        raise ValueError(f"no hit law is fitted for {model}; give its beta and exponent, or one of {', '.join(fit.laws)}")
    laws = [{like: model, **asdict(law), **asdict(fit.speculation)} for model, law in fit.laws.items()]
    placed = table if "machine" in table.columns else table.with_columns(machine=pl.col("hb_gb").cast(pl.String))
    named = placed.with_columns(level=pl.lit(fit.level), fit=pl.lit(fit.rows or ROWS[0]))
    found = named.join(pl.DataFrame(laws), on=like, how="left", maintain_order="left")
    missing = {name: value for name, value in OPTIONAL.items() if name not in found.columns}
    return found.with_columns(pl.lit(value).alias(name) for name, value in (missing | changed).items())


def as_points(frame: pl.DataFrame, setup: Setup) -> Points:
    """The points as arrays. Acceptance is `alpha`, which `accepted_form` turns into tokens, or a measured mean `accepted_len` per
    round without the bonus token. A layer counts where it has experts.

    Raises ValueError for none, and naming what is impossible of a point; an unknown acceptance is not 0.
    """
    of = frame.with_columns(pl.col(NUMBERS).cast(pl.Float64))
    _check(of, setup)
    named = list(zip(of["model"], of["machine"], strict=True))
    number = {pair: i for i, pair in enumerate(dict.fromkeys(named))}
    kind = np.array([number[pair] for pair in named])
    firsts = [(setup.models[model], setup.machines[machine]) for model, machine in number]
    rooms = [cache_of(m).capacity_bytes.value * m.n_devices if m.roles.expert_cache else np.inf for _, m in firsts]
    shared = [{**_sizes(*of), **_drafter(setup.drafter), "hb_bytes": room} for (of, _), room in zip(firsts, rooms, strict=True)]
    columns: dict[str, Any] = {
        name: np.array([of[name] for of in shared], bool if name.startswith("is_") else np.float64)[kind] for name in shared[0]
    }
    numbers = {name: of[name].to_numpy() for name in NUMBERS}
    alpha, measured, steps = numbers.pop("alpha"), numbers.pop("accepted_len"), numbers["n_draft_steps"]
    columns |= numbers | {f"is_{name}": (of["scheme"] == scheme).to_numpy() for name, scheme in _FLAGS.items()}
    told = [(of["accepted_form"] == name).to_numpy() for name in FORMS]
    by_form = np.select(told, [count(alpha, steps) for count in FORMS.values()], np.nan)
    columns["accepted_len"] = np.where(np.isnan(measured), by_form, measured)
    geometries = [geometry for (geometry, _), _ in firsts]
    for name, each in (("kv_bytes", geometries), ("slm_kv_bytes", [setup.drafter] * len(firsts))):
        columns[name] = columns["batch"] * _kv_bytes(each, kind, columns["context_tokens"])
    routed = [(geometry.n_experts, geometry.top_k) for geometry in geometries]
    weights = weights_of([(*routed[i], exponent) for i, exponent in zip(kind.tolist(), of["exponent"], strict=True)])
    groups = _groups([(geometry, machine) for (geometry, _), machine in firsts], setup.drafter, kind)
    return Points(**columns, weights=weights, hit_model=of["hit_model"].to_numpy().astype(str), groups=groups)


_FLAGS = {"eagle": EAGLE, "slm": SLM, "quant": QUANT}


def _check(of: pl.DataFrame, setup: Setup) -> None:
    if of.is_empty():
        raise ValueError("no points to evaluate")
    wrong = {
        f"{words} {{{name}!r}} is unknown; choose {', '.join(known)}": ~_is(name, known)
        for name, (words, known) in CHOICES.items()
    }
    for name, (least, most, words) in RANGES.items():
        number = pl.col(name)
        wrong[f"{name} is {{{name}:g}}; it must be {words}"] = ~((number >= least) & (number <= most) & number.is_finite())
    no_experts = [model for model in set(of["model"]) if not setup.models[model][0].moe_layers]
    wrong["{model} has no experts; ELMoE-3D speculates on a mixture of experts"] = _is("model", no_experts)
    wrong[f"scheme {SLM} needs the small model as drafter"] = _is("scheme", [SLM] if setup.drafter is None else [])
    unknown = pl.col("alpha").is_null() & pl.col("accepted_len").is_null()
    wrong["{model}, {scheme}, batch {batch:g}: the acceptance is unknown; give alpha or accepted_len"] = unknown
    found = of.select(expr.fill_null(False).any().alias(words) for words, expr in wrong.items()).row(0, named=True)
    for words in (words for words, is_wrong in found.items() if is_wrong):
        raise ValueError(words.format(**of.filter(wrong[words]).row(0, named=True)))


def _is(name: str, known: Collection[str]) -> pl.Expr:
    return pl.col(name).is_in(list(known))


@lru_cache
def _sizes(geometry: Geometry, expert_format: str) -> dict[str, float]:
    return {
        "static_bytes": static_bytes(geometry, STATIC_FORMAT),
        "embedding_bytes": value_bytes(geometry.vocab * geometry.hidden, HEAD_FORMAT),
        "head_read_bytes": value_bytes(eagle_params(geometry), HEAD_FORMAT),
        "expert_bytes": geometry.expert_bytes(expert_format)[0],
        "n_layers": len(geometry.moe_layers),
        "n_experts": geometry.n_experts,
        "is_sliced": expert_format in SLICED_FORMATS,
    }


def eagle_params(g: Geometry) -> int:
    """Weights that a step of an EAGLE-3 head reads (arXiv 2503.01840, section 3): three hidden states fused to one, a dense layer
    as wide as the target's whose attention takes the token's embedding beside it, and an output head of fewer tokens."""
    h = g.hidden
    attention = g.model_copy(update={"hidden": 2 * h}).attention_params - g.n_heads * (g.v_head_dim or g.head_dim) * h
    return attention + h * (FUSED_STATES * h + 3 * g.dense_intermediate + min(HEAD_VOCAB, g.vocab))


@lru_cache
def _drafter(geometry: Geometry | None) -> dict[str, float]:
    """At rest its output head is its input table, kept in FP16 and read as INT8."""
    if geometry is None:
        return {"slm_bytes": 0.0, "slm_read_bytes": 0.0}
    table = geometry.vocab * geometry.hidden
    body = value_bytes(geometry.non_expert_params - table, STATIC_FORMAT)
    return {"slm_bytes": body + value_bytes(table, "fp16"), "slm_read_bytes": static_bytes(geometry, STATIC_FORMAT)}


def _kv_bytes(geometries: Sequence[Geometry | None], kind: Ints, context_tokens: Floats) -> Floats:
    """(n,) of a sequence."""
    lengths, at = np.unique(np.stack([kind, context_tokens]), axis=1, return_inverse=True)
    each = [(geometries[int(i)], int(n)) for i, n in lengths.T]
    return np.array([0 if of is None else kv_bytes(of, n, KV_FORMAT) for of, n in each], np.float64)[at.ravel()]


def _groups(kinds: Sequence[tuple[Geometry, HardwareSpec]], drafter: Geometry | None, kind: Ints) -> tuple[Group, ...]:
    """Machines that differ in the capacity of the experts' cache alone are one: a column has that, and it costs nothing."""
    members: dict[tuple[Any, ...], list[int]] = {}
    for i, (geometry, machine) in enumerate(kinds):
        capacity = f"tiers.{machine.roles.expert_cache}.capacity_bytes"
        told = [(key, of.value, of.low, of.high) for key, of in machine.numbers() if key != capacity]
        members.setdefault((repr((machine.roles, machine.n_devices, machine.dtype, told)), geometry), []).append(i)
    return tuple(Group(kinds[of[0]][1], kinds[of[0]][0], drafter, np.flatnonzero(np.isin(kind, of))) for of in members.values())
