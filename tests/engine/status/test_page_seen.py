"""Tests of the status page in a browser with 5,000 pods on 20 lower clusters: layout, keyboard, updates and speed."""

import asyncio
import time
from collections.abc import AsyncIterator

import axekit
import browserkit
import pytest
import pytest_asyncio
from browserkit import Browser, browsing
from pagekit import ParsedPage, StatusPageHarness, populated, requesting, serving, step
from worldkit import put

from tensile.engine.status.page import ResourceUsage, page
from tensile.objects import POD, Ref
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem
from tensile.topology.diff import Edit

pytestmark = [
    pytest.mark.skipif(not browserkit.program(), reason="needs Chromium, and finds none in PATH"),
    pytest.mark.asyncio(loop_scope="module"),
]
LOWERS, PODS = 20, 5000
WIDTHS = (1280, 390)
"""Pixels of the window of a computer and of a phone."""
PATHS = ("/", "/lowers/lower-00", "/pods/team-0/web-0000", "/search?q=web-00", "/topology", "/lowers/none")
LARGEST = 150_000
"""Bytes of a page."""
FIRST_PAINT = 300.0
"""Milliseconds."""
ON_SCREEN = 1.0
"""Seconds from a change until the browser shows it."""
SHARE = 0.01
"""The largest share of a core for ten viewers."""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


@pytest.fixture(scope="module")
def status_page() -> StatusPageHarness:
    """Return a world that also has problems, blocked deletions and changes."""
    found = StatusPageHarness(populated(LOWERS, PODS, 4))
    for number in range(60):
        key = Key("pod", "lower-03", "team-1", f"web-{number:04}")
        found.world.problems[key] = Problem(
            "QuotaExceeded", "exceeded quota: compute, requested: pods=1, used: pods=10"
        )
    gone = tuple(Step("delete", Ref("lower-05", POD, "shop", f"web-{n}"), "its upper pod is gone") for n in range(130))
    found.held_steps[Key("orphans", "lower-05", "", "pods")] = gone
    found.world.lowers["lower-05"].access_error = "kubeconfigs/lower-05: no such file"
    for number in range(60):
        found.changes.add(step(f"web-{number}"))
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(status_page: StatusPageHarness) -> AsyncIterator[str]:
    """Return the address of its status page."""

    async def plan(_change: Edit) -> str:
        """Return a plan with a long line."""
        return f"lower-00\n- Pod shop/{'web-' * 60}\n\nPlan: 0 to add, 0 to change, 1 to delete"

    async with serving(status_page.source(plan=plan)) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Return a browser for all tests."""
    async with browsing(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the script of the accessibility checker."""
    return axekit.script() or pytest.skip(f"axe-core {axekit.VERSION} is not cached and cannot be fetched by npm")


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_loads_without_errors_and_fits_the_window(path: str, url: str, browser: Browser) -> None:
    """It has no error in the console and no request to another host, at the widths of a computer and of a phone."""
    seen = await browser.load(f"{url}{path}")
    widths = []
    for width in WIDTHS:
        await browser.resize(width)
        widths.append(await browser.evaluate("document.documentElement.scrollWidth"))
    faults = [one for one in seen.faults if not (path == "/lowers/none" and "404" in one)]
    assert faults == []
    assert all(one.startswith(url) for one in seen.requests)
    assert [width for width, most in zip(widths, WIDTHS, strict=True) if width > most] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_page_has_no_serious_accessibility_violation(
    path: str, scheme: str, url: str, browser: Browser, axe: str
) -> None:
    """axe-core has no serious finding in the light and the dark scheme, at the widths of a computer and of a phone."""
    await browser.set_color_scheme(scheme)
    for width in WIDTHS:
        await browser.resize(width)
        await browser.load(f"{url}{path}")
        assert await axekit.violations(browser, axe) == []


