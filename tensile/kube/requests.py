"""Lists a collection page after page: while one is read, the server works on the next.

A page that turns out too long is asked for again with fewer objects, so that a cluster with large ones can be listed in
the same memory. What would go on without end is TooLarge: pages that repeat, or hold nothing, and too many objects.

How an object or a collection is asked for: the path and the query of a request, and its name in an error.

Which failed reads are repeated within one call, and when: those that are known to pass in a moment.

Writes are sent once. A decision that is taken anew sees whether a write happened whose answer was lost.

How much of the event loop's time the objects of one cluster get.

All clusters are served by one thread, and reading objects is what a cluster can ask for without end: by lists and by
watches, several at a time. So its part of each turn of the loop has a length, and its part of all time a bound. What is
beyond waits in the connection, where the cluster itself has to keep it.
"""

import asyncio
import re
from time import perf_counter, thread_time
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import tenacity

from tensile.errors import ClusterError, Denied, Throttled
from tensile.kube.cluster import Listing, Read, Selection
from tensile.kube.limits import EMPTY_PAGES, PAGES, SLICE, Allowance, Bucket, TooLarge, mebibytes
from tensile.kube.responses import Doing, Page, strange
from tensile.kube.store import Entry, Tally
from tensile.kube.transport import Clock, Dropped, Sleep
from tensile.objects import Ref

_PLAIN = re.compile(r"[A-Za-z0-9._:-]*").fullmatch


def shown(ref: Ref) -> str:
    """Name an object for an error."""
    return f"{ref.kind.name} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind.name} {ref.name}"


def path_of(doing: Doing, ref: Ref, subresource: str = "") -> str:
    """Return the URL path of an object.

    References inside a pod's spec are not checked by Kubernetes, so a name may hold what would lead to another path.
    """
    if _PLAIN(ref.name) and _PLAIN(ref.namespace) and ref.name not in (".", "..") and ref.namespace not in (".", ".."):
        return ref.path(subresource)
    for part in (ref.namespace, ref.name):
        if part in (".", "..") or "/" in part or "%" in part:
            raise Denied(
                f"{part!r} is no name in Kubernetes: correct what refers to it", cluster=doing.cluster, doing=str(doing)
            )
    return quote(ref.path(subresource), safe="/:")


def query_of(selection: Selection) -> dict[str, str]:
    """Return a selection's query parameters."""
    asked = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {key: value for key, value in asked.items() if value}


def target_of(path: str, query: dict[str, str]) -> str:
    """Join path and query."""
    return f"{path}?{urlencode(query)}" if query else path


_TRIES = 3
_LONGEST_WAIT = 5.0
_PAUSE = 0.1


def retrying(sleep: Sleep) -> tenacity.AsyncRetrying:
    """Return what calls a read up to three times; `sleep` waits for seconds. The last error is raised as it is."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_passes_soon),
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=_wait,
        sleep=sleep,
        reraise=True,
    )


def _passes_soon(error: BaseException) -> bool:
    """Report whether a read may be repeated within the call."""
    return isinstance(error, Dropped) or (isinstance(error, Throttled) and error.retry_after <= _LONGEST_WAIT)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next try of a read."""
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after if isinstance(error, Throttled) else _PAUSE * state.attempt_number


class Share:
    """The time of one cluster: `part` of all, 0 for no bound, and so many seconds in a `burst`.

    Time is that of the thread, so that what a busy machine takes away counts for none. Reading it is a system call, so
    it is read once the wall clock, which is never behind it and costs a tenth, says that the part may be over.
    """

    def __init__(self, part: float, burst: int, clock: Clock, sleep: Sleep) -> None:
        self._bucket = Bucket(part, burst, clock())
        self._is_bounded = bool(part)
        self._clock = clock
        self._sleep = sleep
        self._began = 0.0
        self._began_by_wall = 0.0
        self._is_spent = False
        self._next = asyncio.Event()

    async def begin(self) -> None:
        """Wait for a turn of the loop in which there is time left; what follows, up to `rest`, is measured."""
        while self._is_spent:
            await self._next.wait()
        self._began, self._began_by_wall = thread_time(), perf_counter()

    @property
    def is_long(self) -> bool:
        """Whether what began has taken its part of a turn."""
        return self._is_bounded and perf_counter() - self._began_by_wall > SLICE and thread_time() - self._began > SLICE

    def _over(self) -> float:
        """Count what has passed since the beginning, and return for how long to wait before there may be more."""
        spent = thread_time() - self._began
        if spent > SLICE and self._is_bounded:
            self._is_spent = True
            self._next.clear()
            asyncio.get_running_loop().call_soon(self._renew)
        return self._bucket.take(self._clock(), spent)

    async def rest(self) -> None:
        """End what began, and return when there may be more."""
        wait = self._over()
        if wait:
            await self._sleep(wait)

    def _renew(self) -> None:
        self._is_spent = False
        self._next.set()


class Ask(Protocol):
    """Asks for a page by its query; `spare`: where it is too long, fewer objects will be asked for."""

    async def __call__(self, more: dict[str, str], *, spare: bool) -> Page:
        """Return the page; raises TooLarge."""
        ...


_UNDER_WAY = 0.001
"""Seconds in which a request leaves, before other work holds the event loop up."""


class Pager:
    """One list of one collection, by `ask` and `read`; used once. `doing` is for errors.

    Neither the list nor what is kept of the cluster, which `tally` counts, may be more than `allowance` says.
    """

    def __init__(self, doing: Doing, ask: Ask, read: Read, share: Share, *, tally: Tally, allowance: Allowance) -> None:
        self._doing = doing
        self._ask = ask
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
            following = asyncio.ensure_future(self._page(page.more))
            try:
                await asyncio.sleep(_UNDER_WAY)
                await self.take(page)
                page = await following
            finally:
                following.cancel()
        await self.take(page)
        return Listing(self._items, page.version)

    async def take(self, page: Page) -> Listing:
        """Read the objects of a page, which keeps none of them; returns what there is so far."""
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
        """Ask for a page, with fewer objects as long as it is too long; raises TooLarge for one without end."""
        more = {"continue": token} if token else {}
        while True:
            size, is_last = self._size, self._size == PAGES[-1]
            try:
                page = await self._ask({"limit": str(size), **more}, spare=not is_last)
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
            raise self._too_large("pages that never end")
        if len(self._items) + len(page.items) > self._allowance.objects:
            raise self._too_large(f"more than {self._allowance.objects:,} objects")

    def _add(self, item: bytes) -> None:
        """Read one object; whoever makes an entry of it counts what that takes."""
        try:
            found = self._read(item)
        except ClusterError:
            raise
        except Exception as error:
            raise strange(self._doing, f"{type(error).__name__}: {error}") from error
        if found is not None:
            self._items.append(found)
        if not isinstance(found, Entry):
            self._content += len(item)
        if self._content > self._allowance.content:
            raise self._too_large(f"objects of more than {mebibytes(self._allowance.content)}")
        self._allowance.check(self._tally, listing=True)

    def _too_large(self, what: str) -> TooLarge:
        return TooLarge(what, cluster=self._doing.cluster, doing=str(self._doing))
