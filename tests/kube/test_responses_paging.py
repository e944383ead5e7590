"""Tests of paged lists: the size of a page, and lists that do not end."""

import asyncio

import orjson
import pytest

from tensile.kube.limits import EMPTY_PAGES, PAGES, CacheLimit, TooLarge
from tensile.kube.requests import FetchPage, Pager, TimeShare
from tensile.kube.responses import Page, RequestInfo
from tensile.kube.store import CacheTotals


class Collection:
    """A collection of numbers, of which at most `fits` fit into a page; `sizes` are the requested page sizes."""

    def __init__(self, count: int, fits: int = 10_000) -> None:
        self.objects = [orjson.dumps({"number": number}) for number in range(count)]
        self.fits = fits
        self.sizes: list[int] = []
        self.spared: list[bool] = []

    async def __call__(self, more: dict[str, str], *, spare: bool) -> Page:
        """Return a page."""
        size, start = int(more["limit"]), int(more.get("continue", "0"))
        self.sizes.append(size)
        self.spared.append(spare)
        if min(size, len(self.objects) - start) > self.fits:
            raise TooLarge("too long")
        end = start + size
        return Page(self.objects[start:end], "7", str(end) if end < len(self.objects) else "")


def pager(ask: FetchPage, tally: CacheTotals | None = None, allowance: CacheLimit | None = None) -> Pager:
    """Make a pager that reads numbers."""
    share, doing = TimeShare(0.0, 1, lambda: 0.0, asyncio.sleep), RequestInfo("a", "list", "Pod")
    known, most = tally or CacheTotals(), allowance or CacheLimit()
    return Pager(doing, ask, lambda raw: orjson.loads(raw)["number"], share, tally=known, allowance=most)


async def test_a_list_of_several_pages_is_returned_in_order() -> None:
    """Each request has the largest page size."""
    collection = Collection(1_200)
    listing = await pager(collection).all()
    assert (listing.items, listing.version) == (list(range(1_200)), "7")
    assert collection.sizes == [500, 500, 500]


@pytest.mark.parametrize(("fits", "sizes"), [(499, {500, 50}), (20, {500, 50, 2}), (2, {500, 50, 2})])
async def test_a_page_that_is_too_large_is_requested_with_fewer_objects(fits: int, sizes: set[int]) -> None:
    """The smaller size is also used for the rest of the list; only the smallest page must not be too large."""
    collection = Collection(600, fits)
    listing = await pager(collection).all()
    assert listing.items == list(range(600))
    assert set(collection.sizes) == sizes
    assert collection.sizes == sorted(collection.sizes, reverse=True)
    assert {size for size, spare in zip(collection.sizes, collection.spared, strict=True) if not spare} <= {PAGES[-1]}


async def test_a_list_raises_too_large_if_the_smallest_page_does_not_fit() -> None:
    """Here even two objects exceed the size of a page."""
    with pytest.raises(TooLarge, match="too long"):
        await pager(Collection(600, 1)).all()


async def test_a_repeated_continue_token_raises_too_large() -> None:
    """Otherwise the same page would be requested indefinitely."""

    async def ask(more: dict[str, str], *, spare: bool) -> Page:
        return Page([b'{"number":1}'], "7", "again")

    with pytest.raises(TooLarge, match="endless"):
        await pager(ask).all()


async def test_too_many_empty_pages_raise_too_large() -> None:
    """Each page has another continue token, and only a few empty pages are accepted."""
    page_count = 0

    async def ask(more: dict[str, str], *, spare: bool) -> Page:
        nonlocal page_count
        page_count += 1
        return Page([], "7", f"token-{page_count}")

    with pytest.raises(TooLarge, match="endless"):
        await pager(ask).all()
    assert page_count == EMPTY_PAGES + 1


async def test_a_few_empty_pages_are_accepted() -> None:
    """Objects may follow after them."""

    async def ask(more: dict[str, str], *, spare: bool) -> Page:
        number = int(more.get("continue", "0"))
        return Page([b'{"number":%d}' % number] if number == 5 else [], "7", str(number + 1) if number < 6 else "")

    assert (await pager(ask).all()).items == [5]


async def test_a_list_with_too_many_objects_raises_too_large() -> None:
    """The size of the objects does not matter, and a list of exactly the limit is accepted."""
    with pytest.raises(TooLarge, match="more than 1,000 objects"):
        await pager(Collection(2_000), allowance=CacheLimit(objects=1_000)).all()
    assert len((await pager(Collection(1_000), allowance=CacheLimit(objects=1_000)).all()).items) == 1_000


async def test_a_list_with_too_much_content_raises_too_large() -> None:
    """This applies also if no cache keeps the objects."""
    with pytest.raises(TooLarge, match="objects of more than 1 KiB"):
        await pager(Collection(2_000), allowance=CacheLimit(content=1 << 10)).all()


async def test_cached_objects_of_the_cluster_count_for_the_limit_of_a_list() -> None:
    """Other lists may have used up the limit of the cluster already."""
    tally = CacheTotals()
    tally.add(99, 0)
    allowance = CacheLimit(objects=100)
    assert len((await pager(Collection(100), tally, allowance).all()).items) == 100
    tally.add(50, 0)
    with pytest.raises(TooLarge, match="100 objects in total"):
        await pager(Collection(100), tally, allowance).all()
