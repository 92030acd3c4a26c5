"""Constants of the ELMoE-3D model: what its paper's table implies and no data sheet says, kept in hw/fits/elmoe3d-*.toml.

Two levels: L0 ties the popularity's exponent to the hit law (s = 1 - beta), L1 fits it apart. Two sets of rows for what
speculation costs: `calibrate`, the rows whose role says so, and `all-open`, every published row, which is no prediction.
"""

from dataclasses import dataclass, fields

from tokentape.hw.fit_files import FitFiles

LEVELS = ("L0", "L1")
ROWS = ("calibrate", "all-open")


@dataclass(frozen=True, kw_only=True)
class ModelLaw:
    """Of a model. beta: hit rate = (resident share of the experts)^beta; exponent: s of its experts' popularity (hw/coverage.py);
    own_table: its EAGLE head holds a copy of the input table, as some that are published do."""

    beta: float
    exponent: float
    own_table: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.beta <= 1.0:
            raise ValueError(f"beta is {self.beta}; it must be above 0 and at most 1")


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """Of a round. Tokens are EFFECTIVE independent ones per request, the overlap inside a request folded in: not tree sizes.

    n_draft_steps: d. verify_tokens: K, draft_tokens: w, both at batch 1 and growing with batch^growth (a). fade: c of the hit
    law in verification, beta_v = 1 - (1 - beta) batch^-c.
    """

    verify_tokens: float
    draft_tokens: float
    growth: float
    fade: float
    n_draft_steps: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0.0 <= value < float("inf") or (value == 0.0 and field.name not in ("growth", "fade")):
                raise ValueError(f"{field.name} is {value}; it must be finite and above 0")


@dataclass(frozen=True)
class ELMoE3DConstants:
    """level: of LEVELS; rows: of ROWS; laws: by model."""

    level: str
    rows: str
    speculation: Speculation
    laws: dict[str, ModelLaw]

    @property
    def name(self) -> str:
        """`elmoe3d-l1`, with the rows where they are not the headline's."""
        return f"elmoe3d-{self.level.lower()}" + ("" if self.rows == ROWS[0] else f"-{self.rows}")


FILES = FitFiles("elmoe3d", ELMoE3DConstants, "mean square of the relative errors of Phi_SD", digits=7)
load, text = FILES.load, FILES.text
