"""Prefect's settings, made before Prefect is imported: local, quiet, no telemetry. Imported first by every flow.

What the environment already says wins.
"""

import os
from contextlib import suppress
from pathlib import Path

SETTINGS = {
    "DO_NOT_TRACK": "1",  # telemetry of the client
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",  # telemetry of the server
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",  # the first start migrates a new database: 12 to 27 s
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "tokentape",  # notes and progress are lines of the run's log
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_CLI_PROMPT": "false",
}


def cache_home() -> Path:
    """Where Prefect keeps its database: `PREFECT_HOME`, else tokentape's folder of the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("PREFECT_HOME") or cache / "tokentape" / "prefect")


for name, value in {**SETTINGS, "PREFECT_HOME": str(cache_home())}.items():
    os.environ.setdefault(name, value)
with suppress(OSError):  # where it cannot be made, Prefect says so itself
    Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