@pytest.mark.parametrize("path", PATHS)
async def test_tab_reaches_every_element_in_page_order_with_a_visible_focus(
    path: str, url: str, browser: Browser
) -> None:
    """These are links, fields, buttons and tables that scroll."""
    await browser.load(f"{url}{path}")
    await browser.evaluate(
        "window.all = [...document.querySelectorAll('a,button,input,textarea,[tabindex]')]; window.order = [];"
        "document.addEventListener('focusin', e => order.push([all.indexOf(e.target),"
        "getComputedStyle(e.target).outlineStyle])); 0"
    )
    count = int(await browser.evaluate("all.length"))
    for _ in range(count):
        for kind in ("keyDown", "keyUp"):
            await browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert await browser.evaluate("order") == [[place, "solid"] for place in range(count)]


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_has_its_content_without_javascript(path: str, url: str, browser: Browser) -> None:
    """The overview then reloads itself for updates, and no other page does."""
    await browser.load(f"{url}{path}")
    expression = "document.querySelector('main').innerText.length"
    whole = await browser.evaluate(expression)
    await browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        await browser.load(f"{url}{path}")
        document = await browser.call("DOM.getDocument")
        found = await browser.call("DOM.getOuterHTML", nodeId=document["root"]["nodeId"])
    finally:
        await browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert len(ParsedPage(found["outerHTML"]).text) > whole / 2
    assert ('http-equiv="refresh"' in found["outerHTML"]) == (path == "/")


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_is_small_and_its_first_paint_is_fast(path: str, url: str, browser: Browser) -> None:
    """The best of five loads counts, because the machine may be busy with other work."""
    paints = []
    for _ in range(5):
        await browser.load(f"{url}{path}")
        paints.append(float(await browser.wait_for(PAINTED)))
        size = int(await browser.evaluate("performance.getEntriesByType('navigation')[0].transferSize"))
    print(f"{path}: {size} bytes, first paint {min(paints):.0f} ms")  # noqa: T201 - figures for the documentation
    assert size <= LARGEST
    assert min(paints) <= FIRST_PAINT


async def test_a_change_is_shown_within_a_second_and_keeps_focus_and_typed_text(
    status_page: StatusPageHarness, url: str, browser: Browser
) -> None:
    """The best of three changes counts."""
    await browser.load(f"{url}/")
    await browser.wait_for("document.getElementById('live').textContent == 'live'")
    await browser.evaluate(
        "document.querySelectorAll('.card a')[7].focus(); document.getElementById('q').value = 'ab'; 0"
    )
    lower, took = status_page.world.lowers["lower-07"], []
    for _ in range(3):
        await asyncio.sleep(1)
        count = len(lower.upper_pods) + 1
        began = time.monotonic()
        put(lower.upper_pods, requesting(f"new-{count}", "team-0", lower.node))
        await browser.wait_for(f"document.querySelectorAll('.card')[7].innerText.includes('{count} pods')")
        took.append(time.monotonic() - began)
    print(f"on the screen after {min(took):.2f} s")  # noqa: T201 - a figure for the documentation
    assert min(took) <= ON_SCREEN
    assert await browser.evaluate("document.activeElement.textContent") == "lower-07"
    assert await browser.evaluate("document.getElementById('q').value") == "ab"


async def test_ten_viewers_cost_one_percent_of_a_core_at_most(status_page: StatusPageHarness) -> None:
    """During constant changes, the cost is that of checking the stamp and of one rendering every 0.9 seconds."""
    usage, lower = ResourceUsage(), status_page.world.lowers["lower-09"]
    source = status_page.source()
    page(source.view(usage))
    spent = []
    for number in range(10):
        put(lower.upper_pods, requesting(f"busy-{number}", "team-0", lower.node))
        began = time.process_time()
        for _ in range(5):
            source.stamp()
        page(source.view(usage))
        spent.append((time.process_time() - began) / 0.9)
    print(f"{100 * min(spent):.2f} % of a core")  # noqa: T201 - a figure for the documentation
    assert min(spent) <= SHARE


async def test_a_search_by_keyboard_leads_to_the_page_of_a_pod(url: str, browser: Browser) -> None:
    """Enter submits the form, and Enter follows the link."""
    await browser.load(f"{url}/")
    await browser.evaluate("document.getElementById('q').focus(); 0")
    await browser.call("Input.insertText", text="web-0321")
    await browser.navigate(entered(browser))
    assert await browser.evaluate("document.title.startsWith('Search')")
    await browser.evaluate("document.querySelector('td a').focus(); 0")
    await browser.navigate(entered(browser))
    assert await browser.evaluate("document.title.startsWith('Pod team-')")


async def entered(browser: Browser) -> None:
    """Press Enter."""
    for kind in ("keyDown", "keyUp"):
        await browser.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
        )


async def test_the_form_checks_a_topology_in_a_browser(url: str, browser: Browser, axe: str) -> None:
    """A browser sends the Origin of the page; the resulting plan fits a phone and is accessible."""
    await browser.load(f"{url}/topology")
    typed = (
        "document.getElementById('topology').value = 'apiVersion: tensile-kube.io/v1alpha1\\nkind: Topology\\n"
        "name: demo\\nlowers: []\\n'; document.querySelector('main button').click(); 0"
    )
    seen = await browser.navigate(browser.evaluate(typed))
    shown = await browser.evaluate("document.querySelector('main').innerText")
    assert "lower lower-19 removed" in shown
    assert "Plan: 0 to add, 0 to change, 1 to delete" in shown
    assert seen.faults == ()
    for width in WIDTHS:
        await browser.resize(width)
        assert await browser.evaluate("document.documentElement.scrollWidth") <= width
        assert await axekit.violations(browser, axe) == []
