"""Studies of published systems: one settings file each, and the module that runs it."""

from __future__ import annotations

SYSTEMS = {
    "cxl-ndp": "flows.systems.cxl_ndp.study",
    "elmoe3d": "flows.systems.elmoe3d.study",
    "kelle": "flows.systems.kelle.study",
    "layered-prefill": "flows.systems.layered_prefill.study",
    "slicemoe": "flows.systems.slicemoe.study",
}
