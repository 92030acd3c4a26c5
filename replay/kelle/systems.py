"""The five systems of Kelle section 8.1: a machine, and what is done with the KV cache on it; what a step is asked of, and how it
is counted where the paper and physics differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokentape.hw.fit_files import FitFiles
from tokentape.hw.spec import HardwareSpec, load, with_values
from tokentape.hw.work import Floats

MEAN_POINTS = 33  # lengths that the mean over a decode is taken at
BASELINE, KELLE = "Original+SRAM", "Kelle+eDRAM"
PROFILE = "kelle"
# Name: machine, and whether it evicts, recomputes, schedules. Source: Kelle section 8.1.1.
SYSTEMS: dict[str, tuple[str, bool, bool, bool]] = {
    BASELINE: ("kelle-sram", False, False, False),
    "Original+eDRAM": ("kelle-original-edram", False, False, False),
    "AEP+SRAM": ("kelle-sram", True, False, False),
    "AERP+SRAM": ("kelle-sram", True, True, False),
    KELLE: ("kelle-edram", True, True, True),
}


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What recomputing systems hold once for all heads, by per cent of the tokens kept, as counted on a tape (shares.py).

    pairs: of the pairs of token and head that are kept, the share whose token is popular; tokens: popular tokens over those that
    a head keeps."""

    pairs: dict[str, float]
    tokens: dict[str, float]

    def __post_init__(self) -> None:
        if self.pairs.keys() != self.tokens.keys() or not self.pairs:
            raise ValueError("pairs and tokens must name the same percentages of tokens kept")
        each = zip(self.pairs, self.pairs.values(), self.tokens.values(), strict=True)
        if not all(percent.isdigit() and 0.0 <= pairs <= 1.0 and 0.0 <= tokens < float("inf") for percent, pairs, tokens in each):
            raise ValueError("percentages must be whole, shares of pairs lie in 0 to 1 and those of tokens be finite, from 0 on")

    def once(self, kept_frac: Floats) -> tuple[Floats, Floats]:
        """(pairs, tokens) where this share of the tokens is kept."""
        at = sorted(self.pairs, key=int)
        percents, asked = [int(percent) for percent in at], 100.0 * kept_frac
        pairs, tokens = (np.interp(asked, percents, [of[percent] for percent in at]) for of in (self.pairs, self.tokens))
        return pairs, tokens


FITS = FitFiles("kelle", Shares, "largest standard error of a share, over requests")


@dataclass(frozen=True, kw_only=True)
class System:
    """A machine with a policy.

    schedules: a layer's data live by Kelle's schedule (section 6). scans: the token to evict is found by reading every score.
    """

    name: str
    machine: HardwareSpec
    evicts: bool = False
    recomputes: bool = False
    schedules: bool = False
    scans: bool = False

    def on(self, values: Mapping[str, float]) -> System:
        """The same system on a machine that differs in these numbers, by dotted key. Raises BadSpec for one that it has not."""
        return replace(self, machine=with_values(self.machine, values))

    @property
    def is_edram(self) -> bool:
        """Its KV memory is embedded DRAM."""
        tier = self.machine.tiers.get(self.machine.roles.kv_cache)
        return tier is not None and tier.kind == "edram"


def decisions(name: str) -> dict[str, str]:
    """What a system of the paper decides: which keys and values are kept, and how cells are refreshed, in SRAM not at all."""
    machine, evicts, recomputes, schedules = SYSTEMS[name]
    kept = {"kv": "aerp" if recomputes else "aep" if evicts else "full"}
    return kept | ({"refresh": "2drp" if schedules else "uniform"} if "edram" in machine else {})


def systems(machine_of: Callable[[str], HardwareSpec] = load) -> dict[str, System]:
    """The five systems by name. machine_of: the machine of a name, the shipped one unless told otherwise."""
    names = ("evicts", "recomputes", "schedules")
    return {
        name: System(name=name, machine=machine_of(machine), **dict(zip(names, decided, strict=True)))
        for name, (machine, *decided) in SYSTEMS.items()
    }


@dataclass(frozen=True)
class Work:
    """A batch of requests. budget_tokens: kept per request where the system evicts; None: all. kv_bits: of an element of KV."""

    n_context_tokens: int
    n_decode_tokens: int
    batch: int = 16
    budget_tokens: int | None = None
    kv_bits: float = 16.0

    def __post_init__(self) -> None:
        for name, least in (("n_context_tokens", 0), ("n_decode_tokens", 0), ("batch", 1), ("budget_tokens", 1), ("kv_bits", 1)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, (int, float)) and value >= least):
                raise ValueError(f"{name} is {value!r}; it must be a number of at least {least}")

    @property
    def n_tokens(self) -> int:
        """Length of a request at its end."""
        return self.n_context_tokens + self.n_decode_tokens


@dataclass(frozen=True)
class Accounting:
    """How a step is counted where the paper and physics differ.

    true_gqa: KV of the model's own KV heads, else of as many as query heads. eval_point: final, the longest step, or mean, over
    the decode. charges_recompute: recomputation occupies the array, else it takes no time. must_fit_dram: what does not fit has
    no time. streamed_bypasses_edram: KV that comes from DRAM is not written to eDRAM and read again (assumed; without it the
    paper's energies are missed). cuts_windows: a layer with a sliding window attends to no more.
    """

    true_gqa: bool = False
    eval_point: str = "final"
    charges_recompute: bool = False
    must_fit_dram: bool = False
    streamed_bypasses_edram: bool = True
    cuts_windows: bool = False

    def __post_init__(self) -> None:
        if self.eval_point not in ("final", "mean"):
            raise ValueError(f"eval_point is {self.eval_point!r}; choose final or mean")

    @property
    def n_lengths(self) -> int:
        """Lengths of a request that a step is evaluated at."""
        return 1 if self.eval_point == "final" else MEAN_POINTS

    def lengths(self, works: Sequence[Work]) -> Floats:
        """(works, n_lengths) of each."""
        ends = np.array([(work.n_context_tokens, work.n_tokens) for work in works], np.float64)
        return ends[:, 1:] if self.eval_point == "final" else np.linspace(ends[:, 0], ends[:, 1], MEAN_POINTS, axis=1)


PAPER = Accounting()
PHYSICAL = Accounting(true_gqa=True, eval_point="mean", charges_recompute=True, must_fit_dram=True)
MODES = {"paper": PAPER, "physical": PHYSICAL}
WHOLE = Accounting(true_gqa=True, charges_recompute=True, cuts_windows=True)  # the last step of the model's own
