"""Writes docs/every_machine.md: python -m tokentape.flows.every_machine docs/every_machine.md"""

import sys
from pathlib import Path

from tokentape.hw.files import write_text
from tokentape.replay.every_machine import MODEL, page
from tokentape.warehouse.models import load

if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page(load(MODEL).geometry))
