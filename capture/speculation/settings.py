"""What decides a draft: the drafter, the shape of its tree, the experts and bits it may use."""

from dataclasses import dataclass

from tokentape.policies.matryoshka import MAT, named
from tokentape.policies.names import unknown
from tokentape.policies.speculation import POOLS
from tokentape.policies.speculation.pools import pool_size
from tokentape.policies.speculation.tree import Shape

DRAFTERS = ("elastic", "quant", "eagle", "ngram", "model:ID")
STATICS = ("slices", "full")
BITS_HIGH = 8
ALL, FULL = "all", "full"


@dataclass(frozen=True)
class DraftSettings:
    """A drafter and its knobs; those that a drafter does not have are set to what it does, so that equal drafts compare equal.

    pool, pool_frac: policy and share of a layer's experts (elastic). bits: width the drafter reads, 0 for weights as loaded;
    scheme: how narrow weights follow (docs/quantise.md). static: whether attention, shared parts and head are read at these bits
    too (slices) or as loaded (full). Raises ValueError for whatever does not go together.
    """

    draft: str = "elastic"
    depth: int = 4
    width: int = 1
    verify_nodes: int | None = None
    pool: str = "hotness"
    pool_frac: float = 0.5
    bits: int = 4
    scheme: str | None = None
    static: str = "slices"

    def __post_init__(self) -> None:
        _ = self.shape  # refuses bad values
        if self.draft == "ngram" and self.width > 1:
            raise ValueError("an n-gram drafter proposes one chain; leave --draft-width at 1")
        if self.draft not in DRAFTERS[:-1] and not self.model_id:
            raise unknown("drafter", self.draft, DRAFTERS)
        if self.draft != "elastic":
            self._set(pool=ALL, pool_frac=1.0)
        elif self.pool not in POOLS:
            raise unknown("pool policy", self.pool, POOLS)
        pool_size(1, self.pool_frac)
        if self.static not in STATICS:
            raise ValueError(f"draft static {self.static!r}: give slices (read at the draft's bits) or full (as loaded)")
        if self.draft not in ("elastic", "quant"):
            self._set(bits=0)
        if self.bits == 0:
            self._set(scheme=FULL, static=FULL)
            if self.draft == "quant":
                raise ValueError("draft bits 0: a quantised copy needs a width; give --draft-bits 2 to 7")
            return
        if not 1 <= self.bits < BITS_HIGH:
            raise ValueError(f"draft bits {self.bits} must lie in 1..{BITS_HIGH - 1}, or 0 for the weights as loaded")
        self._set(scheme=self.scheme or ("lsb_aug" if self.draft == "elastic" else "base_sym"))
        named(str(self.scheme))

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> Shape:
        return Shape(self.depth, self.width, self.verify_nodes)

    @property
    def model_id(self) -> str:
        """The small model of `model:ID`; empty for other drafters."""
        return self.draft.removeprefix("model:") if self.draft.startswith("model:") else ""

    @property
    def pair(self) -> MAT | None:
        """High and low width; None for weights as loaded."""
        return MAT(BITS_HIGH, self.bits) if self.bits else None

    def __str__(self) -> str:
        """As column policy_state of a draft pass holds it."""
        parts = [self.draft]
        if self.pool != ALL:
            parts.append(f"pool={self.pool}:{self.pool_frac:g}")
        if self.bits:
            parts.append(f"{self.scheme}:{BITS_HIGH}>{self.bits} static={self.static}")
        return " ".join(parts)
