"""Figures as files: what each mark and step becomes in Vega-Lite, and the one line that a mistake in a file is answered with."""

import tomllib
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from made_up import VIEWS_SQL
from refusing import refuses

from tokentape.dashboards import theme
from tokentape.dashboards.engine import figures
from tokentape.dashboards.engine.ask import SHARED, Ask, queries, some
from tokentape.dashboards.engine.chart import chart, expression
from tokentape.dashboards.engine.figures import Drawn, load, options, with_figures
from tokentape.dashboards.engine.grammar import BadFigure, Scope, channel
from tokentape.dashboards.engine.say import Rows, filled
from tokentape.dashboards.shell import Control, Page
from tokentape.dashboards.site import elmoe3d, kelle

ROWS = pl.DataFrame(
    {"batch": [1, 2], "ms": [3.0, 2.0], "low": [2.0, 1.0], "high": [4.0, 3.0], "paper": [3.5, None], "who": ["b", "a"]}
)
# Marks and their channels, mistakes and what is said of them, files that are no figures, and sentences with their words.
TOLD = tomllib.loads((Path(__file__).parent / "engine.toml").read_text())
PANEL = TOLD["panel"]
WORDS = {"batches": [1, 2], "LOOKS": {"a": theme.BLUE, "c": theme.GREEN}, "WORDS": {"x": "ex"}}


@pytest.fixture
def scope() -> Scope:
    return Scope("page/figures/mine.toml", WORDS, {"rows": ROWS}, "rows")


def drawn(scope: Scope, *marks: Any, **more: Any) -> dict[str, Any]:
    """A panel without a caption: its layers, or itself."""
    return chart(scope, {"chart": PANEL | {"marks": list(marks)} | more}, {"law": "first"}, [])


@pytest.mark.parametrize(("mark", "kind", "channels"), TOLD["marks"])
def test_a_mark_takes_the_channels_it_can_show(scope: Scope, mark: Any, kind: str, channels: str) -> None:
    made = drawn(scope, mark)
    assert made["mark"]["type"] == kind
    assert set(made["encoding"]) == set(channels.split())


def test_a_click_in_a_legend_picks_and_whiskers_lie_along_quantities(scope: Scope) -> None:
    (picks,) = drawn(scope, {"mark": "line", "legend": "who"})["params"]
    assert (picks["select"], picks["bind"]) == ({"type": "point", "fields": ["who"]}, "legend")
    assert "params" not in drawn(scope, {"mark": "line", "legend": ""})
    made = drawn(scope, "whisker", y="who:N", x="ms:Q")
    assert made["encoding"]["x"]["field"], made["encoding"]["x2"] == ("low", {"field": "high"})


def test_a_channel_is_a_field_a_title_a_scale_and_a_guide_of_facts_or_columns(scope: Scope) -> None:
    assert channel(scope, "x", PANEL["x"]) == {
        "field": "batch", "type": "quantitative", "title": "batch (requests)",
        "scale": {"type": "log", "base": 2, "nice": False}, "axis": {"values": [1, 2], "format": "d"},
    }  # fmt: skip
    colour = channel(scope, "color", PANEL["color"])
    assert colour["scale"] == {"domain": ["a", "b"], "range": [theme.BLUE, theme.SPARE_COLOURS[0]]}
    assert colour["legend"]["columns"] == 2
    assert channel(scope, "y", "ms:Q | - | sort=by:low:min | none")["sort"] == {"field": "low", "op": "min"}
    assert channel(scope, "color", "=vermillion") == {"value": theme.VERMILLION}
    assert channel(scope, "y", "who:N | | as_found")["sort"] == ["b", "a"]
    assert channel(scope, "y", "who:N | | known=LOOKS")["sort"] == ["a", "b"]
    assert channel(scope, "y", "who:N | | falling")["sort"] == ["b", "a"]
    assert scope.text("{ms:all}") == "2.0 and 3.0"
    assert channel(scope, "x", "ms:Q | | | each")["axis"] == {"values": [2.0, 3.0]}
    assert channel(scope, "yOffset", "who:N | | held=LOOKS")["scale"] == {"domain": ["a", "b"]}
    assert channel(scope, "color", "who:N | | palette")["scale"] == {"domain": ["a", "b"], "range": list(theme.PALETTE[:2])}
    assert channel(scope, "color", "who:N | | domain=[b,a] palette")["scale"]["domain"] == ["b", "a"]
    assert channel(scope, "x", "ms:Q | | | values=@batch")["axis"] == {"values": [1, 2]}
    assert scope.text("{who}, {ms:.1f} ms, {who:q}") == "b, 3.0 ms, 'b'"
    empty = Scope("", {}, {"rows": ROWS.clear(), "more": ROWS.tail(1)}, "rows")
    assert (empty["who"], empty.many("paper")) == ("a", [])  # of the first rows that are there; what is unknown is none of them


