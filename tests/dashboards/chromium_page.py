"""One page in a headless Chromium that resolves no name: what it drew, logged and asked of the network."""

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tokentape.dashboards import shell
from tokentape.dashboards.shell import Page
from tokentape.dashboards.site import PAGE_BYTES

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: the page is not opened in a browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=20000", "--window-size=1366,900", "--dump-dom",
)  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """The document after drawing; console lines of any level; URLs the page (not the browser) asked for beyond files and data."""

    dom: str
    console: list[str]
    requests: set[str]

    @property
    def n_drawn(self) -> int:
        """Charts on the page: Vega marks its drawing surface, svg or canvas, with this class."""
        return len(re.findall(r'<(?:svg|canvas)[^>]*class="marks"', self.dom))

    @property
    def n_places(self) -> int:
        """Of charts, those in closed parts too."""
        return len(re.findall(r'<div class="chart[ "]', self.dom))

    def text_of(self, element_id: str) -> str:
        found = re.search(rf'id="{element_id}"[^>]*>([^<]*)<', self.dom)
        assert found, f"no element {element_id}"
        return found[1]


def open_page(url: str, work: Path, *more: str) -> Opened:
    """Opens `url` in a profile of its own under the empty folder `work`. more: flags of the browser."""
    assert CHROMIUM
    log = work / "net.json"
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, *more, f"--user-data-dir={work / 'profile'}", f"--log-net-log={log}", url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        dom, stderr = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    net = json.loads(log.read_text(encoding="utf-8"))
    start = net["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [e["params"] for e in net["events"] if e["type"] == start and "url" in e.get("params", {})]
    # The browser's own errands (updates, clock) have no origin; they fail here, because no name resolves.
    requests = {p["url"] for p in asked if p.get("initiator") != "not an origin" and not p["url"].startswith(("file:", "data:"))}
    return Opened(dom, [line for line in stderr.splitlines() if "CONSOLE" in line], requests)


def page_file(page: Page, folder: Path) -> Path:
    """The page alone as a file, which must be small enough for a site."""
    html = shell.render(page, [(page.file, page.title)], is_single=True)
    assert len(html.encode()) < PAGE_BYTES + len(shell.vega())
    (folder / page.file).write_text(html, encoding="utf-8")
    return folder / page.file


def after_moves(moves: dict[str, int | str], noted: str, first: str = "") -> str:
    """A script that, once the page has drawn, runs `first`, sets sliders to places and menus to words, waits and runs `noted`."""
    moved = "".join(f'  choose("{name}", "{value}", "{"change" if isinstance(value, str) else "input"}");\n'
                    for name, value in moves.items())  # fmt: skip
    return f"""
const drawn = setInterval(async () => {{
  if (!document.body.dataset.drawn) return;
  clearInterval(drawn);
  const choose = (name, value, kind) => {{
    const control = document.querySelector(`[name="${{name}}"]`);
    control.value = value;
    control.dispatchEvent(new Event(kind, {{ bubbles: true }}));
  }};
  {first}
{moved}  await new Promise((done) => setTimeout(done, 500));
  {noted}
  document.body.dataset.link = location.hash;
}}, 50);
"""
