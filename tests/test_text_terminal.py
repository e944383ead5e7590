"""Streams that whoever started the program left in a bad way."""

import io
import os
import subprocess
from pathlib import Path

import pytest

from tensile.text import aligned, harmless, joined, takes_colour


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        """Describe that it is one."""
        return True


@pytest.mark.parametrize(
    ("stream", "variables", "wanted"),
    [
        (Screen(), {}, True),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"NO_COLOR": "1"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colours_are_for_terminals_of_people_who_want_them(
    stream: io.StringIO, variables: dict[str, str], *, wanted: bool
) -> None:
    """As no-color.org has it: any text but an empty one says no."""
    assert takes_colour(stream, variables) is wanted


def test_streams_that_are_closed_lead_nowhere(tmp_path: Path) -> None:
    """A file that is opened later does not become what is printed to."""
    script = (
        "import sys; from tensile.text import prepare; prepare(); kept = open(sys.argv[1], 'w'); "
        "print('told', flush=True); sys.stdout.isatty(); kept.write(str(kept.fileno()))"
    )
    kept = tmp_path / "kept"
    shell = 'exec "$1" -c "$2" "$3" >&-'
    assert os.spawnlp(os.P_WAIT, "sh", "sh", "-c", shell, "sh", _python(), script, str(kept)) == 0
    assert int(kept.read_text()) > 2


def test_an_answer_that_is_no_text_is_read() -> None:
    """As bytes of another encoding, typed at a question; it is then no agreement."""
    script = "import sys; from tensile.text import prepare; prepare(); print(ascii(sys.stdin.readline()))"
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([_python(), "-c", script], input=b"\xff\n", capture_output=True, env=variables, check=True)
    assert done.stdout == b"'\\ufffd\\n'\n"


def _python() -> str:
    import sys  # noqa: PLC0415 - the interpreter of the tests

    return sys.executable


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("plain words, é and ☃", "plain words, é and ☃"),
        ("\x1b[2Jgone", "\\u001b[2Jgone"),
        ("one\nother\r\tx\x00", "one\\nother\\r\\tx\\u0000"),
        ("\u202eturned", "\\u202eturned"),
        ("\x9b31m", "\\u009b31m"),
        ("a\\nb", "a\\nb"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(words: str, wanted: str) -> None:
    """And what is escaped already stays as it is."""
    assert harmless(words) == wanted
    assert harmless(harmless(words)) == wanted


def test_a_cell_cannot_make_a_line_of_its_own() -> None:
    """Columns are as wide as what is shown."""
    assert aligned([["A", "B"], ["x\ny", "\x1b[1m"]]) == ["A      B", "x\\ny   \\u001b[1m"]
    assert joined(["a\nb", "c"]) == "a\\nb\nc"
