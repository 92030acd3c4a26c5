"""How far open-loop replay is from what really happens: the same policy on the same text, watching the model and inside it.

Open loop, the scores are those the unmodified model had: a rerouted token does not change what comes after. Closed loop, it does.
Both run the same kernels (policies/sliced) on the same windows, each with a cache of its own.
"""

from tokentape.capture import models
from tokentape.capture.evaluate import Report
from tokentape.capture.live.quality import on_text, windows
from tokentape.capture.live.routers import Sliced
from tokentape.capture.live.slots import Inside
from tokentape.capture.live.system import SystemTried

Totals = dict[str, float]


def both_loops(
    loaded: models.Loaded, dataset: str, run: SystemTried, seed: int = 0, progress: Report = lambda done, total, name: None
) -> tuple[Totals, Totals, int]:
    """What open-loop replay counts, what the closed loop counts, and the high-precision bytes of one expert.

    Raises ValueError for a data set too short for a window.
    """
    inside = run.inside(loaded, seed)
    (slot,) = inside.slots
    assert isinstance(slot, Sliced)
    watching = Sliced(loaded.model, slot.system, slot.capacity_bytes, run.scheme, seed, watches=True)
    chosen = windows(loaded, dataset, run, seed)
    with models.suitable_threads(loaded.model):
        on_text(loaded, chosen, run, Inside(loaded.model, watching), lambda n, of: progress(n, 2 * of, dataset))
        on_text(loaded, chosen, run, inside, lambda n, of: progress(of + n, 2 * of, dataset))
    return watching.totals, slot.totals, sum(slot.slices)
