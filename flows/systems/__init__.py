"""Studies of published systems: one settings file each, and the module that runs it."""

from __future__ import annotations

SYSTEMS = {
    "elmoe3d": "flows.systems.elmoe3d.study",
    "layered-prefill": "flows.systems.layered_prefill.study",
    "slicemoe": "flows.systems.slicemoe.study",
}
