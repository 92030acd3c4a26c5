"""Routing as placement sees it: from a tape of the store, or drawn without one."""

import numpy as np

from tokentape.capture.synthetic import profiles
from tokentape.capture.synthetic.counted import counted
from tokentape.capture.synthetic.routes import Length
from tokentape.flows.system_runs import tape_of
from tokentape.replay.cxl_ndp.routing import CXLNDPRouting, routing_of
from tokentape.warehouse.geometry import Geometry
from tokentape.warehouse.tape import Store

# Of drawn routing; the prompt's length is that of the fit.
N_PROMPT, N_STEPS = 128, 128


def of_tape(store: Store, trace: str, weight_source: str = "gate") -> CXLNDPRouting:
    """A tape's requests. Raises BadTape, ValueError as routing_of."""
    tape = store.open(trace)
    return routing_of(tape_of(store, tape.trace_id, None, weight_source == "softmax" and tape.has("scores")), weight_source)


def drawn(geometry: Geometry, n_sequences: int, seed: int = 0, n_prompt: int = N_PROMPT, n_steps: int = N_STEPS) -> CXLNDPRouting:
    """Sequences whose prompts foretell their decode as published for Mixtral-8x7B (docs/placement.md); 250 of them a second.

    The draws are those of `tokentape synthesize --routing context` with the same seed and lengths.
    """
    made = counted(profiles.context_generator(), geometry, seed, n_sequences, Length(n_prompt, n_steps + 1))
    return CXLNDPRouting(
        trace_id=f"context-{seed}",
        origin="synthetic",
        layers=tuple(geometry.moe_layers),
        request_ids=np.arange(n_sequences),
        n_decode=np.full(n_sequences, n_steps, np.int32),
        **made,
    )
