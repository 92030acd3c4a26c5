"""Two serving engines in series: one processes prompts, the other decodes, and a request's KV cache moves between them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.serving import Disaggregated
from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.memory import VALUE_BYTES
from tokentape.replay.serving.run import Limits, ServingRun, run_rule
from tokentape.replay.serving.workload import Requests

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DisaggregatedRun:
    """Both engines' runs. ttft_s, finish_s (n,): of the requests as they came; decode: None where all ask for one token.

    Times between tokens are those of the decode engine, between its iterations: the wait from the first token to the second, with
    the transfer, is not among them.
    """

    prefill: ServingRun
    decode: ServingRun | None
    ttft_s: Floats
    finish_s: Floats


def serve_disaggregated(
    requests: Requests,
    scheduler: Disaggregated,
    prefill_cost: IterationCosts,
    decode_cost: IterationCosts,
    limits: Limits | None = None,
    seed: int = 0,
) -> DisaggregatedRun:
    """Serves all requests; the costs are those of the two machines. A request enters decode at its first token + the transfer.

    seed: of accepted drafts; a request is told apart by its place in the order of the transfers.
    """
    geometry, limits = prefill_cost.geometry, limits or Limits()
    first_only = dataclasses.replace(requests, n_output_tokens=np.ones(len(requests), np.int64))
    prefill = run_rule(first_only, scheduler.prefill_rule(geometry.n_layers), prefill_cost, limits)
    n_states, layer_bytes = len(geometry.state_layers), geometry.kv_elements_per_token_layer * VALUE_BYTES
    kept_tokens = len(geometry.attending) * requests.n_prompt_tokens + n_states * geometry.state_tokens
    there_s = prefill.first_token_s + layer_bytes * kept_tokens / scheduler.kv_bytes_per_s
    finish_s = prefill.finish_s.copy()
    goes_on = np.flatnonzero(requests.n_output_tokens > 1)
    order = goes_on[np.argsort(there_s[goes_on], kind="stable")]
    decode = None
    if order.size:
        moved = Requests(there_s[order], requests.n_prompt_tokens[order], requests.n_output_tokens[order], origin=requests.origin)
        decode = run_rule(moved, scheduler.decode_rule(geometry.n_layers), decode_cost, limits, seed=seed)
        finish_s[order] = decode.finish_s
    return DisaggregatedRun(prefill, decode, prefill.ttft_s, finish_s)
