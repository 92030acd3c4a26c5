"""Compositions of several decisions that are typed as one policy. The dict maps the name a person types to the class."""

from tokentape.policies.mixed import MixedPrecision
from tokentape.policies.sliced import SliceMoE

System = SliceMoE | MixedPrecision
SYSTEMS: dict[str, type[System]] = {"slicemoe": SliceMoE, "cxl_ndp": MixedPrecision}
