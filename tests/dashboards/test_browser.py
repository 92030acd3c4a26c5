"""Every page opened from its file in a real browser: it draws all its charts, logs nothing and asks the network for nothing."""

import base64
import hashlib
import re
from pathlib import Path

import pytest
from chromium_page import CHROMIUM, Opened, after_moves, open_page

from tokentape.dashboards import index
from tokentape.dashboards.shell import AT_ONCE
from tokentape.dashboards.site import TOPICS, build

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the pages are not opened in a browser")

TRACE = "qwen3-30b-a3b-q4km-8c9d"
PAGES = sorted([index.FILE, *TOPICS])


def assert_clean(page: Opened, n_charts: int) -> None:
    assert page.console == []
    assert page.requests == set()
    assert page.n_places == n_charts
    assert page.n_drawn == min(n_charts, AT_ONCE)


@pytest.mark.parametrize(
    ("file", "n_charts"),
    [
        ("index.html", 1),
        ("experts.html", 2),
        ("tape.html", 7),
        ("hardware.html", 3),
        ("compare.html", 5),
        ("elmoe3d.html", 20),
        ("kelle.html", 25),
        ("cxl_ndp.html", 18),
        ("layered_prefill.html", 16),
        ("slicemoe.html", 14),
        ("validation.html", 7),
    ],
)
def test_every_page_draws_in_silence(site_folder: Path, tmp_path: Path, file: str, n_charts: int) -> None:
    assert sorted(p.name for p in site_folder.glob("*.html")) == PAGES
    assert_clean(open_page((site_folder / file).as_uri(), tmp_path), n_charts)


# How much wider a page is than its window.
WIDE = after_moves({}, "const of = document.documentElement; document.body.dataset.wide = of.scrollWidth - of.clientWidth;")


@pytest.mark.parametrize("file", ["index.html", "kelle.html", "compare.html", "tape.html"])
def test_a_phone_scrolls_no_page_sideways_and_a_link_opens_what_is_closed(site_folder: Path, tmp_path: Path, file: str) -> None:
    driven = with_script(site_folder / file, WIDE, tmp_path)
    page = open_page(f"{driven.as_uri()}#area-section", tmp_path, "--window-size=390,844")
    assert page.console == []
    assert 'data-wide="0"' in page.dom
    assert page.n_drawn == page.n_places  # the last figure of 25 among them
    assert '<details class="contents" open' not in page.dom


@pytest.mark.parametrize(("kind", "n_charts"), [("empty_database", 0), ("unreplayed_database", 6)])
def test_pages_without_results_draw_in_silence(request: pytest.FixtureRequest, tmp_path: Path, kind: str, n_charts: int) -> None:
    front = build(request.getfixturevalue(kind), tmp_path / "site")
    assert_clean(open_page(front.with_name("tape.html").as_uri(), tmp_path), n_charts)


def test_a_machine_without_a_step_shows_its_own_numbers_and_says_what_to_run(site_folder: Path, tmp_path: Path) -> None:
    page = open_page(f"{(site_folder / 'hardware.html').as_uri()}#hardware=in-memory", tmp_path)
    assert_clean(page, 3)
    assert "No step is recorded on this machine" in page.text_of("clock-answer")
    assert re.search(r'data-is="in-memory"(?! hidden)', page.dom)  # the table of the chosen machine, and no other
    assert len(re.findall(r'data-is="[^"]*" hidden', page.dom)) == 2


# Changes a menu, then picks a policy in the legend of one chart, and notes what another chart did.
DRIVER = after_moves(
    {"hardware": "workstation-rtx4090-pcie4"},
    """
  const symbol = document.querySelector("#hits .mark-symbol.role-legend-symbol path");
  symbol.dispatchEvent(new MouseEvent("click", { bubbles: true, view: window }));
  await new Promise((done) => setTimeout(done, 500));
  const opacities = [...document.querySelectorAll("#cost .mark-line.role-mark path")].map((path) => path.getAttribute("opacity"));
  document.body.dataset.bright = opacities.filter((opacity) => opacity === "1").length;
  document.body.dataset.faded = opacities.filter((opacity) => opacity !== "1").length;
""",
)


