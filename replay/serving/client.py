"""A benchmark client in front of a server: its text comes over HTTP, and its clock runs until the engine has it.

vLLM's benchmark_serving.py, with which Layered Prefill was measured (its authors' public code), sends text. A first token is
timed from there: the connection and the tokeniser, one process that takes prompts in turn, lie before the engine. When it sends
is `client_arrivals` of workload.py; how many tokens a model's tokenizer makes of its text stands in the model's file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tokentape.replay.serving.run import ServingRun
from tokentape.replay.serving.workload import Requests


@dataclass(frozen=True)
class Client:
    """connection_s: of a request with 27,000 characters and its first answer, on both sides; tokenise_s: of a prompt's token.

    Both measured on a core of a Xeon: aiohttp against uvicorn over the loopback; the tokenizers of Qwen3 (2.6 us) and gpt-oss
    (3.1 us) on arXiv's text, with Hugging Face's tokenizers.
    """

    connection_s: float = 3.2e-3
    tokenise_s: float = 2.8e-6

    def handed_over(self, sent: Requests) -> Requests:
        """The requests as they reach the engine, in the same order."""
        busy_s = self.tokenise_s * sent.n_prompt_tokens
        until_s = np.cumsum(busy_s)
        starts_s = np.maximum.accumulate(sent.arrival_s + self.connection_s + busy_s - until_s)
        return replace(sent, arrival_s=starts_s + until_s)

    def served(self, sent: Requests, serve: Callable[[Requests], ServingRun]) -> ServingRun:
        """What `serve` makes of them, with times from when they were sent."""
        return replace(serve(self.handed_over(sent)), requests=sent)