def test_steps_become_transforms_in_their_order(scope: Scope) -> None:
    steps = ["where datum.ms > 1", "twice = 2 * datum.ms", "fold low high as end ms"]
    made = drawn(scope, "bar", here="law model=chosen", **{"with": steps})
    assert made["transform"] == [
        {"filter": "datum.law === law && datum.model === chosen"},
        {"filter": "datum.ms > 1"},
        {"calculate": "2 * datum.ms", "as": "twice"},
        {"fold": ["low", "high"], "as": ["end", "ms"]},
    ]


def test_a_panel_for_each_item_in_rows_under_a_caption(scope: Scope) -> None:
    told = {**TOLD["in_rows"], "chart": PANEL | TOLD["in_rows"]["chart"]}
    made = chart(scope, told, {"law": "x"}, ["law"])
    (row,) = made["vconcat"]
    assert [panel["title"] for panel in row["hconcat"]] == ["a", "b"]
    assert [layer["mark"]["type"] for layer in row["hconcat"][0]["layer"]] == ["line", "point"]
    assert made["params"] == [{"name": "law", "value": "x"}]
    assert made["title"]["text"]["expr"] == "'source: a study; ' + (({'x': 'ex'})[law]) + '; level ' + level"
    assert expression(scope, "plain") == "'plain'"


def test_what_is_not_picked_fades_and_a_table_names_its_columns(scope: Scope) -> None:
    made = drawn(scope, {"mark": "point", "brush": True}, {"mark": "text", "text": "who:N", "opacity": "=1"}, pick="who")
    box, words = (layer["encoding"]["opacity"] for layer in made["layer"])
    assert (box["condition"]["test"], words) == ("!length(pick) || indexof(pick, datum.who) >= 0", {"value": 1})
    told = {"data": "rows", "columns": ["ms | time (ms)", "who"]}
    assert chart(scope, {"table": told}, {}, ["law"])["table"]["columns"] == [("ms", "time (ms)", ""), ("who", "", "")]
    for wrong, said in (
        ({"columns": ["mss"]}, "mss: the rows have"),
        ({"below": "mss"}, "mss: the rows have"),
        ({"under": "who"}, "no setting"),
    ):
        refuses(f"table: .*{said}", chart, scope, {"table": {**told, **wrong}}, {}, [], error=BadFigure)


@pytest.mark.parametrize(("wrong", "said"), TOLD["wrong"])
def test_a_mistake_in_a_file_is_one_line_that_names_it(scope: Scope, wrong: dict[str, Any], said: str) -> None:
    told = refuses(".", chart, scope, {"chart": PANEL | {"marks": ["line"]} | wrong}, {}, [], error=BadFigure)
    assert told.startswith(f"page/figures/mine.toml: {said}")


@pytest.mark.parametrize(("text", "said"), TOLD["no_figures"])
def test_a_file_that_is_no_figure_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/mine.toml").write_text(text)
    refuses(f"figures/mine.toml: {said}", load, tmp_path, "mine", error=BadFigure)


def test_figures_without_rows_say_what_to_run_and_menus_go_without_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Ask(duckdb.connect(), elmoe3d.folder)
    for rows in (lambda _: Drawn({"sweeps": some(ROWS.clear())}), lambda _: Drawn({"sweeps": ROWS.clear()})):
        monkeypatch.setattr(figures, "_rows", lambda *_, found=rows: found)
        (figure,) = with_figures(Page("f", "t", "l", "page.html"), ask, ["sweeps"]).figures
        assert figure.chart is None
        assert "Run: tokentape study elmoe3d" in figure.missing
    page = Page("f", "t", "l", "page.html", controls=(Control("at", "At"), Control("to", "To")), choices=options("at", [1]))
    assert [control.name for control in with_figures(page, Ask(duckdb.connect(), Path()), ()).controls] == ["at"]


