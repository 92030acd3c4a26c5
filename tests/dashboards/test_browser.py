"""Every page opened from its file in a real browser, at a phone's, a laptop's and a desk's width: it draws all its charts, logs
nothing, asks the network for nothing and never scrolls sideways; and what its readers do to it does what it should."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest
from chromium_page import LAPTOP, PHONE, WIDE, Opened, browser, open_page
from made_up import page_of
from made_up_slicemoe import EVERYTHING, add_live, add_unheld

from tokentape.dashboards import index, shell, site
from tokentape.dashboards.engine.ask import words_of
from tokentape.dashboards.shell import AT_ONCE
from tokentape.dashboards.site import PAGE_BYTES, TOPICS, build, slicemoe

TRACE, RECORD = "qwen3-30b-a3b-q4km-8c9d", words_of("slicemoe")["RECORD"]


class Opener(Protocol):
    def __call__(self, file: Path, chosen: str = "", window: dict[str, int] = ...) -> AbstractContextManager[Opened]: ...


@pytest.fixture(scope="module")
def open_file() -> Iterator[Opener]:
    """Opens a page's file with what its link chooses, all in one browser."""
    with browser() as process:
        yield lambda file, chosen="", **window: open_page(process, f"{file.as_uri()}#{chosen}", **window)


def assert_clean(page: Opened, n_charts: int) -> None:
    assert page.console == []
    assert page.requests == set()
    assert page.n_places == n_charts
    assert page.n_drawn == min(n_charts, AT_ONCE)


CHARTS = {
    "index.html": 1, "experts.html": 2, "tape.html": 7, "hardware.html": 3, "compare.html": 5, "elmoe3d.html": 20,
    "kelle.html": 25, "cxl_ndp.html": 18, "layered_prefill.html": 17, "slicemoe.html": 15, "validation.html": 7,
}  # fmt: skip


def the_contents_are_reached_by_keyboard_and_a_link_opens_what_is_closed(page: Opened) -> None:
    links = page.page.locator("details.contents a")
    last = links.count() - 1
    for _ in range(80):
        page.page.keyboard.press("Tab")
        if links.nth(last).evaluate("link => link === document.activeElement"):
            break
    place = links.nth(last).get_attribute("href")
    assert place
    assert not page.page.locator(f"{place} svg.marks").count()  # in a part that is closed
    page.page.keyboard.press("Enter")
    page.page.locator(f"{place} svg.marks").first.wait_for(state="attached")
    assert page.page.url.endswith(place)
    assert page.page.locator(f"{place} h2").is_visible()


def a_machine_without_a_step_shows_its_own_numbers_and_says_what_to_run(page: Opened) -> None:
    page.choose(hardware="in-memory")
    assert "No step is recorded on this machine" in page.text_of("clock-answer")
    shown = page.page.locator("[data-is]").evaluate_all("all => all.filter(of => !of.hidden).map(of => of.dataset.is)")
    assert shown == ["in-memory"]  # the table of the chosen machine, and no other


def a_slider_changes_its_chart_its_answer_and_the_link(page: Opened) -> None:
    page.choose(steps=1, model="embedded")
    assert page.text_of("warmups-answer").startswith("Over the first 128 steps")
    assert page.output_of("steps") == "first 128"
    assert page.page.locator('[name="cache"]').input_value() == "3.2 MB"
    assert "steps=128" in page.page.url
    assert "95.0%" in page.labels("#warmups .mark-rect.role-mark path")
    page.page.locator("#warmups-section summary").press("Enter")
    page.page.locator("#warmups-section [data-do=sql]").click()
    assert re.search(r"from \w+", page.page.locator("#warmups-section pre").text_content() or "")


def sliders_move_the_machine_and_menus_the_law_of_answers_and_tables(page: Opened) -> None:
    page.choose(size=0, at=0)
    assert page.output_of("size") == "2 GiB"
    assert "size=2&at=1" in page.page.url
    assert page.text_of("explorer-answer").startswith("With 2 GiB and batch 1, EAGLE3 in SD is fastest, 3.5 × the xPU")
    bars = page.labels("#explorer .mark-rect.role-mark path")
    assert "EAGLE3" in bars
    assert "3.5" in bars
    page.choose(law="physical", level="L0")
    assert page.text_of("cells-answer").startswith("AR: 47.5 % on average")
    assert not page.page.locator("[data-is=physical]").first.evaluate("part => part.hidden")
    assert page.page.locator("[data-is=paper_law]").first.evaluate("part => part.hidden")


