"""Groups of layers: how many a prompt batch of T tokens walks through, and which layers each holds (Layered Prefill section 4).

paper   N = min(N_max, max(1, ceil(T / 512)))
code    a table of steps chosen by N_max, as the authors ran it
fixed   N = N_max, whatever T
"""

from tokentape.policies.kernels import kernel
from tokentape.policies.serving.rule import UNLIMITED

TOKENS_PER_GROUP = 512
RULES = ("paper", "code", "fixed")

_UP_TO_TOKENS = (512, 1024, 2048, 4096, UNLIMITED)
# Groups by N_max for batches of up to so many tokens. Source: Layered Prefill, the authors' public code (facts only).
STEP_TABLE: dict[int, tuple[int, ...]] = {
    4: (1, 2, 4, 4, 4),
    12: (1, 2, 4, 6, 12),
    16: (1, 2, 4, 8, 16),
    24: (1, 2, 4, 8, 24),
}


def steps(rule: str, n_max: int, n_layers: int) -> tuple[tuple[int, int], ...]:
    """(largest batch in tokens, groups), by size; never more groups than layers.

    code with an N_max that the authors' code refuses: the row of 16, cut to N_max, or with N_max as its last column. Raises
    ValueError for `fixed` with more groups than layers.
    """
    if rule == "fixed":
        if n_max > n_layers:
            raise ValueError(f"n_max {n_max}: more groups than the model's {n_layers} layers")
        return ((UNLIMITED, n_max),)
    if rule == "paper":
        most = min(n_max, n_layers)
        return (*((n * TOKENS_PER_GROUP, n) for n in range(1, most)), (UNLIMITED, most))
    cut = (*(min(n_max, n) for n in STEP_TABLE[16][:-1]), n_max)
    row = STEP_TABLE.get(n_max, cut)
    return tuple((tokens, min(n, n_layers)) for tokens, n in zip(_UP_TO_TOKENS, row, strict=True))


@kernel("int64(int64[:, ::1], int64)", allocates=False)
def n_groups(step_numbers, n_tokens):  # type: ignore[no-untyped-def]
    """Groups that a batch of n_tokens walks through. step_numbers: (2, m) as BatchRule.step_numbers()."""
    last = step_numbers.shape[1] - 1
    for i in range(last):
        if n_tokens <= step_numbers[0, i]:
            return step_numbers[1, i]
    return step_numbers[1, last]


@kernel("int64(int64, int64, int64)")
def group_start(group, n_of_groups, n_layers):  # type: ignore[no-untyped-def]
    """First layer of a group, contiguous and as even as possible, the first ones longer; group == n_of_groups gives n_layers."""
    return group * (n_layers // n_of_groups) + min(group, n_layers % n_of_groups)
