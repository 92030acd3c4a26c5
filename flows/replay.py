"""Flow `replay_grid`: the replays of a study that are missing. `replay_grid.fn(...)` runs it without Prefect's server."""

from __future__ import annotations

from flows import prefect_settings  # noqa: F401 isort:skip  before prefect
from prefect import flow

from flows import grid, study
from flows.console import progress_bar
from warehouse.tape import Store


@flow(name="replay-grid", retries=1, retry_delay_seconds=10)
def replay_grid(
    name: str = "baselines", store: str | None = None, traces: tuple[str, ...] = (), runner: str = "threads"
) -> dict[str, int]:
    """Runs study `name` (a shipped one or a TOML file), on `traces` where given instead of its own.

    Returns how many replays were computed, found finished and not possible.
    """
    chosen = study.load(name)
    if traces:
        chosen = chosen.model_copy(update={"traces": traces})
    with progress_bar(f"study {name}") as show:
        report = grid.run(chosen, Store(store), runner, progress=show)
    return {"run": report.n_run, "found": report.n_found, "impossible": len(report.impossible)}
