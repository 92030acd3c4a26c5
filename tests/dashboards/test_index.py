"""The front page: which replays decide its verdict."""

from itertools import product

import pytest
from made_up import POLICIES, TAPES, Rows, add_claim, catalogue, opened, replay

from tokentape.dashboards import index
from tokentape.dashboards.shell import Page

PHONE, DESK = "phone-lpddr5x-ufs4", "workstation-rtx4090-pcie4"


def studied(
    rows: Rows, policies: tuple[str, ...] = ("lru", "static", "belady"), capacities: tuple[float, ...] = (0.25, 0.5)
) -> None:
    for n, cell in enumerate(product(policies, (PHONE, DESK), ("global", "per-layer"), capacities)):
        policy, machine, scope, capacity = cell
        replay(TAPES[0], policy, machine, scope, capacity, 0, f"studied-{n}", rows)


def one_off(rows: Rows, key: str, policy: str, capacity: float, **changed: object) -> None:
    """A replay of no study; of the other tape where that is changed."""
    replay(TAPES[0], policy, PHONE, "global", capacity, 0, key, rows)
    rows["replays"][-1] |= {"study": "adhoc", **changed}


def page_of(rows: Rows) -> Page:
    with opened(lambda made: made.update(rows)) as connection:
        return index.page(connection)


@pytest.fixture
def rows() -> Rows:
    return {"traces": [catalogue(tape) for tape in TAPES[:2]], "replays": [], "metrics": [], "claims": [], "answers": []}


def test_one_off_replays_change_nothing(rows: Rows) -> None:
    """Documented ones: at a capacity nearer to half, on a machine that comes first, of another format, on another tape."""
    studied(rows, capacities=(0.25, 0.45))
    before = page_of(rows)
    one_off(rows, "one", "fifo", 0.5)
    one_off(rows, "two", "lfu", 0.45, hardware="a-machine", hardware_sha256="00")
    one_off(rows, "three", "lru", 0.45, expert_format="MAT84")
    for n in range(40):
        one_off(rows, f"more-{n}", "lfu-lifetime", 0.5, trace_id=TAPES[1].trace_id, expert_format="fp16", seed=n)
    after = page_of(rows)
    assert (after.extra["verdicts"], after.extra["n_compared"]) == (before.extra["verdicts"], 12)  # of 24, those at this capacity
    assert after.extra["studied"][1] == before.extra["studied"][1]


def test_one_off_replays_make_no_verdict(rows: Rows) -> None:
    one_off(rows, "one", "lru", 0.5)
    page = page_of(rows)
    assert page.extra["verdicts"] == []
    assert page.lead.startswith("2 tapes, 1 replay. ")


def test_the_health_of_the_store_counts_what_ran_and_what_of_it_lies_outside(rows: Rows) -> None:
    """Neither why a run is not there, nor a replay that nothing is said against."""
    studied(rows, capacities=(0.5, 0.95))
    asked = {"study": "baselines", "trace_id": TAPES[0].trace_id, "system": "lru", "hardware": PHONE, "asked": "{}"}
    rows["failed_runs"] = [{**asked, "place": n, "reason": "too small"} for n in range(3)]
    with opened(lambda made: made.update(rows)) as connection:
        health, held = index.page(connection).extra["health"], index.held(connection)
    assert (health["n_runs"], health["n_outside"], held["baselines"][0]) == (24, 12, 24)


def test_the_capacity_quoted_has_lru_and_a_bound(rows: Rows) -> None:
    """A study of other capacities for one policy takes neither away."""
    studied(rows, capacities=(0.25, 0.4))
    replay(TAPES[0], "static", PHONE, "global", 0.5, 0, "more", rows)
    page = page_of(rows)
    assert {row["capacity"] for row in page.extra["verdicts"]} == {0.4}
    assert all(row["lru"] and row["bound"] for row in page.extra["verdicts"])


def test_the_verdict_ranks_by_latency_and_energy_and_says_lru_and_the_bound(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "belady-bypass", 0.3)
    studied(rows, policies=("lru", "static", "belady", "belady-bypass"))
    times = {("static", "per-layer"): 1.0, ("lru", "per-layer"): 2.5}  # ms; static hits least of all
    names = {row["replay_id"]: (row["policy"], row["scope"]) for row in rows["replays"]}
    for metric in rows["metrics"]:
        if metric["metric"] == "decode_step_s" and names[metric["run_id"]] in times:
            metric["value"] = times[names[metric["run_id"]]] / 1e3
    page = page_of(rows)
    assert [row["metric"] for row in page.extra["verdicts"]] == ["step_ms", "energy_mj", "hit_decode"] * 2
    fastest, thrifty, hits = page.extra["verdicts"][:3]
    assert (fastest["method"], fastest["best"], thrifty["method"]) == ("static by frequency (per-layer)", 1.0, "LRU (global)")
    assert fastest["best"] < fastest["bound"] < fastest["lru"]  # streamed past the cache, which Belady cannot
    assert (fastest["lru_scope"], fastest["bound_scope"]) == ("per-layer", "global")
    assert hits["lru"] < hits["bound"]


def test_answers_to_our_own_claims_are_not_counted_among_those_to_the_paper_s(rows: Rows) -> None:
    studied(rows)
    of = {"paper": "kelle", "metric": "speedup", "unit": "x"}
    add_claim(rows, 2.0, claim_id="kelle/a", value=2.0, role="predict", location="Table 1", setting="a", **of)
    add_claim(rows, claim_id="kelle/b", value=3.0, role="predict", location="Table 1", setting="b", **of)
    add_claim(rows, 4.0, claim_id="kelle/project/c", role="predict", location="project", setting="c", **of)
    add_claim(rows, 5.0, claim_id="kelle/project/d", role="predict", location="project", setting="d", **of)
    (row,) = page_of(rows).extra["standings"]
    assert (row["system"], row["n_answered"], row["n_claims"]) == ("kelle", 1, 2)
