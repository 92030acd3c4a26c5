"""record: prompts to a running server, its responses to a tape. How it is asked is capture/served.py's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tokentape.flows.commands.capture import DatasetOption
from tokentape.flows.commands.imports import ModelOption, report
from tokentape.flows.console import note, progress_bar
from tokentape.flows.options import StoreOption, argument, option


def record(
    url: Annotated[str, argument("URL", "A running server, such as http://localhost:8000.")],
    model: ModelOption,
    dataset: DatasetOption,
    engine: Annotated[str, option("What the server is: vllm or sglang.", "--from")] = "vllm",
    max_requests: Annotated[int, option("Prompts to send.", min=1)] = 32,
    max_new_tokens: Annotated[int, option("Tokens after each prompt.", min=1)] = 128,
    temperature: Annotated[float, option("0 is greedy.")] = 0.0,
    seed: Annotated[int, option("For sampling.")] = 0,
    concurrency: Annotated[int, option("Requests that the server has at once.", min=1)] = 8,
    split: Annotated[str | None, option("Split of a hub data set. [default: test, else the first]")] = None,
    subset: Annotated[str | None, option("Configuration of a hub data set.")] = None,
    field: Annotated[str | None, option("Field that holds the prompt. [default: prompt, text or question]")] = None,
    out: Annotated[Path, option("Folder of the responses, which stay.")] = Path(),
    store: StoreOption = None,
) -> None:
    """Send prompts to a running vLLM or SGLang server and record what its routers chose as a tape. Prints the trace id.

    The server must return routed experts (--enable-return-routed-experts). Where vLLM also returns what it accepted of its drafts
    (--per-request-spec-decode-metrics), that is a second tape. Stop it at any time; the same command goes on.

    \b
    Examples:
      tokentape record http://localhost:8000 --model qwen3-30b-a3b --dataset prompts.jsonl --max-requests 200
      tokentape record --from sglang http://localhost:30000 --model config.json --dataset math
    """
    from tokentape.capture.datasets import items
    from tokentape.capture.importers import sglang, vllm
    from tokentape.capture.importers.acceptance import import_acceptance
    from tokentape.capture.served import TOLD
    from tokentape.capture.served import record as responses_of
    from tokentape.flows.workers import gone_soon
    from tokentape.warehouse.models import config_path

    config = config_path(model)
    prompts = [item.prompt for item in items(dataset, max_requests, split, field, subset)]
    sampling = {"max_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    with gone_soon(), progress_bar(f"record from {url}") as advance:
        path = responses_of(url, engine, prompts, sampling, out, concurrency, advance)
    note(f"responses in {path}")
    held = path.read_bytes()
    routed, drafted = (told in held for told in TOLD)
    if routed:
        convert = vllm.import_vllm if engine == "vllm" else sglang.import_sglang
        report(store, convert([path], config, store))
    if drafted:
        report(store, import_acceptance(path, store))
