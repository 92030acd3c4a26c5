"""The questions the pages ask, against the formulas the made-up warehouse was filled with."""

from collections.abc import Callable
from typing import Any

import duckdb
import polars as pl
import pytest
from made_up import POLICIES, TAPES, Rows, catalogue, opened, page_of, replay, said_of

from tokentape.dashboards import rows, theme
from tokentape.dashboards.engine import say
from tokentape.dashboards.layered_prefill import words as layered_words
from tokentape.dashboards.site import experts, slicemoe, tape
from tokentape.dashboards.slicemoe import page as slicemoe_page
from tokentape.dashboards.units import significant

CODE, QWEN, SYNTHETIC = "embedded-code-0a1b2c3d", "qwen3-30b-a3b-q4km-8c9d", "synthetic-zipf-e0f1"


def test_tapes_come_in_order_and_a_run_is_one_row_with_seeds_averaged(connection: duckdb.DuckDBPyConnection) -> None:
    order = rows.traces(connection)["trace_id"].to_list()
    assert order[0] == CODE
    assert order[-1] == SYNTHETIC
    runs = rows.runs(connection, [CODE])
    assert runs.height == len(POLICIES) * 2 * 2 * 9
    setting = runs.filter(
        (pl.col("hardware") == "phone-lpddr5x-ufs4") & (pl.col("scope") == "global") & (pl.col("capacity") == 0.5)
    )
    by_policy = {row["policy"]: row for row in setting.iter_rows(named=True)}
    assert by_policy["LRU"]["hit_decode"] == pytest.approx(0.5**0.62, abs=1e-5)
    assert by_policy["random"]["hit_decode"] == pytest.approx(0.5**0.9 - 0.005, abs=1e-5)  # seeds 0 and 1
    assert by_policy["LRU"]["cycle"] == pytest.approx(16 / 64)
    lru = by_policy["LRU"]
    assert lru["step_low_ms"] == pytest.approx(0.8 * lru["step_ms"])
    assert lru["step_ms"] == pytest.approx(0.9 + (1 - 0.5**0.62) * 16 * 0.35)
    assert by_policy["Belady (bound)"]["bound"]
    assert tape.page(connection, 1).lead.endswith(" Shown: 1 of 4 tapes, those with most replays first.")
    assert slicemoe.page(connection, 1).lead.endswith(" Shown: 1 of 4 tapes and 1 of 4 setups of a live model.")


def test_parameters_are_named_only_where_they_differ() -> None:
    frame = pl.DataFrame(
        {
            "family": ["static", "static", "lru", "a/mine.py:Cache", "a/mine.py:Two", "b/mine.py:Two"],
            "policy_params": ['{"profile_frac": 0.1}', '{"profile_frac": 1.0}', "{}", "{}", "{}", "{}"],
        }
    )
    named = rows._named(frame)["policy"].to_list()
    assert named[:2] == ["static by frequency profile_frac=0.1", "static by frequency profile_frac=1.0"]
    assert named[2:] == ["LRU", "mine.py:Cache", "a/mine.py:Two", "b/mine.py:Two"]


def test_reuse_distances_add_up_to_the_lru_curve(connection: duckdb.DuckDBPyConnection) -> None:
    for trace, step in ((CODE, {"global": 1, "per-layer": 4}), (QWEN, {"global": 1, "per-layer": 48})):
        binned = tape.asked(connection)("reuse").filter(pl.col("trace") == trace)
        for (scope,), bins in binned.group_by("scope"):
            curve = connection.sql(
                "select max(hit_frac) as hits from lru_curves join replays using (replay_id) where trace_id = $t and scope = $s",
                params={"t": trace, "s": scope},
            ).pl()
            hits = curve["hits"][0]
            assert bins["share"].sum() == pytest.approx(hits, abs=1e-3)
            assert bins["within"].max() == pytest.approx(hits, abs=1e-5)
            assert bins.height <= 64
            widths = (bins["high"] - bins["low"]).unique().to_list()
            assert widths[0] % step[scope] == 0
            assert bins.filter(pl.col("high") <= pl.col("cycle_experts"))["share"].sum() == 0 or scope == "per-layer"


