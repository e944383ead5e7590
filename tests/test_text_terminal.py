"""Tests of output to terminals and to unusual standard streams of the process."""

import io
import os
import subprocess
from pathlib import Path

import pytest

from tensile.text import aligned, harmless, joined, takes_colour


class TerminalStream(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return that it is a terminal."""
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "wanted"),
    [
        (TerminalStream(), {}, True),
        (TerminalStream(), {"NO_COLOR": ""}, True),
        (TerminalStream(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colors_are_used_on_terminals_unless_no_color_is_set(
    stream: io.StringIO, variables: dict[str, str], *, wanted: bool
) -> None:
    """As no-color.org defines, an empty NO_COLOR does not count."""
    assert takes_colour(stream, variables) is wanted


def test_output_to_a_closed_stream_is_discarded(tmp_path: Path) -> None:
    """Otherwise a file that is opened later could get the descriptor of standard output."""
    script = (
        "import sys; from tensile.text import prepare; prepare(); kept = open(sys.argv[1], 'w'); "
        "print('told', flush=True); sys.stdout.isatty(); kept.write(str(kept.fileno()))"
    )
    kept = tmp_path / "kept"
    shell = 'exec "$1" -c "$2" "$3" >&-'
    assert os.spawnlp(os.P_WAIT, "sh", "sh", "-c", shell, "sh", _python(), script, str(kept)) == 0
    assert int(kept.read_text()) > 2


def test_input_that_is_no_valid_utf8_is_read_with_replacement_characters() -> None:
    """Bytes of another encoding as an answer to a question must not fail, and do not count as agreement."""
    script = "import sys; from tensile.text import prepare; prepare(); print(ascii(sys.stdin.readline()))"
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([_python(), "-c", script], input=b"\xff\n", capture_output=True, env=variables, check=True)
    assert done.stdout == b"'\\ufffd\\n'\n"


def _python() -> str:
    import sys  # noqa: PLC0415 - the interpreter of the tests

    return sys.executable


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain words, é and ☃", "plain words, é and ☃"),
        ("\x1b[2Jgone", "\\u001b[2Jgone"),
        ("one\nother\r\tx\x00", "one\\nother\\r\\tx\\u0000"),
        ("\u202eturned", "\\u202eturned"),
        ("\x9b31m", "\\u009b31m"),
        ("a\\nb", "a\\nb"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text: str, wanted: str) -> None:
    """Text that is escaped already is not changed."""
    assert harmless(text) == wanted
    assert harmless(harmless(text)) == wanted


def test_line_breaks_in_cells_and_lines_are_escaped() -> None:
    """The width of a column is that of the escaped text."""
    assert aligned([["A", "B"], ["x\ny", "\x1b[1m"]]) == ["A      B", "x\\ny   \\u001b[1m"]
    assert joined(["a\nb", "c"]) == "a\\nb\nc"
