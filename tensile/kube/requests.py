"""The parts of a request: paths, retries of reads, paged lists, and a cluster's share of the event loop's time.

A list reads one page while the server prepares the next. A page that is too long is requested again with fewer objects,
so that large objects need no more memory. A list without end is TooLarge: pages that repeat, empty pages, too many
objects. Only reads are retried within a call, for failures that are known to pass. Writes are sent once: the next
decision sees whether a write with a lost response happened.

One thread serves all clusters, and a cluster can cause endless decoding by lists and watches. So its share of each turn
of the loop and of the total time is limited. The rest waits in the connection, where the cluster has to buffer it.
"""

import asyncio
import re
from time import perf_counter, thread_time
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import tenacity

from tensile.errors import ClusterError, Denied, Throttled
from tensile.kube.cluster import Listing, Read, Selection
from tensile.kube.limits import EMPTY_PAGES, PAGES, SLICE, CacheLimit, TokenBucket, TooLarge, mebibytes
from tensile.kube.responses import Page, RequestInfo, unexpected_response
from tensile.kube.store import CacheTotals, Entry
from tensile.kube.transport import Clock, ConnectionDropped, Sleep
from tensile.objects import Ref

_PLAIN = re.compile(r"[A-Za-z0-9._:-]*").fullmatch

_TRIES = 3
_LONGEST_WAIT = 5.0
_PAUSE = 0.1
_SEND_SECONDS = 0.001
"""Seconds in which a request is sent, before other work occupies the event loop."""
_AMPLE = 0.75
"""The part of a burst beyond which time is measured by the wall clock."""


def shown(ref: Ref) -> str:
    """Format an object for an error."""
    return f"{ref.kind.name} {ref.namespaced_name}"


def path_of(doing: RequestInfo, ref: Ref, subresource: str = "") -> str:
    """Return the URL path of an object. Raises Denied for an invalid name.

    Kubernetes does not check the references inside a pod's spec, so a name may contain what would lead to another path.
    """
    if _PLAIN(ref.name) and _PLAIN(ref.namespace) and ref.name not in (".", "..") and ref.namespace not in (".", ".."):
        return ref.path(subresource)
    for part in (ref.namespace, ref.name):
        if part in (".", "..") or "/" in part or "%" in part:
            raise Denied(
                f"{part!r} is not a valid name in Kubernetes: correct the reference to it",
                cluster=doing.cluster,
                doing=str(doing),
            )
    return quote(ref.path(subresource), safe="/:")


def query_of(selection: Selection) -> dict[str, str]:
    """Return a selection's query parameters."""
    parameters = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {key: value for key, value in parameters.items() if value}


def target_of(path: str, query: dict[str, str]) -> str:
    """Join path and query."""
    return f"{path}?{urlencode(query)}" if query else path


def retrying(sleep: Sleep) -> tenacity.AsyncRetrying:
    """Return a retry loop that calls a read up to three times. `sleep` waits for seconds. The last error is raised."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_is_transient),
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=_wait,
        sleep=sleep,
        reraise=True,
    )


def _is_transient(error: BaseException) -> bool:
    """Report whether a read may be retried within the call."""
    return isinstance(error, ConnectionDropped) or (isinstance(error, Throttled) and error.retry_after <= _LONGEST_WAIT)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next try of a read."""
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after if isinstance(error, Throttled) else _PAUSE * state.attempt_number


