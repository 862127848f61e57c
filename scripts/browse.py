"""Look at every page of build/site in headless Chromium, 400 pixels wide: ``scripts/browse.py``.

A page must not scroll sideways, each of its code blocks must have a button to copy it, and the search must find a word.
The browser is driven over WebDriver's HTTP protocol. Exit code 0: all is well. 77: this machine has no Chromium.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import http.server
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tiered.clock import SystemClock

SITE = Path(__file__).resolve().parents[1] / "build" / "site"
WIDTH, HEIGHT = 400, 800
WORD = "retention"
SECONDS, LOOK_SECONDS = 30.0, 0.1
SKIPPED = 77

WIDE = """
const limit = document.documentElement.clientWidth + 1;
const page = document.scrollingElement;
if (page.scrollWidth <= limit) return [];
return [...document.body.querySelectorAll('*')].filter(e => e.getBoundingClientRect().right > limit)
    .slice(0, 3).map(e => e.tagName + '.' + e.className + ': ' + e.textContent.trim().slice(0, 60));
"""
BARE = """
return [...document.querySelectorAll('.md-content pre > code')]
    .filter(e => !e.closest('pre').parentElement.querySelector('[data-clipboard-target], .md-code__nav, .md-clipboard'))
    .slice(0, 3).map(e => e.textContent.trim().slice(0, 60));
"""
SEARCH = """
const box = document.querySelector('.md-search__input');
document.querySelector('#__search').checked = true;
box.focus();
box.value = arguments[0];
box.dispatchEvent(new Event('input', {bubbles: true}));
box.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}));
"""
FOUND = "return [...document.querySelectorAll('.md-search-result__item a')].map(e => e.textContent).join(' ');"


class Browser:
    """One session of a headless Chromium."""

    def __init__(self, driver: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._clock = SystemClock()
        self._process = subprocess.Popen([driver, f"--port={self._port}"], stdout=subprocess.DEVNULL)
        while not self._listens():
            self._clock.sleep(LOOK_SECONDS)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        wanted = {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}
        self._session = self._ask("POST", "/session", {"capabilities": wanted})["sessionId"]
        metrics = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": True}
        self._call("/goog/cdp/execute", cmd="Emulation.setDeviceMetricsOverride", params=metrics)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0 or self._process.poll() is not None

    def _ask(self, method: str, path: str, fields: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, json.dumps(fields), {"Content-Type": "application/json"})
            return json.load(connection.getresponse())["value"]

    def _call(self, path: str, **fields: Any) -> Any:
        return self._ask("POST", f"/session/{self._session}{path}", fields)

    def open(self, url: str) -> None:
        """Load a page."""
        self._call("/url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript in the page. Return its result."""
        return self._call("/execute/sync", script=script, args=list(arguments))

    def wait(self, script: str, word: str) -> bool:
        """Return True once the result of ``script`` contains the word."""
        for _ in range(int(SECONDS / LOOK_SECONDS)):
            if word in str(self.run(script)).lower():
                return True
            self._clock.sleep(LOOK_SECONDS)
        return False

    def close(self) -> None:
        """End the browser."""
        self._ask("DELETE", f"/session/{self._session}", {})
        self._process.terminate()
        self._process.wait()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Server of files that logs nothing."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


def problems(browser: Browser, root: str) -> Iterator[str]:
    """Yield what is wrong with the site."""
    pages = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
    for page in pages:
        browser.open(f"{root}/{page}")
        for name, script in (("is too wide", WIDE), ("no copy button", BARE)):
            yield from (f"{page}: {name}: {each}" for each in browser.run(script))
    browser.open(f"{root}/index.html")
    browser.run(SEARCH, WORD)
    if not browser.wait(FOUND, WORD):
        yield f"the search does not find {WORD}"
    print(f"{len(pages)} pages, {WIDTH} pixels wide", file=sys.stderr)


def main() -> int:
    """Print the problems. Return the exit code."""
    driver = shutil.which("chromedriver")
    if driver is None:
        print("no chromedriver on PATH", file=sys.stderr)
        return SKIPPED
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(driver)
    try:
        found = list(problems(browser, f"http://127.0.0.1:{server.server_port}"))
    finally:
        browser.close()
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
