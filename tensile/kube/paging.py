"""Lists a collection page after page: while one is read, the server works on the next.

A page that turns out too long is asked for again with fewer objects, so that a cluster with large ones can be listed in
the same memory. What would go on without end is TooLarge: pages that repeat, or hold nothing, and too many objects.
"""

import asyncio
from typing import Any, Protocol

from tensile.cache import Entry, Tally
from tensile.cluster import Listing, Read
from tensile.errors import ClusterError
from tensile.kube.answers import Doing, Page, strange
from tensile.kube.bounds import EMPTY_PAGES, PAGES, Allowance, TooLarge, mebibytes
from tensile.kube.share import Share


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
