"""Requests to serve: lengths from published statistics, from a tape or from a trace, and when they arrive. Pure and seeded.

Length fits: draw, reject outside [low, high], round, at least 1; inputs and outputs independent (assumed). Sources: moments of
Layered Prefill Table 4, to which the truncated families were fitted (our notes, section 3.2, derived); caps are the server's
limit of 32,768 tokens and an 8k-filtered ShareGPT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tokentape.hw.work import Floats, Ints
from tokentape.replay.serving.memory import BLOCK_TOKENS

RUN_S = 600.0  # of arrivals, as Layered Prefill runs
PREFIX_TOKENS = 512  # of a prefix block, where a tape does not say
LONGEST = 2**24  # tokens; longer than any model's context: a column taken for another


@dataclass(frozen=True, eq=False)
class Requests:
    """n requests by arrival. arrival_s (n,), n_prompt_tokens (n,), n_output_tokens (n,) at least 1; prefix (n,): the longest
    beginning that the prompt shares with another one, a row of prefixes, empty where none does; prefixes (m, 3): of such
    beginnings the next shorter one, the tokens, and whether the KV memory has it before any request, row 0 the empty one;
    origin: where they come from; tape_request (n,): row of the tape's requests that each one is, empty where there is none.

    Raises ValueError naming the first request that is wrong: no requests, arrivals that fall or are negative, lengths
    below 1, above LONGEST or broken.
    """

    arrival_s: Floats
    n_prompt_tokens: Ints
    n_output_tokens: Ints
    prefix: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    prefixes: Ints = field(default_factory=lambda: np.zeros((1, 3), np.int64))
    origin: str = "synthetic"
    tape_request: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        if not n:
            raise ValueError("there are no requests to serve; give at least one")
        if not len(self.prefix):
            object.__setattr__(self, "prefix", np.zeros(n, np.int64))
        for name in ("n_prompt_tokens", "n_output_tokens", "prefix"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries, arrival_s has {n}; give one per request")
        self._refuse(~np.isfinite(self.arrival_s) | (self.arrival_s < 0), "arrival_s", "it must be finite and at least 0")
        self._refuse(
            np.diff(self.arrival_s, prepend=0.0) < 0, "arrival_s", "it comes before the one ahead of it; sort by arrival"
        )
        for name in ("n_prompt_tokens", "n_output_tokens"):
            length = getattr(self, name)
            self._refuse(~np.isfinite(length) | (np.floor(length) != length), name, "it must be a whole number")
            self._refuse(length > LONGEST, name, f"no model takes more than {LONGEST} tokens; is it the right column?")
            object.__setattr__(self, name, np.asarray(length, np.int64))
        self._refuse(self.n_prompt_tokens < 1, "n_prompt_tokens", "a prompt has at least 1 token")
        self._refuse(self.n_output_tokens < 1, "n_output_tokens", "a request asks for at least 1 token")
        of = self.prefixes[np.clip(self.prefix, 0, len(self.prefixes) - 1), 1]
        is_wrong = (self.prefix < 0) | (self.prefix >= len(self.prefixes)) | (of > self.n_prompt_tokens)
        self._refuse(is_wrong, "prefix", "it must be a row of prefixes, of one no longer than the prompt")

    def _refuse(self, is_wrong: NDArray[np.bool_], name: str, why: str) -> None:
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise ValueError(f"request {first}: {name} is {getattr(self, name)[first]}; {why}")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate_per_s(self) -> float:
        """Requests per second between the first and the last arrival; infinite where all arrive together."""
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span else float("inf")

    def scaled(self, rate_factor: float) -> Requests:
        """The same requests arriving rate_factor times as fast. Raises ValueError unless it is positive and finite."""
        if not 0 < rate_factor < float("inf"):
            raise ValueError(f"rate factor {rate_factor} must be above 0 and finite")
        return replace(self, arrival_s=self.arrival_s / rate_factor)

    def taken(self, rows: Any, arrival_s: Floats | None = None) -> Requests:
        """Those of these rows (a slice, or indices), when they arrive or at other times."""
        names = ("n_prompt_tokens", "n_output_tokens", "prefix", *(["tape_request"] if len(self.tape_request) else []))
        given = {name: getattr(self, name)[rows] for name in names}
        return replace(self, arrival_s=self.arrival_s[rows] if arrival_s is None else arrival_s, **given)

    def at_once(self) -> Requests:
        """The same requests, all there at 0: offline throughput."""
        return replace(self, arrival_s=np.zeros(len(self)))


@dataclass(frozen=True)
class LengthFit:
    """A truncated family. gamma: p1 shape, p2 scale; lognormal: p1 mu, p2 sigma; normal: p1 mean, p2 standard deviation, clipped
    instead of rejected."""

    family: str
    p1: float
    p2: float
    low: int
    high: int
    source: str

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """(n,) lengths before rounding."""
        if self.family == "normal":
            return np.clip(rng.normal(self.p1, self.p2, n), self.low, self.high)
        draw: Any = {"gamma": rng.gamma, "lognormal": rng.lognormal}[self.family]
        drawn: Floats = draw(self.p1, self.p2, n)
        while (outside := np.flatnonzero((drawn < self.low) | (drawn > self.high))).size:
            drawn[outside] = draw(self.p1, self.p2, outside.size)
        return drawn


_TABLE_4 = "derived: truncated fit to Layered Prefill Table 4 (mean, std, p90)"
_SHAREGPT_OUTPUT = LengthFit("gamma", 1.5025, 408.12, 4, 1024, _TABLE_4)
LENGTHS: dict[str, tuple[LengthFit, LengthFit]] = {
    "sharegpt": (LengthFit("gamma", 0.7536, 4347.32, 4, 8192, _TABLE_4), _SHAREGPT_OUTPUT),
    "arxiv": (
        LengthFit("lognormal", 8.9611, 0.6611, 64, 32768, _TABLE_4),
        LengthFit("lognormal", 5.4001, 0.5370, 4, 512, _TABLE_4),
    ),
    "30k": (LengthFit("normal", 30000, 1000, 1000, 32768, "assumed for Layered Prefill section 5.11"), _SHAREGPT_OUTPUT),
}


def synthetic(
    dataset: str,
    rate_per_s: float,
    seed: int,
    *,
    n: int | None = None,
    cv: float = 1.0,
    length_scale: float = 1.0,
    tokens_of_text: float = 1.0,
    of_client: bool = False,
) -> Requests:
    """Requests of a data set's lengths; n: floor(600 s x rate) unless given. cv: of the gaps, 1 is Poisson, above it bursty.

    length_scale: multiplies the prompts; tokens_of_text: both lengths. of_client: arrivals are the client's, lengths the seed's.
    Raises ValueError for an unknown data set, or a rate or a cv that is not positive.
    """
    if dataset not in LENGTHS:
        raise ValueError(f"data set {dataset!r} is unknown; choose {', '.join(LENGTHS)}, or give a tape")
    _refuse_rate(rate_per_s)
    count = int(RUN_S * rate_per_s + 1e-9) if n is None else n
    if not count:
        raise ValueError(f"{rate_per_s:g} requests/s bring none in {RUN_S:g} s; give a number of requests")
    rng = np.random.default_rng(seed)
    arrival = arrivals(count, rate_per_s, rng, cv)
    prompt, output = (tokens_of_text * fit.draw(count, rng) for fit in LENGTHS[dataset])
    n_prompt, n_output = (np.maximum(1, np.rint(drawn)).astype(np.int64) for drawn in (prompt * length_scale, output))
    arrival = client_arrivals(count, rate_per_s, cv) if of_client else arrival
    return Requests(arrival, n_prompt, n_output, origin=f"synthetic {dataset}")


def arrivals(n: int, rate_per_s: float, rng: np.random.Generator, cv: float = 1.0) -> Floats:
    """(n,) rising arrival times: gamma gaps of mean 1 / rate and coefficient of variation cv (1: Poisson).

    Raises ValueError for a rate that is not positive or a cv outside 0.001..100.
    """
    _refuse_rate(rate_per_s)
    if not 1e-3 <= cv <= 100:  # beyond, gamma gaps are equal, or all but a few of them zero, to the last digit
        raise ValueError(f"cv {cv:g} must lie in 0.001..100; 1 is Poisson")
    return np.cumsum(rng.gamma(1.0 / cv**2, cv**2 / rate_per_s, n))


def client_arrivals(n: int, rate_per_s: float, cv: float = 1.0) -> Floats:
    """(n,) when vLLM's benchmark client sends: at once, then after gaps of numpy's legacy generator, which it seeds with 0 unless
    told otherwise, so that all runs at a rate have the same."""
    gaps = np.random.RandomState(0).gamma(1.0 / cv**2, cv**2 / rate_per_s, n)
    return np.append(0.0, np.cumsum(gaps[:-1]))


def _refuse_rate(rate_per_s: float) -> None:
    if not 0 < rate_per_s < float("inf"):
        raise ValueError(f"rate {rate_per_s} requests/s must be above 0 and finite")


def resampled(requests: Requests, n: int | None, rate_per_s: float, seed: int, cv: float = 1.0) -> Requests:
    """n requests drawn with replacement from these, 600 s of them unless given, with new arrivals; tape_request tells which each
    one is."""
    _refuse_rate(rate_per_s)
    n = max(1, int(RUN_S * rate_per_s + 1e-9)) if n is None else n
    rng = np.random.default_rng(seed)
    arrival = arrivals(n, rate_per_s, rng, cv)
    of_tape = requests.tape_request if len(requests.tape_request) else np.arange(len(requests))
    named = replace(requests, origin=f"resampled from {requests.origin}", tape_request=of_tape)
    return named.taken(rng.integers(0, len(requests), n), arrival)


def spread_ties(requests: Requests) -> Requests:
    """The same requests with equal arrival times spread evenly until the next one: traces stamped in steps are no queue.

    Those of the last stamp take as long as the step before.
    """
    stamps, first, counts = np.unique(requests.arrival_s, return_index=True, return_counts=True)
    if stamps.size < 2:
        return requests
    steps = np.append(np.diff(stamps), stamps[-1] - stamps[-2])
    within = np.arange(len(requests)) - np.repeat(first, counts)
    return replace(requests, arrival_s=requests.arrival_s + within * np.repeat(steps / counts, counts))


def from_table(rows: pl.DataFrame, origin: str) -> Requests:
    """The requests of a tape's table `requests`, in order of arrival; of equal ones by request id. They share no prefix."""
    rows = rows.sort("request_id").with_row_index("row").sort("arrival_s", maintain_order=True)
    return Requests(
        rows["arrival_s"].to_numpy().astype(np.float64),
        rows["n_prompt_tokens"].to_numpy().astype(np.int64),
        rows["n_output_tokens"].to_numpy().astype(np.int64),
        origin=origin,
        tape_request=rows["row"].to_numpy().astype(np.int64),
    )


