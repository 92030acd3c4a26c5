"""`python -m flows.serving_fit [chunked|long-context]` fits the serving constants of Layered Prefill's machine anew.

Writes hw/fits/serving-h100x2.toml, or serving-h100x2-long-context.toml.
"""

from __future__ import annotations

import sys

from hw import serving_constants
from hw.spec import load
from replay.serving_fit import calibrate
from warehouse import models
from warehouse.load import claims

MACHINE, MODEL = "h100x2", "qwen3-30b-a3b"


def main(mode: str = "chunked") -> None:
    fit = calibrate(claims().to_pylist(), models.load(MODEL).geometry, load(MACHINE), MODEL, mode, print)
    suffix = "" if mode == "chunked" else f"-{mode}"
    serving_constants.save(fit, serving_constants.FITS / f"serving-{MACHINE}{suffix}.toml")
    print(fit)


if __name__ == "__main__":
    main(*sys.argv[1:])
