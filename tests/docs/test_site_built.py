"""Tests of the documentation site as built by `make docs`: no warnings, complete pages, and pages in a browser."""

import re
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import browserkit
import pytest
import pytest_asyncio
from browserkit import Browser, PageActivity, browsing
from fences import ROOT
from sitepages import dialect, navigation

SITE = dialect()
PLACES = {page: place for place, page in SITE.MOVED.items() if page != "index.md"}
WIDTHS = (1280, 390)
"""The width of a window on a computer and on a telephone, in pixels."""
IN_BROWSER = pytest.mark.skipif(not browserkit.program(), reason="needs Chromium, and finds none in PATH")
COUNTED = ("li", "tr", "h2", "h3")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in its own folder; the first time, its packages are installed."""
    place = tmp_path_factory.mktemp("site") / "docs"
    command = ["make", "-s", "docs", f"SITE={place}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return place


def address(page: str) -> str:
    """Return the path in the site of a page in docs/."""
    return re.sub(r"README\.md$", "index.md", page).removesuffix(".md") + ".html"


class _Article(HTMLParser):
    """Counts elements of the text of a page, without what the theme adds around it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - as it is called
        """Count the element."""
        self._depth += tag == "article"
        if self._depth and tag in COUNTED:
            self.found[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        """Stop counting at the end of the text."""
        self._depth -= tag == "article"


def counted(page: str) -> Counter[str]:
    """Return how many elements a page has according to its source, as GitHub renders it."""
    place = PLACES.get(page, f"docs/{page}")
    text = SITE.shown(place, (ROOT / place).read_text())
    fence = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
    lines = re.sub(r"<!--.*?-->", "", fence.sub("", text)).splitlines()
    return Counter(
        li=sum(bool(re.match(r" *(?:[-*+]|\d+\.) ", line)) for line in lines),
        tr=sum(bool(re.match(r" *\|(?!(?:-+\|)+$)", line)) for line in lines),
        h2=sum(line.startswith("## ") for line in lines),
        h3=sum(line.startswith("### ") for line in lines),
    )


@pytest.mark.parametrize("page", navigation())
def test_a_built_page_has_the_items_rows_and_headings_of_its_source(page: str, built: Path) -> None:
    """GitHub's rules count, and no fence is rendered as text."""
    article = _Article()
    text = (built / address(page)).read_text()
    article.feed(text)
    assert Counter({tag: article.found[tag] for tag in COUNTED}) == counted(page)
    assert "```" not in text


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[str]:
    """The address of a server of the built site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(built))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    """A file server that prints nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called
        """Print nothing, because each request would be a line."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser for all pages."""
    async with browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made


@IN_BROWSER
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("page", navigation())
async def test_a_page_fits_the_window_and_loads_nothing_from_other_hosts(
    page: str, served: str, browser: Browser
) -> None:
    """There is also no error in the console."""
    await browser.resize(WIDTHS[0])
    seen = await browser.load(f"{served}/{address(page)}")
    widths = []
    for width in WIDTHS:
        await browser.resize(width)
        widths.append(await browser.evaluate("document.documentElement.scrollWidth"))
    assert seen.faults == ()
    assert hosts(seen) == {urlsplit(served).netloc}
    assert [width for width, most in zip(widths, WIDTHS, strict=True) if width > most] == []


def hosts(seen: PageActivity) -> set[str]:
    """Return the hosts of all requests, with their ports."""
    return {urlsplit(url).netloc for url in seen.requests if not url.startswith("data:")}


@IN_BROWSER
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("reason", ["NameConflict", "DeletionLimitExceeded", "LowerUnreachable"])
async def test_the_search_finds_a_reason_on_the_troubleshooting_page(
    reason: str, served: str, browser: Browser
) -> None:
    """Its section is the first result, and the search sends no request to another host."""
    await browser.resize(WIDTHS[0])
    await browser.load(f"{served}/index.html?q={reason}")
    found = await browser.wait_for("document.querySelectorAll('.md-search-result__item a')[1]?.href")
    assert (urlsplit(found).path, urlsplit(found).fragment) == ("/troubleshooting.html", reason.lower())
    assert hosts(browser.activity()) == {urlsplit(served).netloc}


@IN_BROWSER
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("scheme", "named"), [("light", "default"), ("dark", "slate")])
async def test_the_site_uses_the_color_scheme_that_the_browser_prefers(
    scheme: str, named: str, served: str, browser: Browser
) -> None:
    """This is the default until the reader chooses one with the button."""
    await browser.set_color_scheme(scheme)
    await browser.load(f"{served}/index.html")
    assert await browser.wait_for(f"document.body.dataset.mdColorScheme == '{named}'")