def test_popularity_is_relative_to_an_even_share(connection: duckdb.DuckDBPyConnection) -> None:
    ask = tape.asked(connection)
    heat, crowd = (ask(name).filter(pl.col("trace") == QWEN) for name in ("popularity", "crowd"))
    assert heat.height == 48 * 2
    for times in heat["times"]:
        assert len(times) == 128  # experts never selected are there as zeros
        assert sum(times) == pytest.approx(128, abs=0.7)  # rounded to two digits
    crowd = crowd.row(0, named=True)
    of = f"select n_selected from popularity where trace_id = '{QWEN}' and phase = '{crowd['phase']}' order by 1 desc"
    counts = [n for (n,) in connection.sql(of).fetchall()]
    assert crowd["top_tenth"] == pytest.approx(sum(counts[:615]) / sum(counts))
    assert (crowd["n_unused"], crowd["even"]) == (48 * 128 - len(counts), 615 / (48 * 128))


def test_closed_forms_of_coverage_stand_beside_the_recorded_one(connection: duckdb.DuckDBPyConnection) -> None:
    touched = tape.asked(connection)("touched").filter((pl.col("trace") == QWEN) & (pl.col("phase") == "decode"))
    of = {(row["form"], row["n_tokens"]): row["covered"] for row in touched.to_dicts()}
    assert of["independent, all alike", 8] == pytest.approx(1 - (1 - 6 / 128) ** 8)
    assert of["no expert twice", 8] == pytest.approx(48 / 128)
    counts = connection.sql(f"from popularity where trace_id = '{QWEN}' and phase = 'decode'").pl()
    chance = 6 * pl.col("n_selected") / pl.sum("n_selected").over("layer")
    often = counts.select((1 - (1 - chance) ** 8).sum()).item() / (48 * 128)
    assert of["independent, as often as recorded", 8] == pytest.approx(often)
    assert of["recorded", 8] < often < of["independent, all alike", 8]


def test_sentences_say_what_the_rows_say(connection: duckdb.DuckDBPyConnection) -> None:
    runs = rows.runs(connection, [CODE])
    phone = runs.filter((pl.col("hardware") == "phone-lpddr5x-ufs4") & (pl.col("scope") == "global"))
    hits = phone.with_columns(hit=pl.col("hit_decode"), phase=pl.lit("decode"))
    said = said_of(experts, "hits", hits, reference=rows.reference_of)
    assert said.startswith("At 50 % of the experts (32) LRU hits most: 65.1 %, Belady would hit 79.6 % of the decode lookups.")
    assert "At 5 % of the experts (3) LFU (lifetime) hits most: 12.3 %, LRU 0.0 %" in said
    assert said.endswith("Below L × k = 16 experts (25.0 %), one token's lookups, the layers flood a global LRU.")
    none = hits.with_columns(hit=pl.lit(0.0), phase=pl.lit("prefill"))
    assert "No prefill lookup hits" in said_of(experts, "hits", none, reference=rows.reference_of)
    cost, outside = (
        said_of(experts, "cost", of, reference=rows.reference_of) for of in (phone, phone.with_columns(extrapolated=pl.lit(True)))
    )
    assert cost.startswith("On phone-lpddr5x-ufs4 with 50 % of the experts cached, LRU is fastest: 2.86 ms and ")
    assert "Extrapolated" not in cost  # only the largest caches are
    assert outside.endswith("Extrapolated: these times and energies lie outside what the hardware's costs were measured on.")


def test_ties_go_to_the_policy_that_comes_first() -> None:
    tied = pl.DataFrame({"policy": ["FIFO", "LRU"], "turn": [3, 0], "hit_decode": [0.90002, 0.90001]})
    assert say.Rows(tied).most("hit_decode", "turn", digits=3)["policy"] == "LRU"