def test_rows_facts_and_menus_are_asked_in_sql_or_made_by_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.sql").write_text("-- one: rows\nselect * from (values ('b', 2.0), ('a', 1.0)) t(who, ms)\n")
    ask = Ask(duckdb.connect(), tmp_path, params={"most": 1})
    ask.connection.execute(VIEWS_SQL.partition(";")[0])
    found = figures._rows(tmp_path, "mine", TOLD["asked"])(ask)
    assert (found.data["drawn"].rows(), found.said.rows()) == ([("b", 0.67), ("a", 0.33)], [("b", 2.0)])  # type: ignore[union-attr]
    assert found.facts["slow"].rows() == [("b", 2.0)]
    assert (found.facts["names"], found.facts["n"], found.facts["all"]) == (["a", "b"], 2, ["global", "per-layer"])
    assert found.controls == (Control("at", "At", {"2": "b", "1": "a"}, "slider"),)
    assert found.choices == ({"at": "2"}, {"at": "1"})

    def made(ask: Ask, name: str, metric: str) -> Drawn:
        return Drawn({name: ROWS.select(metric)})

    monkeypatch.setattr("tokentape.dashboards.elmoe3d.page.made", made, raising=False)
    rows = figures._rows(elmoe3d.folder, "mine", {"rows": "page:made", "given": {"metric": "ms"}})
    assert rows(Ask(duckdb.connect(), elmoe3d.folder)).data["mine"].columns == ["ms"]


def test_a_mistake_in_sql_is_one_line_that_names_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Ask(duckdb.connect(), kelle.folder)
    for wrong in ("select from where", "select * from ({nothing})"):
        monkeypatch.setattr(figures, "load", lambda *_, wrong=wrong: {"query": wrong})
        refuses(r"kelle/figures/chip\.toml: ", with_figures, Page("f", "t", "l", "page.html"), ask, ["chip"], error=BadFigure)


def test_queries_are_named_and_may_be_drawn_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "rows.sql"
    file.write_text("-- one: a number\nselect 1 as n\n\n-- two: it, from ({one})\nselect n + $more as n from ({one})\n")
    assert queries(file)["two"].strip() == "select n + $more as n from (select 1 as n)"
    assert queries(file)["lived"] == queries(SHARED)["lived"]
    ask = Ask(duckdb.connect(), tmp_path, params={"more": 2})
    assert ask("two")["n"].to_list() == [3]
    assert ask("one") is ask("one")
    ask = Ask(duckdb.connect(), kelle.folder)
    shares = {"reading": "paper", "workload": ["LA", "PG19"], "part": "refresh", "share": [0.5, 0.25], "models": 1}
    ask.asked["chip"] = pl.DataFrame(shares), {}
    (figure,) = with_figures(Page("f", "t", "l", "page.html"), ask, ["chip"]).figures
    assert figure.chart is not None
    assert figure.answers["paper"].startswith("On the chip 50 % into the refresh and 50 % into refresh (LA) and 25 %")


@pytest.mark.parametrize(("text", "said"), TOLD["sentences"])
def test_a_sentence_asks_its_rows(text: str, said: str) -> None:
    assert filled(text, {"rows": Rows(ROWS)}) == said


@pytest.mark.parametrize("answer", TOLD["wrong_sentences"])
def test_a_mistake_in_a_sentence_is_one_line_that_names_its_file(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(figures, "_rows", lambda *_: lambda ask: Drawn({"chip": ROWS}))
    told = {"answer": answer, "depends": [], "panels": {}, "chart": {"data": "chip", "x": "batch:Q", "marks": ["point"]}}
    monkeypatch.setattr(figures, "load", lambda folder, name: load(folder, name) | told)
    page, ask = Page("f", "t", "l", "page.html"), Ask(duckdb.connect(), kelle.folder)
    refuses(r"^kelle/figures/chip\.toml: answer: ", with_figures, page, ask, ["chip"], error=BadFigure)


def test_the_figure_of_the_docs_draws() -> None:
    text = (Path(__file__).parents[2] / "docs/dashboards.md").read_text(encoding="utf-8")
    told = tomllib.loads(text.partition("```toml\n")[2].partition("```")[0])
    words = {"batches": [1, 2], "SYSTEMS": {"a": theme.BLUE}}
    scope = Scope("docs", words, {"speed": ROWS.rename({"who": "system"})})
    assert len(chart(scope, told, {"model": "m"}, told["depends"])["vconcat"][0]["layer"]) == 4
    assert filled(told["answer"], {"rows": Rows(scope.frames["speed"])}) == "a is fastest: 2.00 ms at batch 2; b 3.00 ms."
