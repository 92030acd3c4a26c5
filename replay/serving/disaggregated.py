"""Two serving engines in series: one processes prompts, the other decodes, and a request's KV cache moves between them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.serving import Disaggregated
from tokentape.replay.serving.iteration import IterationCosts
from tokentape.replay.serving.run import Limits, ServingRun, run_rule
from tokentape.replay.serving.workload import Requests
from tokentape.warehouse.model_sizes import kv_bytes_per_token, kv_layer_bytes_per_token

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
    n_states, state_bytes = len(geometry.state_layers), kv_layer_bytes_per_token(geometry.alike(False), "bf16")
    kept_bytes = kv_bytes_per_token(geometry, "bf16") * requests.n_prompt_tokens + n_states * geometry.state_tokens * state_bytes
    there_s = prefill.first_token_s + kept_bytes / scheduler.kv_bytes_per_s
    finish_s = prefill.finish_s.copy()
    goes_on = np.flatnonzero(requests.n_output_tokens > 1)
    order = goes_on[np.argsort(there_s[goes_on], kind="stable")]
    decode = None
    if order.size:
        moved = Requests(there_s[order], requests.n_prompt_tokens[order], requests.n_output_tokens[order], origin=requests.origin)
        decode = run_rule(moved, scheduler.decode_rule(geometry.n_layers), decode_cost, limits, seed=seed)
        finish_s[order] = decode.finish_s
    return DisaggregatedRun(prefill, decode, prefill.ttft_s, finish_s)
