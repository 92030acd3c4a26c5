"""What in a tape decides the hit rates: skew, reuse, locality, and whether prefill predicts decode."""

from __future__ import annotations

from tokentape.dashboards import answers, rows
from tokentape.dashboards.engine.ask import Ask
from tokentape.dashboards.engine.figures import Drawn, sentences


def popularity(ask: Ask) -> Drawn | None:
    crowd = rows.crowd(ask.connection, ask.params["traces"])
    said = {f"{row['trace']}|{row['phase']}": answers.popularity(row, row["phase"]) for row in crowd.to_dicts()}
    found = rows.popularity(ask.connection, ask.params["traces"])
    return None if found.is_empty() else Drawn({"popularity": found}, said)


def reuse(ask: Ask) -> Drawn | None:
    found = rows.reuse(ask.connection, ask.params["traces"])
    said = sentences(found, ["trace", "scope", "rules"], answers.reuse)
    return None if found.is_empty() else Drawn({"reuse": found}, said)


def locality(ask: Ask) -> Drawn | None:
    found = rows.locality(ask.connection, ask.params["traces"])
    return None if found.is_empty() else Drawn({"locality": found}, sentences(found, ["trace"], answers.locality))


def similarity(ask: Ask) -> Drawn | None:
    found = rows.similarity(ask.connection, ask.params["traces"])
    return None if found.is_empty() else Drawn({"similarity": found}, sentences(found, ["trace"], answers.similarity))
