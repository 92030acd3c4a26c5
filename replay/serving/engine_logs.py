"""What real engines measured: request logs of one run, and experiments of which means and percentiles by stage are known.

A log is a folder with meta.json (settings of the engine) and requests.jsonl (a request a line: input_toks, output_toks,
queued_ts, first_token_ts, last_token_ts in seconds). Experiments are a folder with experiments.json (settings, stages of a
constant rate) and measured_ms.csv (id, stage, metric, measured_ms).
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.operators.operator import release
from tokentape.hw.work import Floats
from tokentape.policies.names import refuse_unknown
from tokentape.replay.serving.client import GATHER_S
from tokentape.replay.serving.memory import BLOCK_TOKENS, MEMORY_FRAC
from tokentape.replay.serving.workload import LONGEST, Requests

METRICS = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "output_tokens_per_s")
STATISTICS = ("mean", "p50", "p90", "p99")
_KNOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_MODELLED_AT = _KNOWN["modelled_at"] | dict.fromkeys(_KNOWN["not_modelled"])
_COLUMNS = {"id": pl.String, "stage": pl.Int64, "metric": pl.String, "measured_ms": pl.Float64}
_MEASURED = {f"{metric}_{which}": (f"{metric}_s", which) for metric in ("e2e", "ttft", "itl") for which in STATISTICS}
_OF_REQUEST = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
_OTHER_WEIGHTS = re.compile(r"int8|w8a(?:8|16)|(?<!mx)fp4|nf4")
_KV_FORMATS = dict.fromkeys(("auto", "bfloat16", "float16"), "bf16") | dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2"), "fp8")
_SIXTEEN_BITS = ("", "none", "auto", "bf16", "bfloat16", "fp16", "float16", "half")
_RESOLVED = ("num_gpu_blocks", "block_size", "gpu_memory_utilization", "enable_prefix_caching", "quantization")
GRAPH_TOKENS = 512  # of the largest graph that vLLM captures, or two for each request that may run
_OF_GRAPHS = ("cudagraph_capture_sizes", "cuda_graph_sizes", "max_cudagraph_capture_size")  # the second: of older releases
_GATHERS = ((0, 10), (0, 24))  # vLLM from which on, and before which, its server gathers prompts before it cuts them
_TODAYS_FROM = (0, 14)  # of vLLM: batches are fixed one iteration ahead by default, and replicas of a dense model step apart


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Settings of an engine. model: as its hub names it; kv_blocks: of 16 tokens, of all replicas, None where they follow
    from memory_frac; budget_tokens, max_seqs: of each replica; steps_apart: those of a dense model do not wait for one another;
    prefix_caching, fills, fits_whole: as `Limits` has them; graph_sizes: tokens of its CUDA graphs, rising; gather_s: as a
    `client.Client` has it."""

    model: str
    max_seqs: int
    budget_tokens: int
    kv_blocks: int | None = None
    memory_frac: float = MEMORY_FRAC
    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    expert_placement: str = "linear"
    schedules_ahead: bool = True
    steps_apart: bool = True
    prefix_caching: bool = True
    fills: bool = True
    fits_whole: bool = True
    weight_format: str = "bf16"
    kv_format: str = "bf16"
    graph_sizes: tuple[int, ...] = ()
    gather_s: float = GATHER_S

    @property
    def n_devices(self) -> int:
        return self.tensor_parallel * self.data_parallel


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """One stage of one engine: settings, requests, and what was measured, by metric and statistic. is_of_client: its times begin
    where the client asks, not where the engine takes the request. first_s, last_s (n,): of a log, when each request had its first
    and its last token, after the first arrival."""

    source: str
    stage: int
    engine: Engine
    is_of_client: bool
    requests: Requests = field(repr=False)
    measured: dict[tuple[str, str], float] = field(repr=False)
    first_s: Floats | None = field(default=None, repr=False)
    last_s: Floats | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for (metric, which), value in self.measured.items():
            if not 0.0 < value < float("inf"):
                told = f"{self.source}, stage {self.stage}: measured {metric} {which} is {value:g}"
                raise ValueError(f"{told}; what is compared must be above 0 and finite")


def read(folder: Path, seed: int = 0) -> list[Served]:
    """The stages of a log or of experiments. seed: of the arrivals, which experiments tell by their rate alone.

    Raises ValueError naming the file, row or field that is unusable.
    """
    if (folder / "meta.json").is_file():
        return [_of_log(folder)]
    if (folder / "experiments.json").is_file():
        return _of_experiments(folder, seed)
    raise ValueError(f"{folder}: neither a request log (meta.json, requests.jsonl) nor experiments (experiments.json)")


