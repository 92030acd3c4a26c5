"""Flow `capture`: one tape from a live model. `capture_flow.fn(...)` runs it without Prefect's server."""

from __future__ import annotations

from tokentape.flows import prefect_settings  # noqa: F401 isort:skip  before prefect
from prefect import flow

from tokentape.capture.run import CaptureSettings, capture
from tokentape.flows.console import capture_bar
from tokentape.warehouse.tape import Store


@flow(name="capture")
def capture_flow(
    model: str = "embedded",
    dataset: str = "math",
    tables: tuple[str, ...] = ("requests", "tokens", "routing"),
    max_requests: int = 8,
    max_prompt_tokens: int = 256,
    max_new_tokens: int = 64,
    store: str | None = None,
) -> str:
    """Records a tape, or finds the finished one of equal settings; its trace id. An unfinished one is continued."""
    settings = CaptureSettings(model, dataset, tables, max_requests, max_prompt_tokens, max_new_tokens)
    with capture_bar(dataset) as show:
        return capture(settings, Store(store), resume=True, progress=show)