def sliders_move_the_limits(page: Opened) -> None:
    slider = page.page.locator('[name="ttft"]')
    assert slider.input_value() == "1"  # 10 s lies between 1 s and 40 s, though it opens the page
    page.choose(ttft=0, tbt=2)
    assert page.output_of("ttft") == "1 s"
    assert "ttft=1&tbt=0.5" in page.page.url
    assert page.text_of("explorer-answer").startswith("With the first token within 1 s and no gap above 500 ms")
    marks = page.labels("#explorer .mark-symbol.role-mark path")
    assert "requests in time (%): 0.0%" in marks or "in time: 0.0%" in marks
    assert "in time: 100.0%" not in marks


def panels_side_by_side_lie_below_one_another_on_a_phone(page: Opened) -> None:
    sizes = []
    for window in (LAPTOP, PHONE):
        page.page.set_viewport_size(window)
        page.page.reload()
        page.page.locator("#cost svg.marks").wait_for()
        sizes.append(page.page.locator("#cost svg.marks").evaluate("svg => [svg.clientWidth, svg.clientHeight]"))
    (wide, low), (narrow, high) = sizes
    assert wide > 2 * narrow
    assert narrow < PHONE["width"]
    assert high > 1.5 * low


READERS = {  # what is done with a page once it is drawn
    "experts.html": panels_side_by_side_lie_below_one_another_on_a_phone,
    "kelle.html": the_contents_are_reached_by_keyboard_and_a_link_opens_what_is_closed,
    "hardware.html": a_machine_without_a_step_shows_its_own_numbers_and_says_what_to_run,
    "slicemoe.html": a_slider_changes_its_chart_its_answer_and_the_link,
    "elmoe3d.html": sliders_move_the_machine_and_menus_the_law_of_answers_and_tables,
    "layered_prefill.html": sliders_move_the_limits,
}


@pytest.mark.parametrize("file", CHARTS)
def test_every_page_draws_in_silence_on_a_phone_a_laptop_and_a_desk(site_folder: Path, open_file: Opener, file: str) -> None:
    """Opened on the phone and then given the other widths, so that every chart is drawn once."""
    assert sorted(p.name for p in site_folder.glob("*.html")) == sorted(CHARTS) == sorted([index.FILE, *TOPICS])
    with open_file(site_folder / file, window=PHONE) as page:
        assert_clean(page, CHARTS[file])
        assert page.page.locator("details.contents[open]").count() == 0
        page.open_all()
        assert page.n_drawn == page.n_places
        for window in (PHONE, LAPTOP, WIDE):
            page.page.set_viewport_size(window)
            assert page.n_wider == 0
            page.keep(f"{file}-{window['width']}")
        assert page.console == []


@pytest.mark.parametrize("file", READERS)
def test_what_readers_do_does_what_it_should(site_folder: Path, open_file: Opener, file: str) -> None:
    with open_file(site_folder / file) as page:
        assert page.page.locator("details.contents:not([open])").count() == 0
        READERS[file](page)
        assert page.console == []
        assert page.n_wider == 0


@pytest.mark.parametrize(("kind", "n_charts"), [("empty_database", 0), ("unreplayed_database", 6)])
def test_pages_without_results_draw_in_silence(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, open_file: Opener, kind: str, n_charts: int
) -> None:
    monkeypatch.setattr(site, "TOPICS", {"tape.html": TOPICS["tape.html"]})
    front = build(request.getfixturevalue(kind), tmp_path / "site")
    with open_file(front.with_name("tape.html")) as page:
        assert_clean(page, n_charts)


def test_menus_legends_and_links_agree(site_folder: Path, open_file: Opener) -> None:
    with open_file(site_folder / "experts.html", f"trace={TRACE}&scope=per-layer") as page:
        page.choose(hardware="workstation-rtx4090-pcie4")
        page.page.locator("#hits .mark-symbol.role-legend-symbol path").first.click()
        page.settle()
        lines = page.page.locator("#cost .mark-line.role-mark path")
        opacities = lines.evaluate_all("lines => lines.map(line => line.getAttribute('opacity'))")
        assert_clean(page, 2)
        assert "(3,072)" in page.text_of("hits-answer")  # half of 48 x 128: the trace of the link
        assert "L × k" not in page.text_of("hits-answer")  # said of a global cache only: the scope of the link
        assert page.text_of("cost-answer").startswith("On workstation-rtx4090-pcie4")  # the menu
        assert opacities.count("1") == 2  # LRU, in the latency and the energy panel: the legend of another chart
        assert len(opacities) == 14
    with open_file(site_folder / "experts.html", "trace=gone") as page:
        assert "gone is not here to choose: the page shows embedded-code" in page.page.locator(".lead").inner_text()


def picked(page: Opened) -> list[str]:
    """Methods that stand out: in the frontier, then in the table."""
    points = page.page.locator("#frontier .mark-symbol.role-mark path")
    bright = points.evaluate_all("all => all.filter(p => p.getAttribute('opacity') !== '0.12').map(p => p.__data__.datum.method)")
    return [*bright, "|", *page.page.locator("#everything tbody tr:not(.faded) td:first-child:not(.below)").all_text_contents()]