def sharing(requests: Requests, prefix_blocks: Sequence[Sequence[int]], settings: Mapping[str, Any]) -> Requests:
    """The same requests with the prefixes that their prompts share. prefix_blocks: an id per block of each prompt; equal ids mean
    equal prefixes. settings: of the tape, which say how many tokens a block has. Raises ValueError naming a request whose blocks
    do not fit its prompt."""
    size = settings.get("prefix_block_tokens", PREFIX_TOKENS)
    for r, (blocks, n_tokens) in enumerate(zip(prefix_blocks, requests.n_prompt_tokens.tolist(), strict=True)):
        if len(blocks) != -(-n_tokens // size):
            given = f"{len(blocks)} prefix blocks of {size} tokens"
            raise ValueError(f"request {r}: {given} do not fit {n_tokens} prompt tokens")
    n_of, rows = Counter(chain.from_iterable(prefix_blocks)), dict[int, int]()
    found, prefix = [[0, 0, 0]], np.zeros(len(requests), np.int64)
    for r, (blocks, n_tokens) in enumerate(zip(prefix_blocks, requests.n_prompt_tokens.tolist(), strict=True)):
        for i, block in enumerate(takewhile(lambda of: n_of[of] > 1, blocks)):
            if (row := rows.setdefault(block, len(found))) == len(found):
                found.append([int(prefix[r]), n_tokens, 0])
            prefix[r], found[row][1] = row, min((i + 1) * size, n_tokens, found[row][1])
    return replace(requests, prefix=prefix, prefixes=np.array(found))


def cached_tokens(requests: Requests) -> Ints:
    """(n,) leading tokens of each prompt that an earlier request left in a KV memory without bounds, in whole blocks; at most all
    but one of the prompt (Mooncake, FAST 2025)."""
    seen, found = {0}, np.zeros(len(requests), np.int64)
    for r, row in enumerate(requests.prefix.tolist()):
        of = row
        while of not in seen:
            of = int(requests.prefixes[of, 0])
        found[r] = min(requests.prefixes[of, 1], requests.n_prompt_tokens[r] - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        while row != of:
            seen.add(row)
            row = int(requests.prefixes[row, 0])
    return found
