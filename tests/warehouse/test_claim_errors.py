"""How answers are held against the papers' numbers: what is counted, what an error is, and errors together."""

from typing import Any

import pyarrow as pa
import pytest

from tokentape.warehouse.claim_errors import by_system, compared, signed
from tokentape.warehouse.load import claims
from tokentape.warehouse.tables import schema

ROLES = {"input", "calibrate", "predict", "report", "derived"}
# Rows that no model stands behind: sizes and inputs decide them.
CANNOT_MISS = {
    "cxl_ndp": ("ndp_side_latency_gain", "fp16_footprint"),
    "elmoe3d": (
        *("hb_over_ext_energy_efficiency", "truncation_error_low4", "rounding_error_low4"),
        *("eagle_alpha", "quant_alpha", "elastic_alpha"),
    ),
    "kelle": ("average_interval", "kv_cache_size", "peak", "area_increase"),
    "slicemoe": ("dram_over_flash_energy_efficiency", "cached_share_of_high_bit_experts", "high_bit_experts_per_layer"),
}


def table(*rows: tuple[Any, ...]) -> pa.Table:
    """Claims of (id, role, unit, comparator, value, setting)."""
    found = []
    for claim_id, role, unit, comparator, value, setting in rows:
        where = {"paper": "made_up", "location": "Table 1", "metric": "time", "model": "", "statistic": "value"}
        found.append(
            {"claim_id": claim_id, "role": role, "unit": unit, "comparator": comparator, "value": value, "setting": setting}
            | where
        )
    return pa.Table.from_pylist(found, schema=schema("claims"))


def answer(
    claim_id: str, value: float, mode: str = "paper", low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    return {"claim_id": claim_id, "study": "made-up", "mode": mode, "value": value, "low": low, "high": high, "how": ""}


STATED = table(
    ("a", "predict", "s", "=", 2.0, ""),
    ("b", "predict", "percent", "=", -20.0, ""),
    ("c", "predict", "s", "<=", 5.0, ""),
    ("d", "predict", "s", "=", 5.0, "layers (at least)"),
    ("e", "calibrate", "s", "=", 4.0, ""),
    ("f", "derived", "s", "=", 1.0, ""),
    ("g", "input", "s", "=", 1.0, ""),
    ("h", "predict", "s", "=", None, ""),
    ("i", "report", "s", "=", 1.0, ""),
)
ANSWERS = [
    *(answer("a", 2.2, low=1.9, high=2.5), answer("b", -23.0, low=-24.0, high=-22.0), answer("c", 6.0), answer("d", 6.0)),
    *(answer("a", 3.0, "physical"), answer("e", 4.0)),
    *(answer("f", 9.0), answer("g", 9.0), answer("h", 9.0)),
]


def test_an_error_is_relative_of_a_percentage_in_points_and_of_a_bound_none() -> None:
    rows = {(row["claim_id"], row["mode"]): row for row in compared(STATED, ANSWERS)[0]}
    assert rows["a", "paper"]["error"] == pytest.approx(0.1)
    assert (rows["b", "paper"]["error"], rows["b", "paper"]["rel_err"]) == (pytest.approx(-0.03), pytest.approx(-0.15))
    assert [rows[name, "paper"]["error"] for name in "cdh"] == [None, None, None]
    assert [rows[name, "paper"]["holds"] for name in "acdh"] == [None, False, True, None]
    assert [rows[name, "paper"]["is_inside"] for name in "abc"] == [True, False, None]
    assert rows["i", None]["replay"] is None
    assert (signed(-0.03, "percent"), signed(0.1), signed(-0.0001)) == ("-3.0 points", "+10.0 %", "0.0 %")


def test_errors_come_by_role_and_mode_without_what_cannot_miss() -> None:
    errors = {(row["role"], row["mode"]): row for row in compared(STATED, ANSWERS)[1]}
    assert set(errors) == {("predict", "paper"), ("predict", "physical"), ("calibrate", "paper")}
    paper = errors["predict", "paper"]
    assert (paper["n_values"], paper["n_bounds"], paper["n_hold"]) == (2, 2, 1)
    assert paper["mean_error"] == paper["median_error"] == pytest.approx(0.065)
    assert (paper["worst_error"], paper["worst_claim_id"]) == (pytest.approx(0.1), "a")
    assert (paper["n_banded"], paper["n_inside"], paper["inside_frac"]) == (2, 1, 0.5)
    assert errors["predict", "physical"]["mean_error"] == pytest.approx(0.5)
    assert errors["calibrate", "paper"]["mean_error"] == 0.0
    (system,) = by_system(STATED, ANSWERS)
    assert (system["n_fitted"], system["n_predicted"], system["worst_row"]) == (1, 2, "time")


def test_every_claim_has_a_role_and_what_inputs_decide_is_not_counted() -> None:
    rows = claims().to_pylist()
    assert {row["role"] for row in rows} == ROLES
    for row in rows:
        if row["metric"] in CANNOT_MISS.get(row["paper"], ()):
            assert row["role"] == "derived", row["claim_id"]
        if row["metric"] == "expert_coverage":  # the serving engine reads Table 1
            assert row["role"] == "input", row["claim_id"]
    derived = [row["claim_id"] for row in rows if row["role"] == "derived"]
    assert len(derived) == 23
