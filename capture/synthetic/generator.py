"""Router logits of a model that is not at hand: some experts are popular, and consecutive tokens resemble each other.

    logits[t, l, e] = beta * (sd_b * b[l, e] + sd_u * c[t, l, e] + n[t, l, e])

b is how popular an expert is in general, the same for all requests of a seed: Student-t, so that a few stand out. c is what the
text is about at the moment: it drifts along a request as AR(1) of unit variance. n is new at every token. Layers are independent.

Every (seed, request, layer) has a random stream of its own, read token by token: a request is the same whatever is drawn
beside it, and a longer one begins as the shorter one does.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokentape.policies.kernels import kernel

FORMULA = "logits[t,l,e] = beta * (sd_b * b[l,e] + sd_u * c[t,l,e] + n[t,l,e])"
VERSION = 1  # raised when equal parameters begin to give other logits
_POPULARITY, _REQUEST = 0, 1  # first word of a random stream's key


class RouterLogits(Protocol):
    """What tapes are drawn from: a frozen dataclass whose fields are its parameters."""

    def logits(self, seed: int, request: int, layer: int, n_prompt: int, n_decoded: int, n_experts: int) -> NDArray[np.float32]:
        """(n_prompt + n_decoded, E) f32 logits of one request in an absolute layer."""
        ...


@dataclass(frozen=True)
class Generator:
    """The five parameters. beta: scale of the logits; it sets the weights and leaves the choice of experts as it is.

    sd_b: scale of popularity. sd_u: scale of the drifting part. rho: its correlation from one token to the next.
    popularity_df: degrees of freedom of popularity's Student-t, which is not rescaled to unit variance.
    """

    beta: float
    sd_b: float
    sd_u: float
    rho: float
    popularity_df: float

    def popularity(self, seed: int, layer: int, n_experts: int) -> NDArray[np.float32]:
        """(E,) f32: b of an absolute layer, before sd_b."""
        return stream(seed, _POPULARITY, layer).standard_t(self.popularity_df, n_experts).astype(np.float32)

    def logits(self, seed: int, request: int, layer: int, n_prompt: int, n_decoded: int, n_experts: int) -> NDArray[np.float32]:
        """As RouterLogits; prompt and decode are drawn alike."""
        drawn = self.noise(seed, request, layer, n_prompt + n_decoded, n_experts)
        return self.mixed(self.popularity(seed, layer, n_experts), *drawn)

    def noise(self, seed: int, request: int, layer: int, n_tokens: int, n_experts: int) -> tuple[NDArray[np.float32], ...]:
        """(T, E) f32: what drifts, before sd_u, and what is new with every token."""
        draws = stream(seed, _REQUEST, request, layer).standard_normal((n_tokens, 2, n_experts), dtype=np.float32)
        follow_on(draws[:, 0], self.rho)
        return draws[:, 0], draws[:, 1]

    def mixed(self, popularity: NDArray[np.float32], drift: NDArray[np.float32], new: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits of these parts."""
        return self.beta * (self.sd_b * popularity + self.sd_u * drift + new)


@kernel("void(float32[:, :], float64)")
def follow_on(noise, rho):  # type: ignore[no-untyped-def]
    """Unit normals (T, E) into AR(1) of unit variance along T, in place: the first row is stationary already."""
    scale, weight = np.sqrt(1.0 - rho**2), np.float32(rho)
    for t in range(1, noise.shape[0]):
        for e in range(noise.shape[1]):
            noise[t, e] = np.float32(noise[t, e] * scale) + weight * noise[t - 1, e]


def stream(seed: int, *key: int) -> np.random.Generator:
    """The random stream of a seed and a key of its own."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