def test_what_is_picked_in_a_chart_stands_out_in_the_others_and_in_the_table(site_folder: Path, open_file: Opener) -> None:
    with open_file(site_folder / "compare.html", "trace=made-up&machine=h100-cxl-ndp") as page:
        everything = picked(page)
        bars = page.page.locator("#parts .mark-rect.role-mark path")
        methods = bars.evaluate_all("bars => bars.map(bar => bar.__data__.datum.method)")
        bars.nth(methods.index("near_compute")).click(force=True)
        page.settle()
        assert picked(page) == ["near_compute", "|", "near_compute"]
        assert page.page.locator("#everything tbody tr:not(.faded) .below").all_text_contents()[0].startswith("schedule ")
        assert page.page.locator("#everything").evaluate("place => place.scrollWidth <= place.clientWidth")
        page.page.locator("#everything-section summary").click()
        with page.page.expect_download() as saved:
            page.page.locator("#everything-section [data-do=csv]").click()
        assert "near_compute" in saved.value.path().read_text()
        assert_clean(page, 5)
        first = page.page.locator("#frontier .mark-symbol.role-mark path").first
        first.scroll_into_view_if_needed()
        box = first.bounding_box()
        assert box
        page.page.mouse.move(box["x"] - 6, box["y"] - 6)
        page.page.mouse.down()
        page.page.mouse.move(box["x"] + box["width"] + 6, box["y"] + box["height"] + 6, steps=5)
        page.page.mouse.up()
        page.settle()
        brushed = picked(page)
        assert brushed[0] == everything[0]
        assert len(brushed) < len(everything)
        assert page.console == []


def test_a_link_sets_the_limits(site_folder: Path, open_file: Opener) -> None:
    chosen = "served=gpt-oss-20b, sharegpt, h100x2&ttft=40&tbt=0.0625&table=Table 2"
    with open_file(site_folder / "layered_prefill.html", chosen) as page:
        assert page.text_of("explorer-answer").startswith("With the first token within 40 s and no gap above 62.5 ms")
        assert "Table 2: Within 10 %" in page.text_of("claims-answer")
        assert page.console == []


@pytest.fixture
def slicemoe_alone(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """SliceMoE's page of some rows, with Vega inside."""
    html = shell.render(page_of(slicemoe, *request.param), [(slicemoe.file, slicemoe.title)], is_single=True)
    assert len(html.encode()) < PAGE_BYTES + len(shell.vega())
    (tmp_path / slicemoe.file).write_text(html, encoding="utf-8")
    return tmp_path / slicemoe.file


@pytest.mark.parametrize("slicemoe_alone", [(add_live, add_unheld)], indirect=True)
def test_a_setup_without_budgets_says_so_in_silence(slicemoe_alone: Path, open_file: Opener) -> None:
    with open_file(slicemoe_alone, "setup=embedded, code, scheme none") as page:
        assert page.console == []
        assert page.text_of("budgets-answer").startswith("Nothing to draw: no sliced cache was held to a budget")
        assert page.text_of("live-answer") == (
            "MAT84, 50 % cached: DBSC and another configuration are not measured under one budget."
        )
        assert "under 3 % by itself DBSC is not measured" in page.text_of("sparing-answer")


@pytest.mark.parametrize("slicemoe_alone", [EVERYTHING], indirect=True)
def test_a_tape_of_a_link_is_shown_and_lacks_what_it_has_not(slicemoe_alone: Path, open_file: Opener) -> None:
    with open_file(slicemoe_alone, "trace=ungated&layer=1&tau=0.35") as page:
        assert page.console == []
        assert page.text_of("early-answer").startswith("Hardly: in layer 1,")
        assert page.text_of("critical-answer") == f"Nothing to draw: the tape has no gate weights. Run: {RECORD}"
        assert page.text_of("gains-answer").startswith("With MAT84 and tau 0.35,")


def test_the_checks_can_fail(site_folder: Path, tmp_path: Path, open_file: Opener) -> None:
    """A page that logs, fetches and leaves a chart out is noticed, and the site's own policy stops its request."""
    fetching = 'fetch("http://example.invalid/x").catch(() => 0)'
    bad = tmp_path / "bad.html"
    wide = '<div class="chart" style="width: 3000px">nothing</div>'
    bad.write_text(f'<!DOCTYPE html>{wide}<script>console.error("on purpose"); {fetching}</script>')
    with open_file(bad) as page:
        page.page.evaluate(fetching)
        assert any("on purpose" in line for line in page.console)
        assert page.requests == {"http://example.invalid/x"}
        assert page.n_drawn < page.n_places
        assert page.n_wider > 0
    with open_file(site_folder / "index.html") as page:
        page.page.evaluate(fetching)
        assert page.requests == set()
        assert any("example.invalid" in line and "Content Security Policy" in line for line in page.console)
