"""Headless Chromium, driven by its DevTools protocol, to see what a page logs and requests, and how wide it is."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import aiohttp

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
LIMIT = 60.0
_FAULTS = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
_GRAVE = {"error", "warning", "assert"}


def program() -> str:
    """Return the path of the browser, "" if there is none."""
    return next((path for name in PROGRAMS if (path := which(name))), "")


class PageActivity(NamedTuple):
    """What happened since the last load: faults in the console, and the addresses that were requested."""

    faults: tuple[str, ...]
    requests: tuple[str, ...]


class Browser:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []

    async def open(self) -> None:
        """Open the page, and enable its events."""
        target = await self.call("Target.createTarget", url="about:blank")
        found = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": found["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result; keep the events that arrive before it."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters, **self._session})
        while True:
            message = await self._message()
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                found: dict[str, Any] = message["result"]
                return found

    async def _message(self) -> dict[str, Any]:
        async with asyncio.timeout(LIMIT):
            message: dict[str, Any] = await self._socket.receive_json()
        if "method" in message:
            self._events.append(message)
        return message

    async def load(self, url: str) -> PageActivity:
        """Load a page, and return what happened until it was loaded."""
        return await self.navigate(self.call("Page.navigate", url=url))

    async def navigate(self, act: Awaitable[object]) -> PageActivity:
        """Await an action that loads a page, such as a click, and return what happened until the page was loaded."""
        self._events.clear()
        await act
        while not any(one["method"] == "Page.loadEventFired" for one in self._events):
            await self._message()
        return self.activity()

    def activity(self) -> PageActivity:
        """Return what happened since the last load began."""
        faults = (str(one["params"]) for one in self._events if one["method"] in _FAULTS and _is_grave(one))
        sent = (one for one in self._events if one["method"] == "Network.requestWillBeSent")
        return PageActivity(tuple(faults), tuple(str(one["params"]["request"]["url"]) for one in sent))

    async def resize(self, width: int) -> None:
        """Set the width of the page, in pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )

    async def set_color_scheme(self, scheme: str) -> None:
        """Set the preferred color scheme, light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; of a promise, the value to which it resolves."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, f"{expression}: {found['exceptionDetails']}"
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        look = f"const look = () => {{ const it = {expression}; it ? done(it) : requestAnimationFrame(look) }}"
        return await self.evaluate(f"new Promise(done => {{ {look}; look() }})")


def _is_grave(event: dict[str, Any]) -> bool:
    """Report whether an event is an error or a warning, and not only information."""
    params = event["params"]
    return params.get("type", params.get("entry", {}).get("level", "error")) in _GRAVE


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Browser]:
    """Yield a browser with a new profile."""
    process = await asyncio.create_subprocess_exec(
        program(), *FLAGS, f"--user-data-dir={profile}", stderr=asyncio.subprocess.PIPE
    )
    try:
        address = await _address(process)
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            browser = Browser(socket)
            await browser.open()
            yield browser
            await socket.send_json({"id": 0, "method": "Browser.close"})
            await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _address(process: asyncio.subprocess.Process) -> str:
    """Return the address that the browser prints when it is ready."""
    assert process.stderr is not None
    output = b""
    async with asyncio.timeout(LIMIT):
        async for line in process.stderr:
            output += line
            _, found, address = line.decode().partition("DevTools listening on ")
            if found:
                return address.strip()
    raise AssertionError(f"the browser ended before it was ready: {output.decode()}")
