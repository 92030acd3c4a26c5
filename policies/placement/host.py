"""What a placement may know of the model and machine that it runs on."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """Times of one expert of full width, in reads of it where it lies when it is not in the fast tier: moved there
    (fetch_reads), a token's operations where it lies (token_reads), read in the fast tier (main_reads). n_layers: MoE layers;
    held_frac: of all experts, those that the fast tier has room for. Defaults: all experts lie in one memory.
    """

    n_layers: int
    held_frac: float = 1.0
    fetch_reads: float = 0.0
    token_reads: float = 0.0
    main_reads: float = 1.0
