"""How the next token is chosen: greedy, drawn, or told; and how well tokens were foretold."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from tokentape.policies.speculation.tree import Probabilities

OVERFLOW = "the model's numbers overflow: use --dtype bfloat16 or float32, or other weights if they still do"
MAX_NATS = 709.0  # e to more is no float


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(
                f"sampling: temperature {self.temperature} must be finite, >= 0 (0: greedy), top_p {self.top_p} in (0, 1], "
                f"top_k {self.top_k} >= 0 (0: all)"
            )


def perplexity_of(nats: float, what: str = "the perplexity") -> float:
    """Of nats per token. Raises ValueError where it is no finite number."""
    if not nats < MAX_NATS:
        raise ValueError(f"{what} is {'NaN' if math.isnan(nats) else f'exp({nats:g})'}; {OVERFLOW}")
    return math.exp(nats)


def drawn(logits: torch.Tensor, sampling: Sampling, generators: list[torch.Generator]) -> torch.Tensor:
    """(batch,) a draw per row, on the host, with each request's generator."""
    probabilities, ids = kept(logits, sampling)
    drawn = torch.cat([torch.multinomial(p, 1, generator=g) for p, g in zip(probabilities, generators, strict=True)])
    return ids.gather(1, drawn.unsqueeze(1)).squeeze(1).to(logits.device)


def kept(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, V) each, on the host: probabilities by falling logit and the tokens they are of; zero for what is cut off.

    Temperature, then top-k, then top-p (the smallest set that reaches it). Rows that are cut do not sum to 1. Raises ValueError
    for logits that hold NaN.
    """
    scaled = logits.float().cpu() / sampling.temperature
    ordered, ids = scaled.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ordered[:, sampling.top_k :] = -torch.inf
    probabilities = ordered.softmax(-1)
    if probabilities.isnan().any():
        raise ValueError(f"logits: NaN; {OVERFLOW}")
    before = probabilities.cumsum(-1) - probabilities
    probabilities[before >= sampling.top_p] = 0.0
    return probabilities, ids


def distribution(logits: torch.Tensor, sampling: Sampling) -> Probabilities:
    """(n, V) f64 probabilities that tokens are drawn from; at temperature 0 the plain softmax, which greedy choices rank by."""
    if sampling.temperature == 0:
        return logits.double().softmax(-1).cpu().numpy()
    ordered, ids = kept(logits, sampling)
    found = torch.zeros_like(ordered, dtype=torch.float64).scatter_(1, ids, ordered.double())
    return (found / found.sum(-1, keepdim=True)).numpy()


def nll_of(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Nats of each id (...) under its logits (..., V)."""
    return F.cross_entropy(logits.float().flatten(0, -2), ids.flatten(), reduction="none").view(ids.shape)
