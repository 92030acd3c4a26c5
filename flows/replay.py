"""Flow `replay_grid`: what is missing of a study. `replay_grid.fn(...)` runs it without Prefect's server."""

from __future__ import annotations

from tokentape.flows import prefect_settings  # noqa: F401 isort:skip  before prefect
from prefect import flow

from tokentape.flows.study_run import run_study
from tokentape.warehouse.tape import Store


@flow(name="replay-grid", retries=1, retry_delay_seconds=10)
def replay_grid(
    name: str = "baselines", store: str | None = None, traces: tuple[str, ...] = (), runner: str | None = None
) -> dict[str, int]:
    """Runs study `name`: a shipped one, published systems included, or a TOML file; a grid on `traces` instead of its own.

    Returns how many replays were computed, found finished and not possible; of a published system, how many answers it gave.
    """
    return run_study(name, Store(store), runner, traces=traces)
