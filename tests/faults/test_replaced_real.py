"""The webhook while its replicas are replaced, in short: `python -m bench.faults.replaced` does it with 500 pods."""

from argparse import Namespace

import pytest

from bench.faults.replaced import NOTICED, OVER, Creation, judged, scenario
from tensile.sandbox.sandbox import Sandbox


@pytest.mark.real
async def test_no_creation_fails_and_none_goes_by_while_a_replica_is_replaced(fragile: Sandbox) -> None:
    """A new one is ready and an old one ends, while pods are created; all that opted in are prepared.

    Where the machine does so much else that no answer comes within three seconds, the apiserver goes on without one.
    """
    found = await scenario(fragile, Namespace(pods=150, rate=10.0, pause=1.0))
    assert (found["created"], found["opted_in"], found["unprepared_in_time"]) == (150, 75, 0), found["broken"]
    assert found["replaced"] >= 1


FINE = Creation(10.0, 10.1, opted=True, prepared=True)
PLAIN = Creation(10.0, 10.1, opted=False, prepared=False)
MISSED = Creation(10.0, 10.1, opted=True, prepared=False)
FAILED = Creation(10.0, 10.1, opted=True, prepared=False, failure="no")


@pytest.mark.parametrize(
    ("creations", "killed", "counts", "broken"),
    [
        ([FINE, PLAIN], [], (2, 0, 0, 0), []),
        ([FINE, FAILED], [], (1, 1, 0, 0), ["1 creations failed: no"]),
        ([FINE, MISSED], [], (2, 0, 1, 0), ["1 pods went by unprepared although nobody had been killed"]),
        ([FINE, MISSED], [10.05], (2, 0, 0, 1), []),
        ([FINE, MISSED], [10.0 - NOTICED - OVER + 0.01], (2, 0, 0, 1), []),
        ([FINE, MISSED], [10.0 - NOTICED - OVER - 0.01], (2, 0, 1, 0), ["1 pods went by"]),
        ([FINE, MISSED], [10.2], (2, 0, 1, 0), ["1 pods went by"]),
        ([FINE, PLAIN._replace(prepared=True)], [], (2, 0, 0, 0), ["1 pods were prepared that had not opted in"]),
    ],
    ids=["well", "failed", "missed", "killed", "just killed", "long killed", "killed later", "not asked for"],
)
def test_what_breaks_is_told(
    creations: list[Creation], killed: list[float], counts: tuple[int, ...], broken: list[str]
) -> None:
    """A pod that goes by unprepared counts, unless its replica was killed when it was asked about."""
    found = judged(creations, killed)
    names = ("created", "failed", "unprepared", "unprepared_after_a_kill")
    assert tuple(found[name] for name in names) == counts
    assert len(found["broken"]) == len(broken)
    assert all(words.startswith(begin) for words, begin in zip(found["broken"], broken, strict=True))


def test_what_the_apiserver_did_not_wait_for_is_told_apart() -> None:
    """It breaks the trial like the rest, but tells of a machine that is too slow."""
    late = MISSED._replace(end=MISSED.begin + 3.0)
    found = judged([FINE, MISSED, late, late], [])
    assert (found["unprepared"], found["unprepared_in_time"]) == (3, 1)
    assert found["broken"] == ["3 pods went by unprepared although nobody had been killed"]
