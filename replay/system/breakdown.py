"""Where a run's time and energy go: by object, the decision that it follows from, and the resource that it keeps busiest."""

from dataclasses import dataclass

from tokentape.hw.profile import ENDS
from tokentape.hw.spec import HardwareSpec
from tokentape.policies.slots import System
from tokentape.replay.result import Metric
from tokentape.replay.serving.iteration import OBJECTS
from tokentape.replay.serving.workload import Requests
from tokentape.replay.system.recorded import Recorded
from tokentape.replay.system.run import BESIDE, Setting, simulate, spent

# The first of these that a system fills decides how much of an object there is.
_DECIDES = {
    OBJECTS["fetch"]: ("residency", "place", "route"),
    OBJECTS["prefetch"]: ("prefetch",),
    OBJECTS["expert.main.expert_cache"]: ("route", "precision"),
    OBJECTS["expert.main.expert_home"]: ("place", "residency"),
    OBJECTS["expert.near_compute.expert_home"]: ("place",),
    OBJECTS["exchange"]: ("place",),
    OBJECTS["kv_read"]: ("kv",),
    OBJECTS["attend"]: ("kv",),
    "draft": ("draft",),
    BESIDE["refresh"]: ("refresh",),
}


@dataclass(frozen=True)
class Share:
    """What an object takes. decision: the slot that decides how much of it there is; resource: that it asks most time of, empty
    where none is asked; busy: that time. frac: of the run's seconds, j_frac: of its joules, at the nominal numbers."""

    item: str
    decision: str
    resource: str
    busy: Metric
    seconds: Metric
    joules: Metric
    frac: float
    j_frac: float


def breakdown(
    recorded: Recorded, requests: Requests, system: System, machine: HardwareSpec, setting: Setting | None = None
) -> list[Share]:
    """Shares by falling seconds; they sum to the run's wall time and energy. Raises ValueError as `simulate`."""
    made = {end: simulate(recorded, requests, system, machine, setting, end, keeps_ledger=True) for end in ENDS}
    tables = {end: spent(of) for end, of in made.items()}
    nominal = tables["value"]

    def banded(item: str, what: str, unit: str) -> Metric:
        band = sorted(tables[end].get((item, what), 0.0) for end in ENDS)  # what runs side by side shares the time otherwise
        return Metric(nominal.get((item, what), 0.0), unit, band[0], band[-1])

    found = []
    for item in dict.fromkeys(item for item, _ in nominal):
        asked = {what: value for (of, what), value in nominal.items() if of == item and what not in ("seconds", "joules")}
        resource = max(asked, key=lambda name: asked[name], default="")
        seconds, joules = banded(item, "seconds", "s"), banded(item, "joules", "J")
        if not any((seconds.value, seconds.high, joules.value, joules.high)):
            continue
        slot = next((slot for slot in _DECIDES.get(item, ()) if getattr(system, slot) is not None), "schedule")
        shares = (seconds.value / made["value"].serving.wall_s, joules.value / sum(made["value"].joules_of.values()))
        found.append(Share(item, slot, resource, banded(item, resource, "s"), seconds, joules, *shares))
    return sorted(found, key=lambda share: (-share.seconds.value, -share.joules.value))
