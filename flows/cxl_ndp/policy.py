"""Placement and mixed precision as a person types it: `--policy ndp --param losses=TRACE --param bits=2 --param rule=uniform`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from tokentape.flows.names import unknown
from tokentape.flows.own_policy import Value, convert
from tokentape.policies.mixed import MixedPrecision
from tokentape.warehouse.losses import loss_table
from tokentape.warehouse.tape import Store, Tape

if TYPE_CHECKING:
    from tokentape.capture.cxl_ndp.evaluate import NDPRun

NAME = "ndp"
OF_WINDOWS = ("prompt_tokens", "decode_tokens")
OF_REPLICAS = ("losses", "method")


class Chosen(NamedTuple):
    """How the policy is tried, the tape its losses come from and the quantiser of its replicas."""

    run: NDPRun
    tape: Tape
    method: str


def inside_model(params: Mapping[str, Value], n_items: int, store: Store | None = None) -> Chosen:
    """From what was typed; hot: half of the experts where it is not given.

    Raises ValueError with the nearest name for an unknown parameter, and where there is no tape of losses.
    """
    from tokentape.capture.cxl_ndp.evaluate import NDPRun  # needs torch

    if "losses" not in params:
        raise ValueError(
            f"{NAME} needs a tape of losses: run `tokentape capture --model MODEL --dataset docs --tables losses`, then give "
            "--param losses=TRACE"
        )
    hints = get_type_hints(MixedPrecision)
    for key in params:
        if key not in (*hints, *OF_WINDOWS, *OF_REPLICAS):
            raise unknown(f"parameter of {NAME}:", key, (*hints, *OF_WINDOWS, *OF_REPLICAS))
    tape, method = (store or Store()).open(str(params["losses"])), str(params.get("method", "gptq"))
    losses = loss_table(tape, method)
    given: dict[str, Any] = {"hot": tape.geometry.n_experts // 2}
    given |= {name: convert(name, params[name], kind) for name, kind in hints.items() if name in params}
    windows = {name: convert(name, params[name], int) for name in OF_WINDOWS if name in params}
    return Chosen(NDPRun(MixedPrecision(**given), losses, n_items=n_items, **windows), tape, method)
