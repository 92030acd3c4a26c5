"""A benchmark client in front of a server: its text comes over HTTP, and its clock runs until the engine has it.

vLLM's benchmark_serving.py, with which Layered Prefill was measured (its authors' public code), sends text. A first token is
timed from there: the connection and the tokeniser, one thread of the server, lie before the engine. From 0.10 to 0.23 vLLM's
tokeniser waits for more (class AsyncMicrobatchTokenizer): a batch takes what comes within 2 ms of its start, or 32 prompts, and
no prompt goes on before all of the batch are cut. When the client sends is `client_arrivals` of workload.py; how many tokens a
model's tokenizer makes of its text stands in the model's file.
"""

from dataclasses import dataclass, replace

from tokentape.policies.kernels import F64, float64, int64, kernel, void
from tokentape.replay.serving.workload import Requests

GATHER_S = 2e-3  # batch_wait_timeout_s of vLLM's tokeniser
MOST = 32  # its max_batch_size


@kernel(void(F64, F64, float64, int64), allocates=False)
def _tokenise(there_s, busy_s, gather_s, most):  # type: ignore[no-untyped-def]
    """there_s (n,): in, when each prompt reaches the tokeniser, rising; out, when its tokens leave. busy_s (n,): of each."""
    first, free_s = 0, 0.0
    while first < there_s.shape[0]:
        opens_s, last = max(there_s[first], free_s), first + 1
        while last < there_s.shape[0] and last - first < most and there_s[last] <= opens_s + gather_s:
            last += 1
        closes_s = max(opens_s, there_s[last - 1]) if last - first == most else opens_s + gather_s
        free_s = closes_s + busy_s[first:last].sum()
        there_s[first:last] = free_s
        first = last


@dataclass(frozen=True)
class Client:
    """connection_s: of a request with 27,000 characters and its first answer, on both sides; tokenise_s: of a prompt's token.

    Both measured on a core of a Xeon: aiohttp against uvicorn over the loopback; the tokenizers of Qwen3 (2.6 us) and gpt-oss
    (3.1 us) on arXiv's text, with Hugging Face's tokenizers. gather_s: how long a batch of the tokeniser waits for more, 0 for
    prompts that are cut in turn.
    """

    connection_s: float = 3.2e-3
    tokenise_s: float = 2.8e-6
    gather_s: float = GATHER_S

    def handed_over(self, sent: Requests) -> Requests:
        """The requests as they reach the engine, in the same order."""
        there_s = sent.arrival_s + self.connection_s
        _tokenise(there_s, self.tokenise_s * sent.n_prompt_tokens, self.gather_s, MOST if self.gather_s else 1)
        return replace(sent, arrival_s=there_s)
