"""Tests of invalid objects in a cache, and of the limits for data of deleted objects."""

from collections.abc import Callable

import orjson
import pytest

from tensile.errors import Malformed
from tensile.kube.store import Cache, CacheTotals, Transformed


def thing(name: str, version: int, **more: object) -> bytes:
    """Make an object in namespace `default`."""
    meta = {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return orjson.dumps({"metadata": meta, **more})


@pytest.mark.parametrize("take", [Cache.put, Cache.apply_response, Cache.add_unselected, Cache.remove, Cache.read])
def test_an_object_that_cannot_be_read_raises_malformed(take: Callable[[Cache, bytes], object]) -> None:
    """The cache raises no other error and stores nothing of the object."""

    def digest(raw: bytes) -> Transformed:
        return Transformed(raw, orjson.loads(raw)["spec"]["deep"])

    cache = Cache(digest)
    for raw in (b"{", b"5", b'{"metadata":{"name":"a","resourceVersion":"7"},"spec":5}'):
        with pytest.raises(Malformed):
            take(cache, raw)
    assert (len(cache), cache.version) in ((0, 0), (0, 7))


def test_the_last_states_of_deleted_objects_are_limited_in_bytes() -> None:
    """Fewer objects are kept if they are large, and the oldest are removed."""
    cache = Cache(remembers=1_000)
    for number in range(40):
        big = thing(f"big-{number}", number + 1, data="x" * (1 << 20))
        cache.put(big)
        cache.remove(thing(f"big-{number}", number + 100, data="x" * (1 << 20)))
    kept = [number for number in range(40) if cache.last("default", f"big-{number}")]
    assert kept == list(range(40 - len(kept), 40))
    assert 10 <= len(kept) <= 16


def test_tombstones_are_limited_in_bytes_if_the_cache_is_counted() -> None:
    """They keep the facts of deleted objects, and do not count for the total of the cluster."""
    cache = Cache(lambda raw: Transformed(b"", raw.decode()))
    cache.tally = CacheTotals()
    for number in range(60):
        cache.put(thing(f"big-{number}", number + 1, data="x" * 200_000))
        cache.remove(thing(f"big-{number}", number + 100, data="x" * 200_000))
    gone = [number for number in range(60) if cache.tombstone("default", f"big-{number}")]
    assert gone == list(range(60 - len(gone), 60))
    assert 1 <= len(gone) < 20
    assert (cache.tally.objects, cache.tally.content) == (0, 0)


def test_a_copy_of_a_cache_counts_the_bytes_of_its_inherited_tombstones() -> None:
    """Otherwise it would keep up to twice as many bytes."""
    cache = Cache(lambda raw: Transformed(b"", raw.decode()))
    cache.tally = CacheTotals()
    for number in range(60):
        cache.put(thing(f"big-{number}", number + 1, data="x" * 200_000))
        cache.remove(thing(f"big-{number}", number + 100, data="x" * 200_000))
    copy = cache.copy()
    copy.tally = CacheTotals()
    for number in range(60, 65):
        copy.put(thing(f"big-{number}", number + 1000, data="x" * 200_000))
        copy.remove(thing(f"big-{number}", number + 1100, data="x" * 200_000))

    def known(of: Cache) -> list[int]:
        return [number for number in range(65) if of.tombstone("default", f"big-{number}")]

    assert known(copy) == [number + 5 for number in known(cache)]
