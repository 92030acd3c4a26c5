"""Fits of the paper's server: numbers of cost profile layered_prefill and of its workloads, in hw/fits/serving-*.toml with what
they were fitted on (replay/serving/fit.py). They are correlated: 10 % more or less between two fits is normal."""

from dataclasses import dataclass

from tokentape.hw import profile
from tokentape.hw.fit_files import FitFiles

PROFILE = "layered_prefill"


@dataclass(frozen=True)
class ServingFitted:
    """length_scale: of the arXiv prompts; prefill_correlation: prefill tokens that touch as many experts as one decode token;
    numbers: of the profile, table -> key -> number."""

    length_scale: float
    prefill_correlation: float
    numbers: dict[str, dict[str, float]]

    def profile(self, **others: float | str | bool) -> profile.Profile:
        """The profile with these numbers. others: values of lane moe, in place of its own."""
        found = {f"{table}.{key}": number for table, of in self.numbers.items() for key, number in of.items()}
        return profile.with_values(PROFILE, found | {f"lane.moe.{key}": value for key, value in others.items()})


FILES = FitFiles("serving", ServingFitted, "sum of the squared misses, in sigmas")
load, text = FILES.load, FILES.text
