"""The table of errors in docs/calibration.md, written from the measured tables and the shipped constants.

python -m tokentape.hw.error_table docs/calibration.md FOLDERS   rewrites what stands between `<!-- errors -->` and `<!-- end -->`
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import polars as pl

from tokentape.hw import calibrate, measured
from tokentape.hw.files import write_text
from tokentape.hw.operators import COLLECTIVES, OPERATORS
from tokentape.hw.validate import compare, errors

STATISTICS = ("mape", "median", "p95")
SPLITS = ("fitted", "held_out", "other_device")
HEAD = (
    "| operator | constants | device | rows | fitted | held out | by the other devices' constants |",
    "|---|---|---|---|---|---|---|",
)


def markdown(rows: pl.DataFrame) -> str:
    """One line per operator and device: mean (median, 95th percentile) in percent. rows: of table validation."""
    found = rows.rows_by_key(("operator", "device", "split"), named=True, unique=True)
    devices, lines = sorted(set(rows["device"])), list(HEAD)
    for operator, module in ((name, of) for name, of in OPERATORS.items() if name not in COLLECTIVES):
        for device in devices:
            errors = ([100 * found[operator, device, split][f"{of}_frac"] for of in STATISTICS] for split in SPLITS)
            cells = ["{:.1f} ({:.1f}, {:.1f})".format(*of) for of in errors]
            n = found[operator, device, "fitted"]["n"]
            lines.append(f"| {operator} | {len(module.parameters)} | {device} | {n:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def refreshed(text: str, rows: pl.DataFrame) -> str:
    """The page with the table of these rows."""
    table = markdown(rows)
    return re.sub(r"(?s)(<!-- errors -->\n).*?(<!-- end -->)", lambda match: f"{match[1]}{table}\n{match[2]}", text)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m tokentape.hw.error_table docs/calibration.md FOLDERS")
    page = Path(sys.argv[1])
    tables = measured.read(list(map(Path, sys.argv[2:])))
    write_text(page, refreshed(page.read_text(encoding="utf-8"), errors(pl.concat(compare(tables, calibrate.shipped())))))
