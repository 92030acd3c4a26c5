"""Studies of published systems: one settings file each, and the module that runs it."""

from __future__ import annotations

SYSTEMS = {"slicemoe": "flows.systems.slicemoe.study"}
