"""`python -m flows.serving_fit` fits the serving constants of Layered Prefill's machine anew: hw/fits/serving-h100x2.toml."""

from __future__ import annotations

from hw import serving_constants
from hw.spec import load
from replay.serving_fit import calibrate
from warehouse import models
from warehouse.load import claims

MACHINE, MODEL = "h100x2", "qwen3-30b-a3b"


def main() -> None:
    fit = calibrate(claims().to_pylist(), models.load(MODEL).geometry, load(MACHINE), MODEL, print)
    serving_constants.save(fit, serving_constants.FITS / f"serving-{MACHINE}.toml")
    print(fit)


if __name__ == "__main__":
    main()
