"""Lists, page after page: how large a page is, and when a list goes on without end."""

import asyncio

import orjson
import pytest

from tensile.kube.limits import EMPTY_PAGES, PAGES, CacheLimit, TooLarge
from tensile.kube.requests import FetchPage, Pager, TimeShare
from tensile.kube.responses import Page, RequestInfo
from tensile.kube.store import CacheTotals


class Collection:
    """A collection of numbers, of which no more than `fits` go into a page; `sizes` are those asked for."""

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
    """Make a list that reads numbers."""
    share, doing = TimeShare(0.0, 1, lambda: 0.0, asyncio.sleep), RequestInfo("a", "list", "Pod")
    known, most = tally or CacheTotals(), allowance or CacheLimit()
    return Pager(doing, ask, lambda raw: orjson.loads(raw)["number"], share, tally=known, allowance=most)


async def test_everything_comes_in_order() -> None:
    """Over several pages."""
    collection = Collection(1_200)
    listing = await pager(collection).all()
    assert (listing.items, listing.version) == (list(range(1_200)), "7")
    assert collection.sizes == [500, 500, 500]


@pytest.mark.parametrize(("fits", "sizes"), [(499, {500, 50}), (20, {500, 50, 2}), (2, {500, 50, 2})])
async def test_a_page_that_is_too_long_is_asked_for_with_fewer_objects(fits: int, sizes: set[int]) -> None:
    """And so is the rest of that list; only the smallest page may not be too long."""
    collection = Collection(600, fits)
    listing = await pager(collection).all()
    assert listing.items == list(range(600))
    assert set(collection.sizes) == sizes
    assert collection.sizes == sorted(collection.sizes, reverse=True)
    assert {size for size, spare in zip(collection.sizes, collection.spared, strict=True) if not spare} <= {PAGES[-1]}


async def test_one_that_never_fits_is_too_large() -> None:
    """Two objects that are longer than a page."""
    with pytest.raises(TooLarge, match="too long"):
        await pager(Collection(600, 1)).all()


async def test_the_same_token_again_is_no_progress() -> None:
    """The server would be asked for that page without end."""

    async def ask(more: dict[str, str], *, spare: bool) -> Page:
        return Page([b'{"number":1}'], "7", "again")

    with pytest.raises(TooLarge, match="endless"):
        await pager(ask).all()


async def test_pages_without_objects_end() -> None:
    """Each has another token; a few of them are let pass."""
    asked = 0

    async def ask(more: dict[str, str], *, spare: bool) -> Page:
        nonlocal asked
        asked += 1
        return Page([], "7", f"token-{asked}")

    with pytest.raises(TooLarge, match="endless"):
        await pager(ask).all()
    assert asked == EMPTY_PAGES + 1


async def test_a_few_empty_pages_are_no_fault() -> None:
    """Where objects follow."""

    async def ask(more: dict[str, str], *, spare: bool) -> Page:
        number = int(more.get("continue", "0"))
        return Page([b'{"number":%d}' % number] if number == 5 else [], "7", str(number + 1) if number < 6 else "")

    assert (await pager(ask).all()).items == [5]


async def test_too_many_objects_are_too_large() -> None:
    """However small they are."""
    with pytest.raises(TooLarge, match="more than 1,000 objects"):
        await pager(Collection(2_000), allowance=CacheLimit(objects=1_000)).all()
    assert len((await pager(Collection(1_000), allowance=CacheLimit(objects=1_000)).all()).items) == 1_000


async def test_objects_that_are_too_long_together_are_too_large() -> None:
    """Where nothing but the list itself keeps them."""
    with pytest.raises(TooLarge, match="objects of more than 1 KiB"):
        await pager(Collection(2_000), allowance=CacheLimit(content=1 << 10)).all()


async def test_what_is_kept_of_the_cluster_bounds_a_list_too() -> None:
    """Other lists may have filled what it may have."""
    tally = CacheTotals()
    tally.add(99, 0)
    allowance = CacheLimit(objects=100)
    assert len((await pager(Collection(100), tally, allowance).all()).items) == 100
    tally.add(50, 0)
    with pytest.raises(TooLarge, match="100 objects in total"):
        await pager(Collection(100), tally, allowance).all()