def statistics(values: Floats) -> dict[str, float]:
    """Mean and percentiles by the names of STATISTICS."""
    return dict(zip(STATISTICS, (float(values.mean()), *np.percentile(values, (50, 90, 99)).tolist()), strict=True))


def latencies(arrival_s: Floats, first_s: Floats, last_s: Floats, n_output: NDArray[np.int64]) -> dict[tuple[str, str], float]:
    """Metrics of requests by name and statistic; the tokens per second of all, from the first arrival to the last token."""
    several = n_output > 1
    by_name = {"ttft_s": first_s - arrival_s, "e2e_s": last_s - arrival_s}
    if several.any():
        by_name["tpot_s"] = (last_s - first_s)[several] / (n_output[several] - 1)
    found = {(name, which): value for name, values in by_name.items() for which, value in statistics(values).items()}
    return found | {("output_tokens_per_s", "mean"): float(n_output.sum() / (last_s.max() - arrival_s.min()))}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error})") from None


def _of_log(folder: Path) -> Served:
    engine, path, rows = engine_of(folder / "meta.json"), folder / "requests.jsonl", []
    try:
        for n, line in enumerate(path.read_bytes().splitlines(), 1):  # of text it would end lines within JSON's strings
            try:
                row = json.loads(line.decode(errors="replace"))
            except ValueError as error:
                raise ValueError(f"line {n} is not JSON ({error}); was it cut off?") from None
            rows.append([*(_field(row, name, f"line {n}", float) for name in _OF_REQUEST), n])
        if not rows:
            raise ValueError("it holds no requests")
        rows.sort(key=lambda row: row[_OF_REQUEST.index("queued_ts")])
        prompt, output, queued, first, last, lines = np.array(rows, float).T
        requests = Requests(queued - queued[0], prompt, output, origin=folder.resolve().name)
    except (OSError, OverflowError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    bad = ~((queued <= first) & (first <= last) & (last < np.inf))
    if bad.any():
        raise ValueError(f"{path}: line {lines[np.argmax(bad)]:.0f}: its first token is not between its queueing and its last")
    return Served(
        source=requests.origin,
        stage=0,
        engine=engine,
        is_of_client=False,
        requests=requests,
        measured=latencies(queued, first, last, requests.n_output_tokens),
        first_s=first - queued[0],
        last_s=last - queued[0],
    )


def engine_of(path: Path) -> Engine:
    """The settings of a meta.json: vllm_version, and engine_kwargs with vLLM's names and defaults; before them what vLLM made
    of them (kv_cache, resolved_config). Raises ValueError naming a field that is missing or asks for what is not modelled."""
    meta = _json(path)
    kwargs: dict[str, Any] = {k: of for k, of in _field(meta, "engine_kwargs", path, dict).items() if of is not None}
    cache, resolved = (_field({name: meta.get(name) or {}}, name, path, dict) for name in ("kv_cache", "resolved_config"))
    for made in (meta, cache, resolved.get("model_config")):
        kwargs |= {name: made[name] for name in _RESOLVED if isinstance(made, dict) and made.get(name) is not None}
    version = str(meta.get("vllm_version") or "").removeprefix("v")
    if not version and "async_scheduling" not in kwargs:
        raise ValueError(f"{path}: field vllm_version is missing; without async_scheduling it tells if batches are fixed ahead")
    try:
        numbers = release(version) if version else _TODAYS_FROM
    except ValueError as error:
        raise ValueError(f"{path}: vllm_{error}") from None
    told = {name: kwargs[name] for name in _MODELLED_AT if kwargs.get(name, _MODELLED_AT[name]) != _MODELLED_AT[name]}
    for name, value in told.items():
        raise ValueError(f"{path}: {name} {value} is not modelled; only {_MODELLED_AT[name]} is")

    def told_or(name: str, default: Any) -> Any:
        return _field({name: default, **kwargs}, name, path, type(default))

    model = _field(meta if meta.get("model") else kwargs, "model", path, str)
    max_seqs, kv_dtype = _field(kwargs, "max_num_seqs", path, int), told_or("kv_cache_dtype", "auto")
    if kv_dtype not in _KV_FORMATS:
        raise ValueError(f"{path}: kv_cache_dtype {kv_dtype} is not modelled; {', '.join(_KV_FORMATS)} are")
    # Told to each replica; what vLLM says that it has is the sum of them.
    of_all = _field(kwargs, "num_gpu_blocks", path, int) if "num_gpu_blocks" in kwargs else None
    n_blocks = told_or("num_gpu_blocks_override", 0) * told_or("data_parallel_size", 1) or of_all
    budget = _field(kwargs, "max_num_batched_tokens", path, int)
    return Engine(
        model=model,
        max_seqs=max_seqs,
        budget_tokens=budget,
        kv_blocks=n_blocks and n_blocks * told_or("block_size", BLOCK_TOKENS) // BLOCK_TOKENS,
        memory_frac=told_or("gpu_memory_utilization", MEMORY_FRAC),
        tensor_parallel=told_or("tensor_parallel_size", 1),
        data_parallel=told_or("data_parallel_size", 1),
        expert_parallel=told_or("enable_expert_parallel", False),
        expert_placement=told_or("expert_placement_strategy", "linear"),
        schedules_ahead=told_or("async_scheduling", numbers >= _TODAYS_FROM),
        steps_apart=numbers >= _TODAYS_FROM,
        prefix_caching=told_or("enable_prefix_caching", True),
        fills=not version or numbers >= (0, 24),
        fits_whole=told_or("scheduler_reserve_full_isl", not version or numbers >= (0, 19)),
        weight_format=_weights(str(kwargs.get("quantization", "")), str(kwargs.get("dtype", "auto")), model, path),
        kv_format=_KV_FORMATS[kv_dtype],
        graph_sizes=() if told_or("enforce_eager", False) else _graphs(kwargs, max_seqs, budget, path),
        gather_s=GATHER_S if _GATHERS[0] <= numbers < _GATHERS[1] else 0.0,
    )


def graph_sizes(most: int) -> tuple[int, ...]:
    """Tokens of the CUDA graphs that vLLM captures of itself: 1, 2, 4, multiples of 8 to 256, and of 16."""
    return tuple(n for n in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if n <= most)


def _graphs(kwargs: Mapping[str, Any], max_seqs: int, budget: int, path: Path) -> tuple[int, ...]:
    """Sizes of an engine's CUDA graphs, none above its token budget: those listed, else up to the largest. Raises ValueError for
    what else a compilation_config says, and for what are no sizes."""
    config = _field({"compilation_config": {}, **kwargs}, "compilation_config", path, dict)
    given = {**kwargs, **{name: of for name, of in config.items() if of is not None}}
    if unknown := sorted(given.keys() - kwargs.keys() - {*_OF_GRAPHS}):
        raise ValueError(f"{path}: {unknown[0]} of compilation_config is not modelled; only {', '.join(_OF_GRAPHS)} are")
    told = {**dict(zip(_OF_GRAPHS, ([], [], min(GRAPH_TOKENS, 2 * max_seqs)), strict=True)), **given}
    new, old = ([_field({name: n}, name, path, int) for n in _field(told, name, path, list)] for name in _OF_GRAPHS[:2])
    largest = old.pop() if len(old) == 1 else _field(told, _OF_GRAPHS[2], path, int)
    return tuple(n for n in sorted({*new, *old}) if 0 < n <= budget) or graph_sizes(min(largest, budget))


def _weights(quantization: str, dtype: str, model: str, path: Path) -> str:
    """The format of quantised weights, by what the engine was told and by the checkpoint's name; else 16 bits. Raises ValueError
    for weights of a format that is not modelled."""
    words = f"{quantization} {model}".lower()
    found = next((found for told, found in _KNOWN["weights"].items() if told in words), "")
    is_plain = quantization in _SIXTEEN_BITS and dtype in _SIXTEEN_BITS
    if _OTHER_WEIGHTS.search(words) or not (found or is_plain):
        told = f"{path}: quantization {quantization!r} and dtype {dtype}{' of ' * bool(model)}{model}"
        raise ValueError(f"{told} are not modelled; weights of 16 bits, {', '.join(sorted({*_KNOWN['weights'].values()}))} are")
    return found or ("fp16" if dtype in ("float16", "half") else "bf16")


def _of_experiments(folder: Path, seed: int) -> list[Served]:
    path, settings = folder / "measured_ms.csv", folder / "experiments.json"
    measured: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    try:
        for i, stage, told, value in pl.read_csv(path, schema_overrides=_COLUMNS).select(list(_COLUMNS)).iter_rows():
            key, of_stage = _MEASURED.get(told), measured.setdefault((i, stage), {})
            if key is None or key in of_stage or value is None:
                raise ValueError(f"{told} of {i}, stage {stage}: twice, empty, or none of {', '.join(_MEASURED)}")
            of_stage[key] = value / 1e3
    except (OSError, pl.exceptions.PolarsError, ValueError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; the columns are {', '.join(_COLUMNS)}") from None
    told = _json(settings)
    found = [served for of in (told if isinstance(told, list) else [told]) for served in _stages(of, measured, settings, seed)]
    if unknown := measured.keys() - {(of.source, of.stage) for of in found}:
        raise ValueError(f"{path}: {settings.name} has no experiment and stage {' '.join(map(str, next(iter(unknown))))}")
    if not measured:
        raise ValueError(f"{path}: it holds no rows; give what was measured, or a request log")
    return found


def _stages(experiment: Any, measured: Mapping[Any, dict[tuple[str, str], float]], path: Path, seed: int) -> Iterator[Served]:
    """Requests cycle over the users of every system prompt, each stage from the first on; what a stage before sent is there.
    Arrivals are exponential gaps, scaled to fill the stage (inference-perf, load_timer.py)."""
    load, fields = _field(experiment, "workload", path, dict), _KNOWN["of_experiment"]
    for name in experiment:  # others tell a reader something
        if get_close_matches(name, fields, cutoff=0.8) or name in (*_MODELLED_AT, *_OF_GRAPHS, *_KNOWN["of_logs"]):
            refuse_unknown(f"field of {path}:", name, fields)
    of_one: dict[str, Any] = {"tensor_parallel": 1, "data_parallel": 1, "expert_parallel": False}
    experiment = of_one | {name: of for name, of in experiment.items() if of is not None}
    max_seqs, precision = _field(experiment, "max_num_seqs", path, int), str(experiment.get("precision", "")).lower()
    engine = Engine(
        model=_field(experiment, "model", path, str),
        max_seqs=max_seqs,
        budget_tokens=_field(experiment, "max_num_batched_tokens", path, int),
        kv_blocks=_field(experiment, "kv_blocks_of_16_tokens", path, int) if "kv_blocks_of_16_tokens" in experiment else None,
        **{name: _field(experiment, name, path, type(default)) for name, default in of_one.items()},
        weight_format=_weights(precision, "auto", "", path),
        graph_sizes=graph_sizes(min(GRAPH_TOKENS, 2 * max_seqs)),
    )
    sizes = ("output_tokens", "system_prompts", "users_per_system_prompt", "system_prompt_tokens", "question_tokens")
    n_output, n_shared, n_users, n_system, n_question = (_field(load, name, path, int) for name in sizes)
    name, n_prompts, length, n_met = str(experiment.get("id", "")), n_shared * n_users, n_system + n_question, 0
    for stage, of in enumerate(_field(load, "stages", path, list)):
        duration_s, rate = (_field(of, key, path, float) for key in ("duration_s", "requests_per_s"))
        if not (min(duration_s, rate, n_shared, n_users, n_output, length) > 0 and 0.5 < duration_s * rate < LONGEST):
            asked = f"{duration_s:g} s at {rate:g} requests/s of {n_prompts} prompts, {length} and {n_output} tokens"
            raise ValueError(f"{path}: experiment {name}, stage {stage}: {asked} are no requests")
        n = round(duration_s * rate)
        gaps = np.random.default_rng((seed, stage)).exponential(size=n)
        systems = [(0, n_system, s * n_users < n_met) for s in range(n_shared)]
        prefixes = np.array(
            [(0, 0, True), *systems, *((1 + i // n_users, length, i < n_met) for i in range(n_prompts))], np.int64
        )
        n_met = max(n_met, n)
        requests = Requests(
            np.cumsum(gaps) * duration_s / gaps.sum(),
            np.full(n, length),
            np.full(n, n_output),
            1 + n_shared + np.arange(n) % n_prompts,
            prefixes,
            f"{name}, {stage}",
        )
        told = dict(measured.get((name, stage), {}))
        if n_output > 1 and {("e2e_s", "mean"), ("ttft_s", "mean")} <= told.keys():
            told["tpot_s", "mean"] = (told["e2e_s", "mean"] - told["ttft_s", "mean"]) / (n_output - 1)
        yield Served(source=name, stage=stage, engine=engine, is_of_client=True, requests=requests, measured=told)


def _field(table: Any, name: str, path: Path | str, kind: type) -> Any:
    value = table.get(name) if isinstance(table, dict) else None
    if value is None:
        raise ValueError(f"{path}: field {name} is missing")
    is_one = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not is_one or (kind is int and not 0 <= value < 2**31):
        raise ValueError(f"{path}: field {name} is {value!r}, no {kind.__name__}{' of 0 to 2^31' * (kind is int)}")
    return value
