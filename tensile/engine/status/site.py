"""Serves the status page: its pages, its events, and the form in which a topology is checked.

Any program on the machine may call the port, so the cost is bounded. The overview is rendered at most about once a
second for all viewers together, only while the page is open, and only if something that it shows has changed. Other
pages are rendered one at a time, and together take at most a tenth of the time. Few requests may wait for that.

A topology that is checked is parsed and compared in a thread, since it may take seconds. Nothing of it is opened,
stored or activated.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

import orjson
from aiohttp import web

from tensile.engine.lower_transitions import plan_transition
from tensile.engine.status.details import (
    PageOfPods,
    TopologyCheck,
    are_listed,
    effects,
    found_pod,
    lower_page,
    missing_page,
    pod_page,
    search_page,
    topology_page,
)
from tensile.engine.status.html import HEADERS
from tensile.engine.status.page import PageView, ResourceUsage, content, page
from tensile.errors import TensileError
from tensile.kube.net import cancel_and_wait, supervised
from tensile.kubelet.pods.events import CarriedEvent
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, World
from tensile.topology import Topology, cautions, decode, parse
from tensile.topology.diff import Edit, edit

TIME_DIVISOR = 10
"""Generating responses takes at most this fraction of the time."""
MAX_TYPED_BYTES = 256 * 1024
"""Maximum bytes of a topology in the form."""
_MAX_ENCODING_FACTOR = 3
"""How many times as long a text can be in the encoding of forms."""
_CHECK_INTERVAL = 0.2
"""Seconds between two checks whether something has changed: an event is on the screen soon after it arrived."""
_RENDER_INTERVAL = 0.9
"""Seconds between two renderings, so that also during many changes an event is on the screen within a second."""
_COMMENT_INTERVAL = 15.0
"""Seconds after which a viewer without news is sent a comment, which shows whether it is still there."""
_UPLOAD_TIMEOUT = 10.0
"""Seconds in which a form must arrive."""
_MAX_PAGE_REQUESTS, _MAX_FORM_REQUESTS = 16, 4
"""Maximum of requests for pages, and of forms, that are in work or wait. A form that waits holds its text."""
_NOT_LOCAL = "the status page is only at http://localhost: forward the port, with kubectl port-forward for a pod\n"
_FOREIGN_FORM = (
    "a topology is only checked for the form of this page: open /topology in a browser, or run tensile validate\n"
)
_READ_METHODS = ("GET", "HEAD")
_FORM_CONTENT_TYPE = "application/x-www-form-urlencoded"


async def no_plan(_change: Edit) -> str:
    """Return no plan."""
    return ""


class PageSource(NamedTuple):
    """What the pages are made from.

    `view` returns what the overview shows, with the resource usage that it is given; `stamp` returns what differs after
    a change of that, and costs little. `world` returns None before the engine runs. `held` are the steps that the guard
    blocks. `events` returns the last events that a lower cluster has of an upper pod, by the lower's name, the upper
    namespace and the UID. `in_configmap`: topologies come from a ConfigMap, where paths are invalid. `plan` returns the
    plan of an edit as text, or why there is none.
    """

    view: Callable[[ResourceUsage], PageView]
    stamp: Callable[[], object]
    world: Callable[[], World | None] = lambda: None
    held: Callable[[], Mapping[Key, tuple[Step, ...]]] = dict
    events: Callable[[str, str, str], Iterable[CarriedEvent]] = lambda _lower, _namespace, _uid: ()
    in_configmap: bool = False
    plan: Callable[[Edit], Awaitable[str]] = no_plan


class _Viewers:
    """Sends the content of the overview to all viewers whenever it changes.

    `rendered` counts the renderings.
    """

    def __init__(self, source: PageSource, usage: ResourceUsage) -> None:
        self._source = source
        self._usage = usage
        self._changed = asyncio.Condition()
        self._event = b""
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    async def send(self, response: web.StreamResponse, is_gone: Callable[[], bool]) -> None:
        """Send the present content and each later one, until the viewer is gone."""
        self._count += 1
        if self._task is None:
            self._event = b""
            self._task = supervised("status page", self._watch)
        try:
            sent = b""
            while not is_gone():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_COMMENT_INTERVAL), self._changed:
                        await self._changed.wait_for(lambda: self._event not in (b"", sent))  # noqa: B023
                event = self._event  # a later one may come while this one is written
                with suppress(ConnectionError):
                    await response.write(event if event not in (b"", sent) else b":\n\n")
                sent = event
        finally:
            self._count -= 1
            if not self._count:
                await self.close()

    async def close(self) -> None:
        """Stop watching for changes."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait(task)
            self._usage.forget()

    async def _watch(self) -> None:
        """Render the content after each change of what it shows."""
        shown: object = None
        while True:
            now = self._source.stamp()
            if now == shown:
                await asyncio.sleep(_CHECK_INTERVAL)
                continue
            await compute_usage(self._source, self._usage)
            shown, started = self._source.stamp(), time.thread_time()
            event = b"data: " + orjson.dumps(content(self._source.view(self._usage))) + b"\n\n"
            if event != self._event:
                self._event = event
                async with self._changed:
                    self._changed.notify_all()
            await asyncio.sleep(max(_RENDER_INTERVAL, (TIME_DIVISOR - 1) * (time.thread_time() - started)))


