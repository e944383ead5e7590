"""Tests of log lines that contain their time of writing, and of the reader that measures their delays."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.speed.follow import LogWriter, judged
from bench.speed.log_lines import LineShape, Reading, between, delay_figures, due, entry, line, wrong_lines

SIZE = 60
SHAPE = LineShape(streams=4, rate=600, line=SIZE)


def written(stream: int, count: int) -> list[bytes]:
    """Return the first lines of a log; line n is written n milliseconds after the epoch."""
    return [line(stream, number, number * 1_000_000, SIZE) + b"\n" for number in range(count)]


def read(lines: list[bytes], stream: int = 0) -> Reading:
    """Read lines, each 5 ms after it was written."""
    reading = Reading(stream, SIZE)
    for number, each in enumerate(lines):
        reading.take(each, (number + 5) * 1_000_000)
    return reading


def test_a_line_has_the_requested_length() -> None:
    """The length includes its end; in the log it follows a time and the name of its stream."""
    assert {len(one) for one in written(3, 20)} == {SIZE}
    assert entry(b"text", b"2026-01-01T00:00:00Z") == b"2026-01-01T00:00:00Z stdout F text\n"


def test_logs_are_written_in_turn_at_their_rate() -> None:
    """Each log gets ten lines per second, and the logs do not get their lines at the same moment."""
    assert [due(SHAPE, stream, 0.0) for stream in range(4)] == [1, 0, 0, 0]
    assert [due(SHAPE, stream, 0.06) for stream in range(4)] == [1, 1, 1, 0]
    assert {due(SHAPE, stream, 60.0) for stream in range(4)} <= {600, 601}


@pytest.mark.parametrize("size", [1, 7, SIZE, 1000])
def test_a_reader_finds_the_lines_in_pieces_of_any_size(size: int) -> None:
    """No line is damaged, and the delay of each is measured until the read of its end."""
    whole = b"".join(written(2, 10))
    reading = Reading(2, SIZE)
    for begin in range(0, len(whole), size):
        reading.take(whole[begin : begin + size], 20_000_000)
    assert wrong_lines([reading], [10]) == []
    assert list(reading.delays) == pytest.approx([(20 - number) / 1000 for number in range(10)])


def test_lost_doubled_swapped_and_damaged_lines_are_reported() -> None:
    """The message has the log and the line that is wrong."""
    whole = written(0, 4)
    first, second, third, fourth = whole
    assert wrong_lines([read(whole)], [4]) == []
    assert wrong_lines([read(whole[:3])], [4]) == ["log 0: 1 lines are missing"]
    damaged = third.replace(b"xxx", b"xyx", 1)
    for lines in ([first, third, fourth], [first, first, second], [first, third, second], [first, second, damaged]):
        assert any("not line" in words for words in wrong_lines([read(lines)], [len(lines)]))
    assert any("log 1: not line 0" in words for words in wrong_lines([read(whole, stream=1)], [4]))
    assert wrong_lines([read([b"short\n"])], [1]) == ["log 0: not line 0: b'short' (5 bytes)"]


def test_delays_are_those_of_the_lines_written_in_an_interval() -> None:
    """They are sorted, and their percentiles are in milliseconds."""
    reading = read(written(0, 10))
    assert between([reading], 0.002, 0.004) == pytest.approx([0.005, 0.005])
    assert delay_figures([0.001] * 98 + [0.5, 0.7]) == {"lines": 100, "p50_ms": 1.0, "p99_ms": 700.0, "max_ms": 700.0}
    assert delay_figures([]) == {"lines": 0, "p50_ms": 0.0, "p99_ms": 0.0, "max_ms": 0.0}


async def test_a_pen_writes_every_line_once(tmp_path: Path) -> None:
    """The logs contain exactly the lines that it counts, and are deleted at its end."""
    files = [tmp_path / str(number) / "c.log" for number in range(SHAPE.streams)]
    pen = LogWriter(files, SHAPE._replace(rate=60_000))
    pen.begin()
    assert pen.written == [1] * 4
    writing = asyncio.create_task(pen.go_on())
    async with asyncio.timeout(20):
        while min(pen.written) < 50:  # noqa: ASYNC110 - the pen has no event
            await asyncio.sleep(0.01)
    writing.cancel()
    for number, (path, lines) in enumerate(zip(files, pen.written, strict=True)):
        reading = Reading(number, SIZE)
        entries = path.read_bytes().splitlines(keepends=True)
        reading.take(b"".join(each.split(b" stdout F ")[1] for each in entries), 2**62)
        assert (wrong_lines([reading], [lines]), reading.lines) == ([], lines)
    pen.end()
    assert not any(path.exists() for path in files)


def run(way: str, mirror: str, p99: float, seconds: float, cores: float = 1.0) -> dict[str, Any]:
    """Return the figures of a run."""
    figures = {"p99_ms": p99, "mirroring_p99_ms": 2 * p99, "last_ready_s": seconds}
    return {"way": way, "mirror": mirror, "cores": {"upper": cores, "bench": 0.5}, **figures}


def test_delays_and_start_times_are_compared_with_their_limits() -> None:
    """The medians count: 50 ms more than the direct delays, and 1.2 times the ceiling's time under the same streams."""
    good = [run("direct", "ceiling", 10, 4), run("through", "engine", 59, 6), run("through", "ceiling", 0, 5)]
    found, over = judged(good, 2)
    assert over == []
    assert found["x_ceiling_under_the_same_streams"] == 1.2
    assert found["x_ceiling_under_direct_streams"] == 1.5
    late = [run("direct", "ceiling", 10, 4), run("through", "engine", 61, 6.1), run("through", "ceiling", 0, 5)]
    assert judged(good + late + late, 2)[1] == [
        "the 99th percentile of delays is 51.0 ms behind the direct one",
        "pods take 1.22 x the ceiling's time under the same streams",
    ]


def test_an_exceeded_limit_mentions_a_machine_without_free_processors() -> None:
    """The direct streams alone then use most processors."""
    full = [run("direct", "ceiling", 10, 4, 1.2), run("through", "engine", 99, 4), run("through", "ceiling", 0, 4)]
    (words,) = judged(full, 2)[1]
    assert words.endswith("89.0 ms behind the direct one (the direct streams alone take 1.7 of 2 processors)")
    assert "processors" not in judged(full, 4)[1][0]


def test_runs_without_pods_have_no_ratio_of_start_times() -> None:
    """Their delays are judged as usual."""
    kinds = (("direct", "ceiling"), ("through", "engine"), ("through", "ceiling"))
    found, over = judged([run(*kind, 9, 0) for kind in kinds], 2)
    assert "x_ceiling_under_the_same_streams" not in found
    assert over == []
