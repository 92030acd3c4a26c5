"""Router logits where a prompt foretells its own answer and nothing else: no expert is popular beyond its sequence.

    prompt  logits[t,l,e] = log base[l,e] + Gumbel
    decode  logits[t,l,e] = log base[l,e] + sd_shift * z[l,e] + sd_drift * c[t,l,e] + Gumbel

base ~ Dirichlet(concentration) and z, unit normal, are of one (sequence, layer); c wanders along the decode, AR(1), unit normal.
The k largest of logits with Gumbel noise are k draws without replacement. Source: CXL GPU-NDP, specification 3.

A sequence is the same whatever is drawn beside it, and a longer decode begins as the shorter one does.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokentape.capture.synthetic.generator import follow_on, stream

FORMULA = "log Dirichlet(concentration)[l,e] + Gumbel; in decode + sd_shift * z[l,e] + sd_drift * AR(1, rho)[t,l,e]"
_TOKENS, _DRIFT = 2, 3  # first words of random streams' keys; the popular generator has 0 and 1
_LEAST = np.float32(1e-30)  # an exponential draw of 0 would be infinite as a Gumbel


@dataclass(frozen=True)
class Context:
    """concentration: of the Dirichlet, per expert. sd_shift: how far a decode's taste lies from its prompt's.

    sd_drift, rho: scale of the wandering part and its correlation from one token to the next.
    """

    concentration: float
    sd_shift: float
    sd_drift: float
    rho: float

    def logits(self, seed: int, request: int, layer: int, n_prompt: int, n_decoded: int, n_experts: int) -> NDArray[np.float32]:
        tokens = stream(seed, _TOKENS, request, layer)
        base = np.log(tokens.dirichlet(np.full(n_experts, self.concentration))).astype(np.float32)
        shift = tokens.standard_normal(n_experts, np.float32)
        found = gumbel(tokens, n_prompt + n_decoded, n_experts)
        found += base
        if n_decoded:
            drift = stream(seed, _DRIFT, request, layer).standard_normal((n_decoded, n_experts), np.float32)
            follow_on(drift, self.rho)
            found[n_prompt:] += np.float32(self.sd_shift) * shift + np.float32(self.sd_drift) * drift
        return found


def gumbel(rng: np.random.Generator, n_tokens: int, n_experts: int) -> NDArray[np.float32]:
    """(T, E) f32 standard Gumbel noise, token by token."""
    waits = rng.standard_exponential((n_tokens, n_experts), np.float32)
    return np.asarray(-np.log(np.maximum(waits, _LEAST)), np.float32)