class TimeShare:
    """One cluster's share of time: `part` of all time, 0 for no limit, with a `burst` in seconds.

    It measures thread time, so that time lost to other processes does not count. Reading that is a system call, and
    watches would make two for each event. So while most of the burst is left, the wall clock is used, which is never
    behind.
    """

    def __init__(self, part: float, burst: int, clock: Clock, sleep: Sleep) -> None:
        self._bucket = TokenBucket(part, burst, clock())
        self._is_bounded = bool(part)
        self._wall_clock_above = _AMPLE * burst
        self._clock = clock
        self._sleep = sleep
        self._stopwatch: Clock = perf_counter
        self._began = 0.0
        self._began_by_wall = 0.0
        self._is_spent = False
        self._next = asyncio.Event()

    async def begin(self) -> None:
        """Wait for a turn of the loop with time left, then measure until `rest`."""
        if not self._is_bounded:
            return
        while self._is_spent:
            await self._next.wait()
        self._stopwatch = perf_counter if self._bucket.left(self._clock()) > self._wall_clock_above else thread_time
        self._began, self._began_by_wall = self._stopwatch(), perf_counter()

    @property
    def is_long(self) -> bool:
        """Whether the work since `begin` has used its part of a turn."""
        is_long_by_wall = self._is_bounded and perf_counter() - self._began_by_wall > SLICE
        return is_long_by_wall and self._stopwatch() - self._began > SLICE

    def _count_time(self) -> float:
        """Count the time since `begin`. Return the seconds to wait before the next work."""
        spent = self._stopwatch() - self._began
        if spent > SLICE:
            self._is_spent = True
            self._next.clear()
            asyncio.get_running_loop().call_soon(self._renew)
        return self._bucket.take(self._clock(), spent)

    async def rest(self) -> None:
        """End the measurement, and wait until more work is allowed."""
        wait = self._count_time() if self._is_bounded else 0.0
        if wait:
            await self._sleep(wait)

    def _renew(self) -> None:
        self._is_spent = False
        self._next.set()


class FetchPage(Protocol):
    """Requests a page by its query. `spare`: if it is too long, fewer objects will be requested."""

    async def __call__(self, more: dict[str, str], *, spare: bool) -> Page:
        """Return the page. Raises TooLarge."""
        ...


class Pager:
    """One list of one collection, by `fetch` and `read`. Used once. `doing` is for errors.

    `allowance` limits both the list and what is cached of the cluster, which `tally` counts.
    """

    def __init__(
        self,
        doing: RequestInfo,
        fetch: FetchPage,
        read: Read,
        share: TimeShare,
        *,
        tally: CacheTotals,
        allowance: CacheLimit,
    ) -> None:
        self._doing = doing
        self._fetch = fetch
        self._read = read
        self._share = share
        self._tally = tally
        self._allowance = allowance
        self._items: list[Any] = []
        self._sizes = iter(PAGES)
        self._size = next(self._sizes)
        self._empty = 0
        self._content = 0

    async def all(self) -> Listing:
        """Return what `read` makes of every object, and the collection's version."""
        page = await self._page("")
        while page.more:
            next_page = asyncio.ensure_future(self._page(page.more))
            try:
                await asyncio.sleep(_SEND_SECONDS)
                await self.take(page)
                page = await next_page
            finally:
                next_page.cancel()
        await self.take(page)
        return Listing(self._items, page.version)

    async def take(self, page: Page) -> Listing:
        """Read the objects of a page and empty it. Return the list so far."""
        page.items.reverse()
        await self._share.begin()
        while page.items:
            self._add(page.items.pop())
            if self._share.is_long:
                await self._share.rest()
                await self._share.begin()
        await self._share.rest()
        return Listing(self._items, page.version)

    async def _page(self, token: str) -> Page:
        """Request a page, with fewer objects while it is too long. Raises TooLarge for a list without end."""
        more = {"continue": token} if token else {}
        while True:
            size, is_last = self._size, self._size == PAGES[-1]
            try:
                page = await self._fetch({"limit": str(size), **more}, spare=not is_last)
            except TooLarge:
                if is_last:
                    raise
                self._size = next(self._sizes)
                continue
            self._check(page, token)
            return page

    def _check(self, page: Page, token: str) -> None:
        self._empty = 0 if page.items else self._empty + 1
        if page.more and (page.more == token or self._empty > EMPTY_PAGES):
            raise self._too_large("an endless list of pages")
        if len(self._items) + len(page.items) > self._allowance.objects:
            raise self._too_large(f"more than {self._allowance.objects:,} objects")

    def _add(self, item: bytes) -> None:
        """Read one object. Entries are counted where they are made."""
        try:
            found = self._read(item)
        except ClusterError:
            raise
        except Exception as error:
            raise unexpected_response(self._doing, f"{type(error).__name__}: {error}") from error
        if found is not None:
            self._items.append(found)
        if not isinstance(found, Entry):
            self._content += len(item)
        if self._content > self._allowance.content:
            raise self._too_large(f"objects of more than {mebibytes(self._allowance.content)}")
        self._allowance.check(self._tally, listing=True)

    def _too_large(self, what: str) -> TooLarge:
        return TooLarge(what, cluster=self._doing.cluster, doing=str(self._doing))
