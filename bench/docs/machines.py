"""docs/machines.md, from the TOML files of the machines: python -m bench.docs.machines docs/machines.md"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.docs import write
from tokentape.hw.catalogue import rows, summary
from tokentape.hw.spec import HardwareSpec, find, load, shipped

_HEAD = """# Machines: every number with its band and its source

Written from hw/specs/*.toml by `python -m bench.docs.machines docs/machines.md`; change the files, not this page. Numbers are
those of one device; power and area are the whole machine's. Peak: of the engine that experts run on, a multiply-add counted as
two operations. Assumed: numbers of which the value or an end of the band rests on no source.
"""


def markdown(names: tuple[str, ...]) -> str:
    """The page: one summary table, then one table per machine."""
    specs = [load(name) for name in names]
    table = ["| machine | what | peak | tiers | roles | assumed |", "|---|---|---|---|---|---|"]
    table += [_line(f"[{name}](#{name})", *rest) for name, *rest in summary(names)]
    sections = [_section(spec, _about(find(name))) for name, spec in zip(names, specs, strict=True)]
    return "\n".join([_HEAD, *table, "", "\n".join(sections)])


def _section(spec: HardwareSpec, about: str) -> str:
    runs = f"Computes on `{spec.engine}` ({spec.dtype}) from `{spec.compute.memory or spec.fast}`"
    fetches = f"; misses go to `{spec.backing}`" if spec.backing else ""
    devices = f" Devices: {spec.n_devices}." if spec.n_devices > 1 else ""
    lines = [f"## {spec.name}", "", about, "", f"{runs}{fetches}.{devices}", ""]
    lines += ["| key | value | band | source |", "|---|---|---|---|"]
    lines += [_line(f"`{key}`", *cells) for key, *cells in rows(spec)]
    return "\n".join(lines) + "\n"


def _line(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |".replace("|  |", "| |")


def _about(path: Path) -> str:
    """The comment that opens the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    first_other = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.lstrip("# ") for line in lines[:first_other])


if __name__ == "__main__":
    write("machines docs/machines.md", sys.argv[1:], lambda _: markdown(shipped()))
