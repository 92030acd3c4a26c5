"""Pages in a headless Chromium that resolves no name: what each drew, logged and asked of the network."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--process-per-site",  # what one page compiled of Vega serves the next
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
LAPTOP, WIDE, PHONE = {"width": 1366, "height": 900}, {"width": 1920, "height": 1080}, {"width": 390, "height": 844}
SCREENSHOTS = os.environ.get("SCREENSHOTS")  # a folder: `make screenshots`


@contextmanager
def browser() -> Iterator[BrowserContext]:
    """One browser. While it is open, nothing else of this thread may run an event loop."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the page is not opened in a browser")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened.new_context()
        opened.close()


@dataclass(frozen=True)
class Opened:
    """A page; console lines of any level so far; URLs it asked for beyond files and data."""

    page: Page
    console: list[str]
    requests: set[str]

    @property
    def n_drawn(self) -> int:
        """Charts on the page: Vega marks its drawing surface with this class."""
        return self.page.locator("svg.marks").count()

    @property
    def n_places(self) -> int:
        """Of charts, those in closed parts too."""
        return self.page.locator("div.chart").count()

    @property
    def n_wider(self) -> int:
        """Pixels by which it is wider than its window."""
        wider: int = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return wider

    def text_of(self, element_id: str) -> str:
        return self.page.locator(f"#{element_id}").text_content() or ""

    def output_of(self, slider: str) -> str:
        """What stands beside it."""
        said: str = self.page.locator(f'[name="{slider}"] + output').evaluate("output => output.value")
        return said

    def labels(self, marks: str) -> str:
        """What the marks say to who cannot see them."""
        said: list[str] = self.page.locator(marks).evaluate_all("marks => marks.map(mark => mark.getAttribute('aria-label'))")
        return " | ".join(said)

    def choose(self, **to: int | str) -> None:
        """Sets sliders to places and menus to words, and waits until every chart has followed."""
        for name, value in to.items():
            control = self.page.locator(f'[name="{name}"]')
            control.fill(str(value)) if isinstance(value, int) else control.select_option(value)
        self.settle()

    def open_all(self) -> None:
        """Opens what is closed; its charts are drawn."""
        self.page.evaluate("document.querySelectorAll('details.more').forEach(part => { part.open = true; })")
        self.page.evaluate("drawOpen()")
        self.settle()

    def settle(self) -> None:
        self.page.evaluate("Promise.all([...views.values()].map(view => view.runAsync())).then(() => null)")

    def keep(self, name: str) -> None:
        """A picture of the whole page, where they are asked for."""
        if SCREENSHOTS:
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=True)


@contextmanager
def open_page(browser: BrowserContext, url: str, window: dict[str, int] = LAPTOP) -> Iterator[Opened]:
    """The one before is closed only now: with the last page of a site its process ends."""
    before, page = browser.pages, browser.new_page()
    page.set_viewport_size(window)
    opened = Opened(page, [], set())
    page.on("console", lambda line: opened.console.append(line.text))
    page.on("pageerror", lambda error: opened.console.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else opened.requests.add(asked.url))
    page.goto(url)
    if page.locator("#page-data").count():
        page.locator("body[data-drawn]").wait_for(state="attached")  # a function to wait for is text, which the pages do not run
    for one in before:
        one.close()
    yield opened
