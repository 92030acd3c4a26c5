"""The site as files: built whole or not at all, small, self-contained, and honest about what is missing."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest
from altair.vegalite.v6.schema.core import load_schema
from jsonschema.validators import validator_for
from made_up import TAPES, catalogue, curve, gates, made, replay, summaries, write
from made_up_systems import add_cells
from refusing import full, raising, refuses

from tokentape.dashboards import index, plot, site
from tokentape.dashboards.site import build, compare, experts
from tokentape.warehouse.sql import BadWarehouse, connect

# Names, not addresses: nothing is fetched from them.
IDENTIFIERS = ("http://www.w3.org/", "https://vega.github.io/schema/")


@pytest.fixture(scope="module")
def pages(site_folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in site_folder.glob("*.html")}


@pytest.fixture
def one_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites of one page and the index, where what is tested is not what the pages say."""
    monkeypatch.setattr(site, "TOPICS", {experts.file: site.TOPICS[experts.file]})


class Resources(HTMLParser):
    """Attributes that make a browser fetch something, and the text of style sheets."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.styles: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        wanted = {"src", "srcset", "data", "action", "poster", "background"} | (set() if tag == "a" else {"href"})
        self.fetched += [value or "" for name, value in attrs if name in wanted]

    def handle_data(self, data: str) -> None:
        if self.inside == "style":
            self.styles.append(data)


def payload(html: str) -> dict[str, Any]:
    found = re.search(r'id="page-data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_a_page_per_topic_that_begins_with_its_questions_where_it_is_long(pages: dict[str, str]) -> None:
    assert sorted(pages) == sorted([index.FILE, *site.TOPICS])
    for file, html in pages.items():
        assert len(html.encode()) < 2_500_000, file
        assert html.count('<script src="vega.js">') == 1, f"{file}: Vega belongs beside the pages, once"
        assert "window.vegaEmbed=" not in html
        assert "default-src &#39;none&#39;" in html
    for file, html in pages.items():
        sections = re.findall(r'<section class="figure" id="(\w+-section)"', html)
        assert re.findall(r'<a href="#([\w-]+)"', html) == (sections if len(sections) > 4 else []), file


@pytest.mark.parametrize("file", ["cxl_ndp.html", "kelle.html", "layered_prefill.html", "slicemoe.html"])
def test_a_full_page_has_an_answer_for_what_it_opens_with(pages: dict[str, str], file: str) -> None:
    assert 'class="missing"' not in pages[file]
    answers = re.findall(r'<p class="answer" id="\w+-answer">(.*?)</p>', pages[file], re.DOTALL)
    assert answers
    assert all(answers)


def test_pages_point_at_nothing_outside(pages: dict[str, str]) -> None:
    for file, html in pages.items():
        found = Resources()
        found.feed(html)
        assert found.fetched == ["data:,", "vega.js"], file  # the empty icon, and what lies beside the pages
        assert not re.search(r"url\(|@import", "".join(found.styles)), file
        specs = json.dumps([chart["spec"] for chart in payload(html)["charts"].values()])
        assert [url for url in re.findall(r"https?://[^\"]+", specs) if not url.startswith(IDENTIFIERS)] == []
        assert '"url"' not in specs


def test_charts_are_valid_and_name_their_rows(pages: dict[str, str]) -> None:
    schema = load_schema()
    valid = validator_for(schema)(schema)
    for html in pages.values():
        data = payload(html)
        for name, chart in charts(data):
            valid.validate(chart["spec"])
            named = set(re.findall(r'"name": "(\w+)"', json.dumps(_all("data", chart["spec"]))))
            assert named <= data["data"].keys(), name
            assert all(data["data"][rows] for rows in named)


def charts(data: dict[str, Any]) -> list[tuple[str, Any]]:
    """Without the tables, whose rows are there."""
    for chart in data["charts"].values():
        assert "table" not in chart["spec"] or data["data"][chart["spec"]["table"]["data"]]
    return [(name, chart) for name, chart in data["charts"].items() if "table" not in chart["spec"]]


def test_every_chart_says_sql_that_the_warehouse_takes(pages: dict[str, str], database: Path) -> None:
    charts = {name: chart for html in pages.values() for name, chart in payload(html)["charts"].items()}
    assert [name for name, chart in charts.items() if not chart["sql"]] == []
    with connect(database) as connection:
        for statement in {statement for chart in charts.values() for statement in chart["sql"].split(";\n\n")}:
            connection.execute(f"explain {statement}")


def _all(name: str, spec: Any) -> list[Any]:
    """What is called so, however deep."""
    if isinstance(spec, list):
        return [found for inner in spec for found in _all(name, inner)]
    if isinstance(spec, dict):
        return [v for k, v in spec.items() if k == name] + [f for v in spec.values() for f in _all(name, v)]
    return []


def test_text_of_a_tape_stays_text_and_every_axis_of_a_quantity_has_a_unit(pages: dict[str, str]) -> None:
    for html in pages.values():
        assert "<script>hostile" not in html
    assert "&lt;script&gt;hostile()" in pages["index.html"]
    for html in pages.values():
        for name, chart in charts(payload(html)):
            drawn = _all("encoding", chart["spec"])
            titles = [e[axis]["title"] for e in drawn for axis in ("x", "y") if e.get(axis, {}).get("title")]
            assert titles, name
            assert all("(" in title for title in titles if title != "layer"), name


def test_names_of_a_replayed_tape_stay_text(one_topic: None, tmp_path: Path) -> None:
    """In menus, titles, tables and the rows of charts; other pages show systems, and no tape of a name unlike theirs."""
    names = {name: f"{name}\"'></script><script>hostile()</script><img src=x onerror=hostile()>" for name in ("model", "dataset")}
    tape = replace(TAPES[0], flags=json.dumps({names["model"]: names["dataset"]}), **names)
    rows = made()
    rows["traces"].append(catalogue(tape))
    summaries(tape, rows)
    gates(tape, rows)
    for policy in ("lru", "belady"):
        replay(tape, policy, "phone-lpddr5x-ufs4", "global", 0.5, 0, policy, rows)
    curve(tape, "global", rows)
    rows["replays"][0]["policy"] = names["model"]
    folder = build(write(tmp_path / "warehouse.duckdb", rows), tmp_path / "site").parent
    shown = {}
    for path in folder.glob("*.html"):
        html = path.read_text(encoding="utf-8")
        found = Resources()
        found.feed(html)
        assert set(found.fetched) <= {"data:,", "vega.js"}, f"{path.name}: no element but ours"
        assert "<script>hostile" not in html
        shown[path.name] = html.count("hostile()")
    assert shown["index.html"]
    assert shown["experts.html"]


def test_index_tells_what_is_there_and_how_it_was_made(pages: dict[str, str]) -> None:
    html = pages["index.html"]
    for words in (
        '<p class="big">2.86 <small>ms/token</small></p>',
        "bound (global) 2.04 (+40 %)",
        "phone-lpddr5x-ufs4",
        "mJ",
        "top k override: model 8, recorded 6",
        "imported",
        "captured",
        "synthetic",
        "How each number was made",
        '<td><a href="kelle.html">Kelle</a></td>',
        "baselines: +",
        "atomic lookups",
    ):
        assert words in html, words


@pytest.mark.usefixtures("one_topic")  # of the others: test_pages.py
def test_an_empty_warehouse_says_what_to_run(empty_database: Path, tmp_path: Path) -> None:
    out = build(empty_database, tmp_path / "site")
    html = out.read_text(encoding="utf-8")
    assert "tokentape capture" in html
    assert "page-data" not in html
    topic = out.with_name("experts.html").read_text(encoding="utf-8")
    assert topic.count('class="missing"') == 2
    assert topic.count('class="lacking"') == 1
    assert "tokentape study baselines" in topic


@pytest.mark.usefixtures("one_topic")
def test_one_page_holds_fewer_tapes_rather_than_grow(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "PAGE_BYTES", 300_000)
    html = build(database, tmp_path / "site").with_name("experts.html").read_text(encoding="utf-8")
    assert len(html.encode()) < 300_000
    assert "of 4 tapes, those with most replays first" in html


@pytest.mark.usefixtures("one_topic")
def test_a_site_is_replaced_whole_and_nothing_else_ever_is(
    unreplayed_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, out = unreplayed_database, tmp_path / "site"
    assert "first pages" in build(database, out).read_text()
    (out / "old.html").write_text("from an older version")
    assert "Nothing has changed." in build(database, out).read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["site"]
    assert not (out / "old.html").exists()
    for damaged in ('["a"]', '{"a": 5}', '{"a": [', "\0"):  # it does not say what pages showed before
        (out / site.MARK).write_text(damaged)
        assert "first pages" in build(database, out).read_text()

    (link := tmp_path / "link").symlink_to(out)
    assert "Nothing has changed." in build(database, link).read_text()
    assert sorted((p.name, p.is_symlink()) for p in tmp_path.iterdir()) == [("link", True), ("site", False)]
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        refuses(f"No space left on device: '{out}'", build, database, out, error=OSError)

    monkeypatch.setitem(site.TOPICS, experts.file, experts._replace(page=raising(ValueError("a page failed"))))
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    refuses("a page failed", build, database, out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.tex").write_text("years of work")
    refuses("not a tokentape site", build, database, mine)
    assert (mine / "chapter.tex").exists()


def test_a_site_lost_between_its_two_names_is_back_before_anything_can_fail(
    tmp_path: Path, dead_aside: Callable[[Path], Path]
) -> None:
    out = tmp_path / "site"
    whole, cut = dead_aside(out), dead_aside(out)
    for folder in (whole, cut):
        folder.mkdir()
        (folder / index.FILE).write_text(folder.name)
    (whole / site.MARK).touch()
    with pytest.raises(FileNotFoundError):
        build(tmp_path / "none.duckdb", out)
    assert (out / index.FILE).read_text() == whole.name
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.slow
def test_the_same_warehouse_gives_the_same_bytes(database: Path, tmp_path: Path, pages: dict[str, str]) -> None:
    out = build(database, tmp_path / "again").parent
    assert {path.name: path.read_text(encoding="utf-8") for path in out.glob("*.html")} == pages


@pytest.mark.usefixtures("one_topic")
def test_a_page_alone_says_what_it_says_among_others_with_vega_inside(
    database: Path, tmp_path: Path, pages: dict[str, str]
) -> None:
    out = build(database, tmp_path / "again").parent
    assert payload((out / experts.file).read_text(encoding="utf-8")) == payload(pages[experts.file])
    assert "window.vegaEmbed=" in (out / "vega.js").read_text(encoding="utf-8")
    out = build(database, tmp_path / "site", is_single=True).parent
    assert not (out / "vega.js").exists()
    html = (out / experts.file).read_text(encoding="utf-8")
    assert html.count("window.vegaEmbed=") == 1
    assert "vega.js" not in html
    assert "&#39;self&#39;" not in html


def test_a_machine_that_needs_no_energy_has_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "TOPICS", {page.file: page for page in (experts, compare)})  # those that show such rows
    rows = made(add_cells)
    rows["traces"].append(catalogue(TAPES[0]))
    for policy in ("lru", "belady"):
        replay(TAPES[0], policy, "phone-lpddr5x-ufs4", "global", 0.5, 0, policy, rows)
    for row in (*rows["metrics"], *rows["series"]):
        if "energy" in row["metric"] or row["metric"] == "part_j":
            row |= {"value": 0.0} | {end: 0.0 for end in ("low", "high") if row.get(end)}
    front = build(write(tmp_path / "warehouse.duckdb", rows), tmp_path / "site")
    assert "0.00 <small>mJ/token" in front.read_text(encoding="utf-8")


def test_a_missing_or_foreign_warehouse_is_named(tmp_path: Path) -> None:
    refuses("tokentape load", build, tmp_path / "none.duckdb", tmp_path / "site", error=FileNotFoundError)
    foreign = tmp_path / "foreign.duckdb"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("create table things (a int)")
    refuses("tokentape load", build, foreign, tmp_path / "site", error=BadWarehouse)
    refuses("tokentape load", plot.found, foreign, "experts/hits", error=BadWarehouse)
    assert not (tmp_path / "site").exists()


def test_pages_follow_the_warehouse(database: Path) -> None:
    with connect(database) as connection:
        front, topic = index.page(connection), experts.page(connection, 16)
    assert [f.name for f in front.figures] == ["parity"]
    assert [f.name for f in topic.figures] == ["hits", "cost"]
    for figure in topic.figures:
        wanted = {"|".join(row[name] for name in figure.depends) for row in topic.choices}
        assert wanted <= figure.answers.keys(), figure.name
