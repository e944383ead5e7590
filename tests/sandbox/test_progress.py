"""Tests of the display of progress, on a terminal and on other streams."""

import io

from tensile.text import LINE_EVERY, REWRITE_EVERY, TerminalProgress, Updates, progress_to


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Terminal(io.StringIO):
    """A stream that reports that it is a terminal."""

    def isatty(self) -> bool:
        """Report that the stream is a terminal."""
        return True


def test_a_line_is_rewritten_and_removed() -> None:
    """A shorter text leaves no rest of a longer one, and the next permanent line begins at the margin."""
    screen = Terminal()
    progress = TerminalProgress(screen)
    progress.rewrite("43 of 126 MB")
    progress.rewrite("done")
    progress("next")
    assert screen.getvalue() == "\r43 of 126 MB\rdone        \r    \rnext\n"


def test_a_text_is_truncated_to_the_terminal() -> None:
    """A wrapped line could not be rewritten."""
    screen = Terminal()
    TerminalProgress(screen).rewrite("x" * 5000)
    assert 10 < len(screen.getvalue()) < 5000


def test_reports_on_a_terminal_are_shown_twice_a_second() -> None:
    """The last report is removed at the end."""
    screen, clock = Terminal(), Clock()
    with Updates(TerminalProgress(screen), clock) as updates:
        for step in range(4):
            clock.now = step * REWRITE_EVERY / 2
            updates.show(f"at {step}")
    assert screen.getvalue() == "\rat 2\r    \r"


def test_reports_on_other_streams_are_a_line_every_20_seconds() -> None:
    """Each line is kept."""
    lines: list[str] = []
    clock = Clock()
    with Updates(lines.append, clock) as updates:
        for second in range(0, 61, 5):
            clock.now = float(second)
            updates.show(f"after {second} s")
    assert LINE_EVERY == 20
    assert lines == ["after 20 s", "after 40 s", "after 60 s"]


def test_only_a_terminal_gets_rewritten_lines() -> None:
    """The kind of the stream decides: a file gets plain lines."""
    file, screen = io.StringIO(), Terminal()
    progress_to(file)("to a file")
    assert file.getvalue() == "to a file\n"
    assert isinstance(progress_to(screen), TerminalProgress)