async def compute_usage(source: PageSource, usage: ResourceUsage) -> float:
    """Compute the resource usage of one lower after the other: the pods of all together would block the event loop.

    Returns the seconds of processor time that it took.
    """
    world, duration = source.world(), 0.0
    for lower in tuple(world.lowers.values()) if world is not None else ():
        started = time.thread_time()
        usage.of(lower)
        duration += time.thread_time() - started
        await asyncio.sleep(0)
    return duration


class _RequestQueue:
    """Lets one request after the other run, and refuses more than `limit` at a time."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._next_start = 0.0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a place in the queue; raises HTTPServiceUnavailable if it is full."""
        if self._waiting >= self._limit:
            raise _unavailable()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def wait_for_turn(self, request: web.BaseRequest) -> AsyncIterator[None]:
        """Wait for a turn; raises HTTPServiceUnavailable if the client has disconnected by then."""
        async with self._lock:
            await asyncio.sleep(max(0.0, self._next_start - time.monotonic()))
            if _is_gone(request):
                raise _unavailable()
            yield

    def rest(self, seconds: float) -> None:
        """Let the next turn begin so late that work of so many seconds takes at most a tenth of the time."""
        self._next_start = time.monotonic() + (TIME_DIVISOR - 1) * seconds


class StatusSite:
    """Responds to requests for the status page."""

    def __init__(self, source: PageSource) -> None:
        self._source = source
        self._usage = ResourceUsage()
        self._viewers = _Viewers(source, self._usage)
        self._page_queue = _RequestQueue(_MAX_PAGE_REQUESTS)
        self._form_queue = _RequestQueue(_MAX_FORM_REQUESTS)
        self._pages: Mapping[str, Callable[[web.BaseRequest, list[str]], str]] = {
            "": self._overview,
            "lowers": self._lower,
            "pods": self._pod,
            "search": self._search,
            "topology": lambda _request, _rest: topology_page(),
        }

    async def close(self) -> None:
        """Stop watching for changes."""
        await self._viewers.close()

    def responds_to(self, request: web.BaseRequest) -> bool:
        """Report whether a path is one of the status page."""
        first, rest = _segments(request)
        return first == "events" if first not in self._pages else not rest or first in ("lowers", "pods")

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request for one of its paths."""
        if not is_local(request):
            return web.Response(status=HTTPStatus.FORBIDDEN, text=_NOT_LOCAL)
        first, rest = _segments(request)
        if request.method == "POST" and first == "topology":
            return await self._check_form(request)
        if request.method not in _READ_METHODS:
            return web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="only GET and HEAD are allowed\n")
        if first == "events":
            return await self._events(request)
        with self._page_queue.slot():
            rendered = await self._render(request, first, rest)
        if rendered:
            return _page(rendered)
        return _page(missing_page("There is nothing of this name: " + "/".join(rest)), HTTPStatus.NOT_FOUND)

    async def _render(self, request: web.BaseRequest, first: str, rest: list[str]) -> str:
        """Render a page in its turn, "" for one that does not exist."""
        async with self._page_queue.wait_for_turn(request):
            warm_duration = await compute_usage(self._source, self._usage)
            started = time.thread_time()
            try:
                return self._pages[first](request, rest)
            finally:
                self._page_queue.rest(warm_duration + time.thread_time() - started)

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        """Send the content of the overview whenever it changes, and a comment now and then."""
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        if request.method == "GET":
            await self._viewers.send(response, partial(_is_gone, request))
        return response

    def _overview(self, _request: web.BaseRequest, _rest: list[str]) -> str:
        return page(self._source.view(self._usage))

    def _lower(self, request: web.BaseRequest, rest: list[str]) -> str:
        world = self._source.world()
        if world is None or len(rest) != 1:
            return ""
        number = request.query.get("page", "1")
        selection = PageOfPods(request.query.get("namespace", ""), int(number) if _is_number(number) else 1)
        return lower_page(self._source.view(self._usage), world, rest[0], selection, self._source.held())

    def _pod(self, _request: web.BaseRequest, rest: list[str]) -> str:
        world = self._source.world()
        found = found_pod(world, *rest) if world is not None and len(rest) == len(("namespace", "name")) else None
        if world is None or found is None:
            return ""
        lower = found.lower.name if found.lower is not None else ""
        events = self._source.events(lower, found.entry.namespace, found.entry.uid)
        return pod_page(self._source.view(self._usage), world, found, events)

    def _search(self, request: web.BaseRequest, _rest: list[str]) -> str:
        return search_page(self._source.world(), request.query.get("q", ""))

    async def _check_form(self, request: web.BaseRequest) -> web.Response:
        """Check the topology of the form; only this page's own form is answered."""
        if not _is_own(request) or request.content_type != _FORM_CONTENT_TYPE:
            return web.Response(status=HTTPStatus.FORBIDDEN, text=_FOREIGN_FORM)
        if request.content_length is None or request.content_length > _MAX_ENCODING_FACTOR * MAX_TYPED_BYTES:
            return _page(topology_page("", _too_large()), HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        with self._form_queue.slot():
            try:
                async with asyncio.timeout(_UPLOAD_TIMEOUT):
                    body = await request.read()
            except TimeoutError:
                return web.Response(status=HTTPStatus.REQUEST_TIMEOUT, text="the form did not arrive in time\n")
            async with self._form_queue.wait_for_turn(request):
                typed, check = await check_topology(body, self._source)
        return _page(topology_page(typed, check))


async def check_topology(body: bytes, source: PageSource) -> tuple[str, TopologyCheck]:
    """Return the text in an encoded form, and what was found of it."""
    world = source.world()
    in_force = world.topology if world is not None else None
    typed, parsed = await asyncio.to_thread(_parsed, body, in_force, configmap_mode=source.in_configmap)
    if isinstance(parsed, TopologyCheck) or world is None:
        return typed, parsed if isinstance(parsed, TopologyCheck) else TopologyCheck(
            "", parsed.warnings, compared=False
        )
    waits: list[str] = []
    for spec in parsed.change.topology.lowers if are_listed(world) else ():
        waits += plan_transition(spec, parsed.change.topology, world).waits
        await asyncio.sleep(0)
    changes, refused, _, _ = parsed.change
    check = TopologyCheck("", parsed.warnings, changes, refused, tuple(waits), effects(parsed.change, world))
    return typed, check._replace(plan=await source.plan(parsed.change) if changes else "")


class _Compared(NamedTuple):
    """A valid topology compared with the one in force."""

    warnings: tuple[str, ...]
    change: Edit


def _parsed(body: bytes, in_force: Topology | None, *, configmap_mode: bool) -> tuple[str, TopologyCheck | _Compared]:
    """Decode, parse and compare: what takes long, and reads nothing of the engine but an immutable topology."""
    try:
        fields = parse_qs(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_ENCODING_FACTOR, errors="strict"
        )
        typed = fields.get("topology", [""])[0].replace("\r\n", "\n")
        data = typed.encode()
    except ValueError:
        return "", TopologyCheck("the form is not valid: it must be UTF-8 text in one field, topology")
    if len(data) > MAX_TYPED_BYTES:
        return "", _too_large()
    try:
        topology = parse(decode(data, name="topology"), name="topology", configmap_mode=configmap_mode)
    except TensileError as error:
        return typed, TopologyCheck(str(error))
    warnings = tuple(str(one) for one in cautions(typed, topology))
    return typed, _Compared(warnings, edit(in_force or topology, topology))


def _too_large() -> TopologyCheck:
    return TopologyCheck(f"the text is larger than {MAX_TYPED_BYTES // 1024} KiB: run tensile validate -f FILE")


def _page(rendered: str, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    body = rendered.encode(errors="backslashreplace")
    return web.Response(body=body, status=status, content_type="text/html", charset="utf-8", headers=HEADERS)


def _is_gone(request: web.BaseRequest) -> bool:
    """Report whether the client of a request has disconnected."""
    return request.transport is None or request.transport.is_closing()


def _unavailable() -> web.HTTPServiceUnavailable:
    return web.HTTPServiceUnavailable(headers={"Retry-After": "2"}, text="too many requests wait: try again soon\n")


def _segments(request: web.BaseRequest) -> tuple[str, list[str]]:
    """Return the first segment of a path, and the others, each decoded by itself: a name may contain a slash."""
    first, *rest = (unquote(part, errors="replace") for part in request.rel_url.raw_path.removeprefix("/").split("/"))
    return first, rest


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdecimal() and len(value) < TIME_DIVISOR


def is_local(request: web.BaseRequest) -> bool:
    """Report whether a request comes over a loopback address, and names one as its host.

    The page has the names of objects, and the port has no authentication: any program on this machine may read it, and
    any user who may forward a port of the engine's pod. Without the check of the name a website could read it too: its
    own name may resolve to the loopback address once the browser has its script.
    """
    local_address = request.transport.get_extra_info("sockname") if request.transport else None
    if local_address is None or not _is_loopback(str(local_address[0])):
        return False
    host = request.url.host or ""
    with suppress(ValueError):
        return _is_loopback(host)
    return host == "localhost"


def _is_own(request: web.BaseRequest) -> bool:
    """Report whether a form was sent by a page of this server; browsers send the origin, and no script can forge it."""
    return request.headers.get("Origin", "") == f"http://{request.headers.get('Host', '')}"


def _is_loopback(text: str) -> bool:
    """Report whether an address is a loopback one, of IPv4 in IPv6 too; raises ValueError for a name."""
    address = ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
