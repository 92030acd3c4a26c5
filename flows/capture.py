"""A tape of the dataflow: what to record, and recording it."""

import shlex
from pathlib import Path

from pydantic import BaseModel, Field

from tokentape.warehouse.tape import Store


class Tape(BaseModel):
    """What to record from a live model."""

    model: str = Field(
        default="embedded", description="embedded, a hub id (owner/name) or a local directory in Hugging Face format."
    )
    dataset: str = Field(default="math", description="Built-in data set, hub id or file of prompts.")
    tables: tuple[str, ...] = Field(
        default=("requests", "tokens", "routing"), description="requests, tokens, passes, routing, scores, attention."
    )
    max_requests: int = Field(default=8, ge=1, description="Requests at most.")
    max_prompt_tokens: int = Field(default=256, ge=1, description="Tokens of a prompt at most.")
    max_new_tokens: int = Field(default=64, ge=0, description="Tokens generated per request at most.")

    def __str__(self) -> str:
        model = Path(self.model).name if Path(self.model).is_absolute() else self.model
        return f"capture {self.dataset} from {model}"

    @property
    def command(self) -> str:
        """What records it by hand."""
        asked = {name.replace("_", "-"): value for name, value in self.model_dump().items()} | {"tables": ",".join(self.tables)}
        return f"tokentape capture {' '.join(f'--{name} {shlex.quote(str(value))}' for name, value in asked.items())} --resume"


def planned_id(tape: Tape) -> str:
    """The trace id that it has or will have: a hash of all that decides its rows. Raises ValueError on bad input."""
    from tokentape.capture.plan import CaptureSettings, plan

    return plan(CaptureSettings(**tape.model_dump())).trace_id


def record(tape: Tape, store: str | None) -> str:
    """Records it, or finds the finished one of equal settings; its trace id. An unfinished one is continued."""
    from tokentape.capture.run import CaptureSettings, capture
    from tokentape.flows.console import progress_bar

    with progress_bar(f"capture {tape.dataset}") as show:
        return capture(CaptureSettings(**tape.model_dump()), Store(store), resume=True, progress=show)
