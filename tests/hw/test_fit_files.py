"""Fitted constants in files: what ships is what was fitted, a file is read as it was written, a damaged one is one line."""

import hashlib
import json
import re
from codecs import BOM_UTF8
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from refusing import refuses

from tokentape.hw import elmoe3d_constants, serving_fits
from tokentape.hw.fit_files import FITS, FitFiles
from tokentape.hw.sourced import BadSpec
from tokentape.replay.cxl_ndp import fit as cxl_ndp
from tokentape.replay.kelle import systems as kelle

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "fits_golden.json").read_text(encoding="utf-8"))
# A system, what of a shipped file of it is replaced, by what, and what is said.
DAMAGES: dict[str, list[str]] = json.loads((Path(__file__).parent / "bad_fits.json").read_text(encoding="utf-8"))
SYSTEMS: dict[str, FitFiles[Any]] = {
    files.system: files for files in (serving_fits.FILES, elmoe3d_constants.FILES, kelle.FITS, cxl_ndp.FILES)
}
SHIPPED = [(system, name) for system in SYSTEMS for name in GOLDEN if name == system or name.startswith(f"{system}-")]


def test_every_shipped_fit_is_tried() -> None:
    operators = {path.stem for path in FITS.glob("*_*_*.toml")}
    assert {path.stem for path in FITS.glob("*.toml")} - operators - {"split"} == set(GOLDEN) == {name for _, name in SHIPPED}


@pytest.mark.parametrize(("system", "name"), SHIPPED)
def test_shipped_constants_are_those_that_were_fitted(system: str, name: str) -> None:
    """To the last bit, as the files of before the one format had them."""
    fit = SYSTEMS[system].load(name)
    claims = {
        "n_claims": len(fit.fitted_on),
        "claims_sha256": hashlib.sha256("\n".join(fit.fitted_on).encode()).hexdigest()[:16],
    }
    of = {key: getattr(fit, key) for key in ("machine", "model", "mode", "residual")}
    assert of | claims | {"constants": asdict(fit.constants)} == GOLDEN[name]


@pytest.mark.parametrize(("system", "name"), SHIPPED)
def test_a_fit_is_written_as_it_ships_and_read_as_it_was_written(system: str, name: str, tmp_path: Path) -> None:
    files, path = SYSTEMS[system], tmp_path / "mine.toml"
    fit = files.load(name)
    path.write_bytes(files.text(fit))
    assert path.read_text() == (FITS / f"{name}.toml").read_text()
    assert files.load(str(path)) == fit == files.load(name.removeprefix(f"{system}-"))
    path.write_bytes(BOM_UTF8 + files.text(fit))  # as editors of Windows write it
    assert files.load(str(path)) == fit


def test_a_system_with_one_fit_needs_no_name() -> None:
    assert kelle.FITS.load() == kelle.FITS.load("kelle")
    assert cxl_ndp.FILES.load() == cxl_ndp.FILES.load("cxl_ndp")


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_file_is_one_line_with_the_remedy(what: str, tmp_path: Path) -> None:
    system, damaged, by, says = DAMAGES[what]
    shipped = {"serving": "serving-h100x2", "elmoe3d": "elmoe3d-l1"}.get(system, system)
    text = (FITS / f"{shipped}.toml").read_text()
    (tmp_path / "bad.toml").write_text(bad := re.sub(damaged, by, text, count=1))
    assert bad != text
    told = refuses(".", SYSTEMS[system].load, str(tmp_path / "bad.toml"), error=BadSpec)
    assert says in told
    assert f"bad.toml: not a file of {system} constants (" in told
    assert told.endswith(f"write it with `tokentape calibrate {system}`")
