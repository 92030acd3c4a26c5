"""Routers by name that text makes whole: which experts a token takes, by what the model ranks and what is resident."""

from __future__ import annotations

from tokentape.policies.sliced import ROUTERS, SliceMoE
from tokentape.policies.sliced.ranking import Router

Route = Router | SliceMoE
ROUTES: dict[str, type[Route]] = {"slicemoe": SliceMoE} | {name: ROUTERS[name] for name in ("cache_prior", "cumsum", "max_rank")}
