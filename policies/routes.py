"""Every router by name: which experts a token takes, by what the model ranks and what is resident."""

from __future__ import annotations

from tokentape.policies.sliced import ROUTERS, SliceMoE
from tokentape.policies.sliced.ranking import Router

Route = Router | SliceMoE
ROUTES: dict[str, type[Route]] = {"slicemoe": SliceMoE, **{name: of for name, of in ROUTERS.items() if of.needs_scores}}
