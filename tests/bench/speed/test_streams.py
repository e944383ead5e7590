"""Tests of the figures of streams, and of the check that content is transferred unchanged."""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.speed.first_byte import late, summary
from bench.speed.streams import STREAMS, Place, Pod, drawn, exec_out, judged

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import Sandbox

POD = Pod("one", "lower-a", 0)


class Saying:
    """A sandbox whose kubectl prints given words and exits with a given code."""

    def __init__(self, words: str, code: int = 0) -> None:
        self.script = f"import sys; sys.stdout.write({words!r}); sys.exit({code})"

    def kubectl_command(self, *_: str, cluster: str) -> list[str]:
        """Return a command that replaces kubectl."""
        assert cluster
        return [sys.executable, "-c", self.script]


def place(folder: Path, said: Saying | None = None, content: bytes = b"content") -> Place:
    """Return a place for a hundred megabytes."""
    sandbox = cast("Sandbox", said or Saying(""))
    return Place(sandbox, folder / "content", hashlib.sha256(content).hexdigest(), folder / "received", 100)


def run(stream: str, way: str, seconds: float) -> dict[str, Any]:
    """Return one measurement."""
    return {"pod": "one", "stream": stream, "way": way, "seconds": seconds}


def test_changed_content_raises_an_error(tmp_path: Path) -> None:
    """So does a command that fails after it has printed the whole content."""
    assert exec_out(place(tmp_path, Saying("content")), POD, "upper") > 0
    with pytest.raises(AssertionError, match="not what it should be"):
        exec_out(place(tmp_path, Saying("contents")), POD, "upper")
    with pytest.raises(AssertionError, match="ended with 3"):
        exec_out(place(tmp_path, Saying("content", 3)), POD, "upper")


def test_drawn_content_has_the_requested_size_and_is_random(tmp_path: Path) -> None:
    """The returned SHA-256 is that of the file."""
    digests = {drawn(tmp_path / name, 2) for name in ("a", "b")}
    assert digests == {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("a", "b")}
    assert len(digests) == 2
    assert (tmp_path / "a").stat().st_size == 2_000_000


def test_medians_of_the_speed_are_compared_with_the_direct_ones(tmp_path: Path) -> None:
    """Only streams that ran are compared, and a ratio below the limit is reported."""
    seconds = {("exec_out", "direct"): (1, 2, 9), ("exec_out", "through"): (2, 2.5, 9)}
    seconds |= {("exec_in", "direct"): (2, 2, 2), ("exec_in", "through"): (4, 4, 1)}
    runs = [run(*kind, each) for kind, values in seconds.items() for each in values]
    found, broken = judged(place(tmp_path), [POD], runs)
    assert found["one"]["ratio"] == {"exec_out": 0.8, "exec_in": 0.5}
    assert broken == ["one: exec_in: 0.5 x direct"]
    assert set(found["one"]["ratio"]) < set(STREAMS)


@pytest.mark.parametrize(
    ("more", "said"), [(25.0, []), (25.2, ["one: the first byte is 25.2 ms behind the direct one"])]
)
def test_a_first_byte_that_is_more_than_25_ms_later_is_reported(more: float, said: list[str]) -> None:
    """The difference between the medians of both ways counts."""
    found = {"one": {"direct_ms": 30.0, "through_ms": 30.0 + more}}
    assert late(found) == said
    assert list(summary(found)) == [f"one: first byte after {30 + more} ms, directly 30.0 ms"]
