"""ELMoE-3D's Table 3 as the claims hold it: what is an input, what may be fitted on, what is predicted, what is withheld."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokentape.hw.elmoe3d_constants import ELMoE3DConstants
from tokentape.hw.spec import HardwareSpec
from tokentape.replay.elmoe3d.points import Point
from tokentape.warehouse.geometry import Geometry

PAPER = "elmoe3d"
TABLE = "Table 3"
CALIBRATE = "calibrate"


@dataclass(frozen=True)
class Cell:
    """A row of the table. phi_ar, phi_sd: None where withheld, never 0; ar_claim, sd_claim: ids of their claims."""

    hb_gb: int
    model: str  # as the models are named that ship
    scheme: str
    batch: int
    alpha: float
    phi_ar: float | None
    phi_sd: float | None
    role_ar: str
    role_sd: str
    ar_claim: str
    sd_claim: str

    @property
    def is_open(self) -> bool:
        return self.phi_ar is not None and self.phi_sd is not None

    @property
    def scenario(self) -> tuple[int, str, int]:
        """What the schemes are compared at."""
        return self.hb_gb, self.model, self.batch


def cells(claims: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Rows of Table 3 in the claims' order. Raises ValueError for a row that lacks its alpha or one of its speed-ups' claims."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for claim in claims:
        if claim["paper"] == PAPER and claim["location"] == TABLE:
            found.setdefault((claim["model"], claim["setting"]), {})[claim["metric"]] = claim
    return [_cell(model, setting, of) for (model, setting), of in found.items()]


def _cell(model: str, setting: str, of: Mapping[str, Mapping[str, Any]]) -> Cell:
    for metric in ("alpha", "phi_ar", "phi_sd"):
        if metric not in of:
            raise ValueError(f"{TABLE}, {model}, {setting}: no claim of {metric}")
    if of["alpha"]["value"] is None:
        raise ValueError(f"{of['alpha']['claim_id']}: alpha is an input and has no value")
    where = dict(part.split("=") for part in setting.split())
    return Cell(
        hb_gb=int(where["hb_gb"]),
        model=model.lower(),
        scheme=where["scheme"],
        batch=int(where["batch"]),
        alpha=of["alpha"]["value"],
        phi_ar=of["phi_ar"]["value"],
        phi_sd=of["phi_sd"]["value"],
        role_ar=of["phi_ar"]["role"],
        role_sd=of["phi_sd"]["role"],
        ar_claim=of["phi_ar"]["claim_id"],
        sd_claim=of["phi_sd"]["claim_id"],
    )


def without_windows(geometry: Geometry) -> Geometry:
    """As the paper's rows have it: every layer attends to all tokens."""
    return geometry.model_copy(update={"sliding_windows": ()})


@dataclass(frozen=True)
class Setup:
    """What the paper ran: models by name with the format of their experts, machines by GB of HB, the small model of SLM-SD."""

    models: Mapping[str, tuple[Geometry, str]]
    machines: Mapping[int, HardwareSpec]
    drafter: Geometry

    def point(self, cell: Cell, fit: ELMoE3DConstants, **changed: Any) -> Point:
        """The cell as a point; changed: fields of Point that differ. Raises ValueError for a model without a law."""
        geometry, expert_format = self.models[cell.model]
        fields: dict[str, Any] = {
            "model": cell.model,
            "geometry": geometry,
            "expert_format": expert_format,
            "machine": self.machines[cell.hb_gb],
            "law": fit.law(cell.model),
            "speculation": fit.speculation,
            "scheme": cell.scheme,
            "batch": cell.batch,
            "alpha": cell.alpha,
            "drafter": self.drafter,
        }
        return Point(**{**fields, **changed})
