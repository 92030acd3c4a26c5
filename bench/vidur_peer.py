"""vidur, a simulator of LLM serving in Python, on the very requests that bench/serving.py serves.

Its profiles lie on a model hub, so its tables of operator times are filled with the line through our own iterations (seconds
against tokens) instead of forests trained on profiles. What it looks up, and how often, stays its own; training is spared. Only
`Simulator.run` counts, in CPU time, with its C++ predictor and its metrics and traces off: all of this flatters it.

vidur's dependencies are heavy, so it may live in a Python of its own, which TOKENTAPE_VIDUR_PYTHON names and which runs this
file: it imports nothing of ours.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PYTHON = "TOKENTAPE_VIDUR_PYTHON"
INSTALL = f"python3.11 -m venv V && V/bin/pip install vidur==0.0.26, then {PYTHON}=V/bin/python make bench"
# A quotation, not a measurement.
PUBLISHED = {
    "requests_per_cpu_s": 465,
    "version": "not stated",
    "conditions": "not stated",
    "origin": "the requirements of this project; a search of papers, documentation and issues found no source",
}
CONDITIONS = (
    "{n_requests} arXiv requests, Poisson at {rate_per_s}/s, the same as ours; Sarathi scheduler, chunk {chunk}, at most "
    "{max_seqs} requests; one replica, Llama-3-8B on an H100; operator times from our iterations by a line, C++ predictor, "
    "no profiles, no training; metrics and traces off; CPU seconds of Simulator.run, fastest of {n_repeats}"
)
REQUESTS, JOB, DATE = "requests.csv", "job.json", "2024-01-01"
N_REPEATS = 3
# Steps of vidur's own tables, in tokens.
KV_STEP, CHUNK_STEP = 256, 32
MODEL, N_MODEL_LAYERS = "meta-llama/Llama-3-8B", 32
OF_TOKENS = (
    *("attn_pre_proj", "attn_post_proj", "attn_rope", "attn_kv_cache_save", "mlp_up_proj", "mlp_down_proj", "mlp_act"),
    *("input_layernorm", "post_attention_layernorm", "add"),
)


def python() -> str | None:
    """The Python that has vidur: the one that the environment names, else this one if it does, else None."""
    return os.environ.get(PYTHON) or (sys.executable if find_spec("vidur") else None)


def bench(requests: Iterable[tuple[float, int, int]], line: tuple[float, float], rate_per_s: float, chunk: int) -> dict[str, Any]:
    """vidur's requests and iterations per CPU second, version and conditions; without vidur empty, and one line on how to add it.

    requests: (arrival_s, prompt tokens, output tokens), by arrival. line: seconds of an iteration, and of each token in it.
    Raises ValueError if the named Python cannot run vidur.
    """
    executable = python()
    if executable is None:
        print(f"serving, vidur is not installed and left out; to add it: {INSTALL}")
        return {}
    rows = [(DATE, *row) for row in requests]
    job = {
        "n_requests": len(rows),
        "rate_per_s": rate_per_s,
        "chunk": chunk,
        "max_seqs": 256,
        "max_tokens": max(prompt + output for _, _, prompt, output in rows),
        "iteration_s": line[0],
        "token_s": line[1],
        "n_repeats": N_REPEATS,
    }
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / REQUESTS).open("w", newline="") as file:
            csv.writer(file).writerows([("Date", "Time", "PromptTokenCount", "CompletionTokenCount"), *rows])
        (Path(folder) / JOB).write_text(json.dumps(job))
        # A process each: vidur counts its replicas per process and finds only the first.
        found = min((run(executable, folder) for _ in range(N_REPEATS)), key=lambda one: float(one["cpu_s"]))
    assert found["n_finished"] == len(rows), "vidur left requests unserved"
    return {
        "vidur_requests_per_cpu_s": round(len(rows) / found["cpu_s"]),
        "vidur_iterations_per_cpu_s": round(found["n_iterations"] / found["cpu_s"]),
        "vidur_n_iterations": found["n_iterations"],
        "vidur_end_s": found["end_s"],
        "vidur_version": found["version"],
        "vidur_conditions": CONDITIONS.format(**job),
    }


def run(executable: str, folder: str) -> dict[str, Any]:
    """What `simulate` finds on the files in `folder`, in a new process of `executable`."""
    offline = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    # Isolated: neither this folder nor PYTHONPATH may put our modules before vidur's.
    command = [os.path.abspath(shutil.which(executable) or executable), "-I", str(Path(__file__).resolve())]
    try:
        done = subprocess.run(command, cwd=folder, env=os.environ | offline, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        raise ValueError(f"{executable} cannot run vidur ({said}); leave {PYTHON} unset to do without, or: {INSTALL}") from error
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def tables(job: dict[str, Any]) -> dict[str, dict[tuple[int, ...], float]]:
    """What vidur would predict, in ms per layer: the line in one operator, nothing in the others."""
    tokens = range(1, job["chunk"] + job["max_seqs"] + 8)
    kv = range(0, job["max_tokens"] + 2 * KV_STEP, KV_STEP)
    made: dict[str, dict[tuple[int, ...], float]] = {name: {(n,): 0.0 for n in tokens} for name in OF_TOKENS}
    made["mlp_up_proj"] = {(n,): 1e3 * (job["iteration_s"] + n * job["token_s"]) / N_MODEL_LAYERS for n in tokens}
    made["attn_decode"] = {(batch, size): 0.0 for batch in range(1, job["max_seqs"] + 1) for size in kv}
    chunks = range(CHUNK_STEP, job["chunk"] + CHUNK_STEP, CHUNK_STEP)
    made["attn_prefill"] = {(size, chunk): 0.0 for size in kv for chunk in chunks}
    return made


def simulate(job: dict[str, Any]) -> dict[str, Any]:
    """One run of vidur on requests.csv in the working folder, in vidur's Python."""
    from vidur import config
    from vidur.entities import Batch
    from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
    from vidur.execution_time_predictor.random_forrest_execution_time_predictor import RandomForrestExecutionTimePredictor
    from vidur.simulator import Simulator
    from vidur.types import ExecutionTimePredictorType

    class TablesGiven(RandomForrestExecutionTimePredictor):
        def _load_predictions_from_hf(self) -> dict[str, dict[tuple[int, ...], float]]:
            return tables(job)

    ExecutionTimePredictorRegistry.unregister(ExecutionTimePredictorType.RANDOM_FORREST)
    ExecutionTimePredictorRegistry.register(ExecutionTimePredictorType.RANDOM_FORREST, TablesGiven)
    trace = config.TraceRequestGeneratorConfig(
        trace_file=REQUESTS, date=DATE, prefill_scale_factor=1, time_scale_factor=1, max_tokens=job["max_tokens"]
    )
    cluster = config.ClusterConfig(
        replica_config=config.ReplicaConfig(model_name=MODEL, num_pipeline_stages=1, tensor_parallel_size=1),
        # Blocks that never run out, as in our run.
        cache_config=config.CacheConfig(num_blocks=1_000_000),
        replica_scheduler_config=config.SarathiSchedulerConfig(chunk_size=job["chunk"], batch_size_cap=job["max_seqs"]),
    )
    predictor = config.RandomForrestExecutionTimePredictorConfig(
        kv_cache_prediction_granularity=KV_STEP, use_native_execution_time_predictor=True
    )
    metrics = config.MetricsConfig(write_metrics=False, enable_chrome_trace=False, store_plots=False, output_dir="output")
    simulator = Simulator(
        config.SimulationConfig(
            cluster_config=cluster,
            request_generator_config=trace,
            execution_time_predictor_config=predictor,
            metrics_config=metrics,
        )
    )
    requests = [event._request for _, event in simulator._event_queue]
    started = time.process_time()
    simulator.run()
    return {
        "cpu_s": time.process_time() - started,
        # vidur numbers its batches from 0.
        "n_iterations": Batch.generate_id(),
        "n_finished": sum(request.completed for request in requests),
        "end_s": max(request.completed_at for request in requests),
        "version": version("vidur"),
    }


if __name__ == "__main__":
    print(json.dumps(simulate(json.loads(Path(JOB).read_text()))))