def test_menus_legends_and_links_agree(site_folder: Path, tmp_path: Path) -> None:
    url = f"{with_script(site_folder / 'experts.html', DRIVER, tmp_path).as_uri()}#trace={TRACE}&scope=per-layer"
    page = open_page(url, tmp_path)
    assert_clean(page, 2)
    assert "(3,072)" in page.text_of("hits-answer")  # half of 48 x 128: the trace of the link
    assert "L × k" not in page.text_of("hits-answer")  # said of a global cache only: the scope of the link
    assert page.text_of("cost-answer").startswith("On workstation-rtx4090-pcie4")  # the menu
    assert 'data-bright="2"' in page.dom  # LRU, in the latency and the energy panel: the legend of another chart
    assert 'data-faded="12"' in page.dom


# Picks a method by a bar, then notes what another chart and the table did.
PICKER = after_moves({}, """
  const method = (path) => path.__data__.datum.method;
  const bars = [...document.querySelectorAll("#parts .mark-rect.role-mark path")];
  bars.find((path) => method(path) === "near_compute").dispatchEvent(new MouseEvent("click", { bubbles: true, view: window }));
  await new Promise((done) => setTimeout(done, 500));
  const points = [...document.querySelectorAll("#frontier .mark-symbol.role-mark path")];
  const lines = [...document.querySelectorAll("#everything tr:not(.faded) td:first-child")];
  const bright = points.filter((path) => path.getAttribute("opacity") !== "0.12").map(method);
  document.body.dataset.picked = [...bright, ...lines.map((cell) => cell.textContent)].join(" ");
""")  # fmt: skip


def test_what_is_picked_in_a_chart_stands_out_in_the_others_and_in_the_table(site_folder: Path, tmp_path: Path) -> None:
    url = with_script(site_folder / "compare.html", PICKER, tmp_path).as_uri()
    page = open_page(f"{url}#trace=made-up&machine=h100-cxl-ndp", tmp_path)
    assert_clean(page, 5)
    assert 'data-picked="near_compute near_compute"' in page.dom


# Drags a slider, then takes the model with small caches from a menu before it.
SLIDER = after_moves(
    {"steps": 1, "model": "embedded"},
    """
  for (const button of document.querySelectorAll("#warmups-section button")) button.click();
  document.body.dataset.said = document.querySelector('[name="steps"] + output').value;
  document.body.dataset.cache = document.querySelector('[name="cache"]').value;
  const bars = [...document.querySelectorAll("#warmups .mark-rect.role-mark path")].map((bar) => bar.getAttribute("aria-label"));
  document.body.dataset.bars = bars.join(" | ");
""",
)


def test_a_slider_changes_its_chart_its_answer_and_the_link(site_folder: Path, tmp_path: Path) -> None:
    page = open_page(with_script(site_folder / "slicemoe.html", SLIDER, tmp_path).as_uri(), tmp_path)
    assert_clean(page, 14)
    assert page.text_of("warmups-answer").startswith("Over the first 128 steps")
    assert 'data-said="first 128"' in page.dom
    assert re.search(r"<pre>[^<]*from \w+", page.dom)  # the SQL of the figure
    assert 'data-cache="3.2 MB"' in page.dom
    assert "steps=128" in re.search(r'data-link="([^"]*)"', page.dom)[1]  # type: ignore[index]
    assert "95.0%" in re.search(r'data-bars="([^"]*)"', page.dom)[1]  # type: ignore[index]


def test_the_checks_can_fail(site_folder: Path, tmp_path: Path) -> None:
    """A page that logs, fetches and leaves a chart out is noticed, and the site's own policy stops its request."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<div class="chart"></div><script>console.error("on purpose"); fetch("http://example.invalid/x").catch(() => 0)</script>'
    )
    page = open_page(bad.as_uri(), tmp_path)
    assert any("on purpose" in line for line in page.console)
    assert page.requests == {"http://example.invalid/x"}
    assert page.n_drawn < page.n_places
    (tmp_path / "again").mkdir()
    stopped = open_page(
        with_script(site_folder / "index.html", 'fetch("http://example.invalid/x").catch(() => 0)', tmp_path).as_uri(),
        tmp_path / "again",
    )
    assert stopped.requests == set()
    assert any("example.invalid" in line and "Content Security Policy" in line for line in stopped.console)


def with_script(page: Path, script: str, folder: Path) -> Path:
    """A copy of the page with one more script, let through by its policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = page.read_text(encoding="utf-8").replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    html = html.replace('src="vega.js"', f'src="{(page.parent / "vega.js").as_uri()}"')
    above, end, below = html.rpartition("</body>")
    copy = folder / f"driven-{page.name}"
    copy.write_text(f"{above}<script>{script}</script>{end}{below}", encoding="utf-8")
    return copy
