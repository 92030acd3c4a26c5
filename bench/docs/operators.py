"""The table of errors in docs/calibration.md, from the measured tables and the shipped constants.

python -m bench.docs.operators docs/calibration.md FOLDERS   rewrites `<!-- errors -->`
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from bench.docs import rewritten, table, write
from tokentape.hw import calibrate, measured
from tokentape.hw.operators import OPERATORS
from tokentape.hw.validate import compare, errors

STATISTICS = ("mape", "median", "p95")
SPLITS = ("fitted", "held_out", "other_device")
HEAD = ("operator", "constants", "device", "rows", "fitted", "held out", "by the other devices' constants")


def refreshed(text: str, rows: pl.DataFrame) -> str:
    """The page with one line per operator and device: mean (median, 95th percentile) in percent. rows: of table validation."""
    found = rows.rows_by_key(("operator", "device", "split"), named=True, unique=True)
    lines = []
    for operator, module in OPERATORS.items():
        for device in sorted({device for of, device, split in found if (of, split) == (operator, "fitted")}):
            shares = ([100 * found[operator, device, split][f"{of}_frac"] for of in STATISTICS] for split in SPLITS)
            cells = ["{:.1f} ({:.1f}, {:.1f})".format(*of) for of in shares]
            lines.append((operator, len(module.parameters), device, f"{found[operator, device, 'fitted']['n']:,}", *cells))
    return rewritten(text, "errors", lambda *_: "\n" + table(HEAD, lines))


if __name__ == "__main__":
    folders = list(map(Path, sys.argv[2:]))

    def now(text: str) -> str:
        return refreshed(text, errors(pl.concat(compare(calibrate.with_links(measured.read(folders))[0], calibrate.shipped()))))

    write("operators docs/calibration.md FOLDERS", sys.argv[1:2] if folders else (), now)