@pytest.mark.parametrize(
    ("value", "text"), [(0.2113, "0.211"), (3.1, "3.10"), (46.66, "46.7"), (502.4, "502"), (999.7, "1,000"), (12345.0, "12,345")]
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


def test_every_shipped_policy_has_its_own_colour_and_shape() -> None:
    looks = theme.POLICIES.values()
    assert len({look.colour for look in looks}) == len({look.shape for look in looks}) == len(looks) == 17
    lines = theme.lines(
        [("lru", "LRU", False), ("belady", "Belady (bound)", True), ("mine", "mine", False), ("sees", "sees", True)]
    )
    assert lines["names"] == ["LRU", "Belady (bound)", "mine", "sees"]
    assert [dash != [1, 0] for dash in lines["dashes"]] == [False, True, False, True]  # dashed: the bounds alone
    assert {name for name, look in theme.POLICIES.items() if look.shape in theme.DASHES} == {"belady", "belady-bypass"}


@pytest.mark.parametrize(
    "drawn",
    [
        lambda names: theme.lines(("static", name, False) for name in names),
        lambda names: layered_words.looks(f"chunked {name}" for name in names),
        lambda names: slicemoe_page.looks(["high-bit", *names]),
    ],
)
def test_what_has_no_look_of_its_own_shares_none(drawn: Callable[[list[str]], dict[str, Any]]) -> None:
    looks = drawn([str(n) for n in range(3000, 3019)])
    pairs = list(zip(looks["colours"], looks["shapes"], strict=True))
    assert len(set(pairs)) == len(pairs) >= 19
    many = drawn([str(n) for n in range(3000, 3040)])  # more than there are pairs: drawn all the same
    assert len(many["names"]) == len(many["colours"]) >= 40


def test_a_tape_without_decode_has_no_similarity() -> None:
    with opened() as connection:
        assert tape.asked(connection)("similarity").is_empty()
        assert rows.runs(connection, []).is_empty()


def test_replays_of_prompts_alone_are_shown() -> None:
    def add(rows: Rows) -> None:
        rows["traces"].append(catalogue(TAPES[0]))
        replay(TAPES[0], "lru", "phone-lpddr5x-ufs4", "global", 0.5, 0, "prompts", rows)
        rows["metrics"][:] = [row for row in rows["metrics"] if "decode" not in row["metric"]]

    hits = next(figure for figure in page_of(experts, add).figures if figure.name == "hits")
    decode, prefill = (next(text for key, text in hits.answers.items() if key.endswith(phase)) for phase in ("decode", "prefill"))
    assert decode == "These replays looked up no expert in decode."
    assert prefill.startswith("At 50 % of the experts (32) LRU hits most: 26.0 % of the prefill lookups")


def test_shares_of_a_tape_are_of_all_layers_and_of_what_a_cache_can_hit() -> None:
    def add(rows: Rows) -> None:
        rows["traces"].append(catalogue(TAPES[0]))
        for start, most in (("cold", 6), ("persistent", 9)):
            replay(TAPES[0], "lru", "phone-lpddr5x-ufs4", "per-layer", 0.5, 0, start, rows)
            rows["replays"][-1]["start"] = start
            curve = [{"capacity_experts": 4.0 * n, "n_lookups": 10, "n_hits": min(most, 2 * n)} for n in range(1, 6)]
            rows["lru_curves"] += [{"replay_id": start, **point} for point in curve]
        told = {"trace_id": CODE, "metric": "attention_frac", "n": 1}
        for layer, part, value in ((0, "first", 0.4), (0, "recent", 0.6), (1, "recent", 1.0)):
            rows["profiles"].append(told | {"layer": layer, "part": part, "value": value})

    said = {figure.name: "".join(figure.answers.values()) for figure in page_of(tape, add).figures}
    assert "LRU of 12 experts, an equal share for each layer; 10.0 % are first uses, which no cache can hit." in said["reuse"]
    assert "attention 20 % goes to the first token and 80 % goes to the last 32" in said["attended"]
