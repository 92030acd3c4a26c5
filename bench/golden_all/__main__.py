"""Whether a change of the code moves a number: two revisions make the demo and the studies, and what they made is compared.

Exit code 1 where anything differs. What a side made is kept by the hash of its files, so that a revision is made once.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.golden_all.compare import Finding, compare
from bench.golden_all.side import CLOSED_FORMS, PARTS, Side, build, tree_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.golden_all", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--base", default="HEAD", help="revision that is right")
    parser.add_argument("--new", default="", help="revision that is tried, else the working tree; the same files are made twice")
    parser.add_argument("--live", action="store_true", help="also what studies measure inside a live model, on hardly any text")
    parser.add_argument("--parts", default=",".join(PARTS), help="of: %(default)s")
    parser.add_argument("--workers", type=int, default=1, help="of a study")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache" / "tokentape-golden", help="where it is made")
    parser.add_argument("--json", action="store_true", help="what was found as JSON")
    asked = parser.parse_args()
    parts, work = asked.parts.split(","), asked.work.resolve()
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        parser.error(f"--parts {', '.join(unknown)}: there are {', '.join(PARTS)}")
    old, new = tree_of(asked.base), tree_of(asked.new)
    found: list[Finding] = []
    for part in parts:
        is_live = asked.live and bool(CLOSED_FORMS.get(part))
        sides: list[Side] = [build(old, work, is_live), build(new, work, is_live, is_again=old == new)]
        here = list(compare(part, *(side.make(part, asked.workers) for side in sides)))
        found += here
        if not asked.json:
            print("\n".join(map(str, here)) or f"same    {part}", flush=True)
    if asked.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    sys.exit(any(finding.differs for finding in found))


if __name__ == "__main__":
    main()
