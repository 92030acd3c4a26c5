"""HOBBIT's cache: four measures of an expert, weighted; the lowest leaves (P. Tang et al., HOBBIT: a mixed precision expert
offloading system for fast MoE inference, arXiv 2411.01433, multidimensional caching).

How lately and how often it was used, how often at high precision, all over the passes so far, and how soon its layer comes
(equation 3). Its caches of high and low copies are one here, and what is counted is not forgotten with a sequence. A use at high
precision is told by the gate alone: exact for two experts per token, of more it leaves some out.
"""

from dataclasses import dataclass
from typing import ClassVar

from tokentape.policies.bounds import FromZero, Share
from tokentape.policies.kernels import kernel
from tokentape.policies.protocol import RANK_SIGNATURE, Ranked


@dataclass(frozen=True)
class Hobbit(Ranked):
    """Weights of the measures; the paper tunes them to a model, alike here (assumed). high_until: as of by_gate."""

    recency: FromZero = 0.25
    frequency: FromZero = 0.25
    high_frequency: FromZero = 0.25
    nearness: FromZero = 0.25
    high_until: Share = 0.6
    ages: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("gate",)

    @staticmethod
    @kernel(RANK_SIGNATURE, allocates=False)
    def rank(of):  # type: ignore[no-untyped-def]
        if of.is_used and of.gate >= 1.0 - of.params[4]:  # the gates above it are no more than high_until
            of.memory[0] += 1.0
        passes = of.now / of.n_layers + 1.0
        lately = passes - (0.0 if of.is_used else of.since / of.n_layers)
        soon = 1.0 - ((of.layer - of.at_layer) % of.n_layers) / of.n_layers
        used = of.params[0] * lately + of.params[1] * of.n_total + of.params[2] * of.memory[0]
        return used / passes + of.params[3] * soon
