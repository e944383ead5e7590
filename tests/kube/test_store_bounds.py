"""What a cache takes of what cannot be read, and how much it remembers of what went."""

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
def test_whatever_cannot_be_read_is_malformed(take: Callable[[Cache, bytes], object]) -> None:
    """No other error comes out of a cache, and nothing of the object gets into it."""

    def digest(raw: bytes) -> Transformed:
        return Transformed(raw, orjson.loads(raw)["spec"]["deep"])

    cache = Cache(digest)
    for raw in (b"{", b"5", b'{"metadata":{"name":"a","resourceVersion":"7"},"spec":5}'):
        with pytest.raises(Malformed):
            take(cache, raw)
    assert (len(cache), cache.version) in ((0, 0), (0, 7))


def test_the_last_words_of_what_went_have_a_bound_in_bytes() -> None:
    """So many objects, or fewer long ones; the oldest go."""
    cache = Cache(remembers=1_000)
    for number in range(40):
        big = thing(f"big-{number}", number + 1, data="x" * (1 << 20))
        cache.put(big)
        cache.remove(thing(f"big-{number}", number + 100, data="x" * (1 << 20)))
    kept = [number for number in range(40) if cache.last("default", f"big-{number}")]
    assert kept == list(range(40 - len(kept), 40))
    assert 10 <= len(kept) <= 16


def test_what_is_known_to_be_gone_has_a_bound_in_bytes() -> None:
    """Where what is kept is counted: the facts of what went are kept too."""
    cache = Cache(lambda raw: Transformed(b"", raw.decode()))
    cache.tally = CacheTotals()
    for number in range(60):
        cache.put(thing(f"big-{number}", number + 1, data="x" * 200_000))
        cache.remove(thing(f"big-{number}", number + 100, data="x" * 200_000))
    gone = [number for number in range(60) if cache.tombstone("default", f"big-{number}")]
    assert gone == list(range(60 - len(gone), 60))
    assert 1 <= len(gone) < 20
    assert (cache.tally.objects, cache.tally.content) == (0, 0)


def test_a_copy_counts_the_bytes_of_the_tombstones_it_was_made_with() -> None:
    """Else it would keep up to twice as many: those of the original and as many of its own."""
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
