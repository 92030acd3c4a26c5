"""Responses of a running server, as they come: prompts go to an OpenAI-compatible endpoint, and what it answers is kept.

    vLLM     POST /v1/completions with return_token_ids (vllm-project/vllm, pull request 22587); the server is started with
             --enable-return-routed-experts, for drafts with --per-request-spec-decode-metrics detailed
    SGLang   the same with return_routed_experts (sgl-project/sglang, pull request 17434) and --enable-return-routed-experts

A response is a line of a file, written once it and all before it are there, so what was stopped goes on behind the last whole
line. A key is taken from OPENAI_API_KEY, and is kept nowhere.
"""

import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException, InvalidURL
from pathlib import Path
from threading import Event
from typing import IO, Any

from tokentape.policies.names import unknown
from tokentape.warehouse.atomic_files import naming

ENGINES: dict[str, dict[str, Any]] = {"vllm": {"return_token_ids": True}, "sglang": {"return_routed_experts": True}}
# One of them is in every response that can become a tape; what a server was not asked for is null.
TOLD = (re.compile(rb'routed_experts": (?!null|\[\])'), re.compile(rb'"speculative_decoding": (?!null)'))
WAITS_S = (0.5, 2.0, 8.0)  # before a request is sent again to a server that is busy, restarts or fails
TIMEOUT_S = 600.0


def record(
    url: str,
    engine: str,
    prompts: Sequence[str],
    sampling: Mapping[str, Any],
    folder: Path,
    concurrency: int = 8,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """The file of responses to `prompts`, one line each; equal settings go on with the same file.

    url: of the server, with /v1 or without; sampling: fields of the request, such as max_tokens. Raises ValueError for what the
    server refuses, for responses without routed experts and while another process writes the file; OSError where none answers.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: not the address of a server; give one such as http://localhost:8000")
    base = url.rstrip("/").removesuffix("/v1")
    stopped = Event()
    body = {**sampling, **ENGINES[engine], "model": _model(f"{base}/v1/models", stopped)}
    digest = hashlib.sha256(json.dumps([engine, body, list(prompts)], sort_keys=True).encode()).hexdigest()[:8]
    path = folder / f"responses-{engine}-{digest}.jsonl"
    pool = ThreadPoolExecutor(concurrency)
    try:
        with naming(path), path.open("ab") as file:
            _hold(file)
            n_done = _whole_lines(path)
            asked = [{**body, "prompt": prompt} for prompt in prompts[n_done:]]
            answers = pool.map(lambda one: _answer(f"{base}/v1/completions", one, stopped), asked)
            for n, answer in enumerate(answers, n_done + 1):
                line = json.dumps(answer).encode() + b"\n"
                if not any(told.search(line) for told in TOLD):
                    also = " or --per-request-spec-decode-metrics detailed" if engine == "vllm" else ""
                    flags = f"--enable-return-routed-experts{also}"
                    raise ValueError(f"{base}: response {n} has no routed experts; start the server with {flags}")
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
                progress(n, len(prompts))
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
    return path


def _model(url: str, stopped: Event) -> str:
    """What the server calls the model that it serves."""
    told = _answer(url, None, stopped)
    try:
        return str(told["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"{url}: names no model; give the address of an OpenAI-compatible server") from error


def _hold(file: IO[bytes]) -> None:
    """Keeps the file to this process while it is open. Raises ValueError where another has it: both would write all answers."""
    with suppress(ImportError, OSError):  # on Windows, and on file systems without locks
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{file.name}: the same command writes it now; wait until that has ended, or stop it") from error


def _whole_lines(path: Path) -> int:
    """How many responses are there; one that was cut off is dropped."""
    held = path.read_bytes()
    os.truncate(path, held.rfind(b"\n") + 1)
    return held.count(b"\n")


def _answer(url: str, body: Mapping[str, Any] | None, stopped: Event) -> Any:
    """What the server answers as JSON; asked again where waiting can help, unless the recording has stopped."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    if key := os.environ.get("OPENAI_API_KEY"):
        request.add_unredirected_header("Authorization", f"Bearer {key}")  # it goes to this server alone
    for wait_s in (*WAITS_S, None):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            said = f"HTTP {error.code}: {error.read(2_000).decode(errors='replace').strip() or error.reason}"
            if error.code < 500 and error.code != 429:
                raise ValueError(f"{url}: {said}") from error
        except (ValueError, RecursionError, InvalidURL) as error:
            raise ValueError(f"{url}: answers no JSON; give the address of an OpenAI-compatible server") from error
        except (OSError, EOFError, HTTPException) as error:
            said = str(getattr(error, "reason", error))
        if wait_s is None or stopped.wait(wait_s):
            break
    raise OSError(f"{url}: {said}; start the server, and the same command goes on from here")
