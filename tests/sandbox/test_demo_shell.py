"""Tests of the tour's shell: what it shows, in which order, and when it gives up."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tensile.sandbox.demo import DemoError, DemoScreen, Shell, beside
from tensile.sandbox.demo_script import Command, SideBySide

Make = Callable[..., Shell]


@pytest.fixture
def out(tmp_path: Path) -> Iterator[TextIO]:
    """A file in place of the terminal."""
    with (tmp_path / "out").open("w+") as stream:
        yield stream


@pytest.fixture
def make(out: TextIO, tmp_path: Path) -> Make:
    """Return a function that makes shells in which the word `say` runs this interpreter with a program."""
    place = tmp_path / "place"
    place.mkdir()

    def shell(
        *, look_after: Callable[[], None] = lambda: None, limit: float = 30, variables: dict[str, str] | None = None
    ) -> Shell:
        """Make one."""
        programs = {"say": (sys.executable, "-c")}
        return Shell(DemoScreen(out, colour=False), place, programs, variables or {**os.environ}, look_after, limit)

    return shell


def read(stream: TextIO) -> str:
    """Return all that was written."""
    stream.seek(0)
    return stream.read()


def children() -> set[str]:
    """Return the IDs of the child processes of this process that are not reaped yet."""
    return {number for task in Path("/proc/self/task").iterdir() for number in (task / "children").read_text().split()}


def test_a_command_is_shown_before_its_output(make: Make, out: TextIO) -> None:
    """Each command line is printed unchanged, with a prompt, before the output of that command."""
    shell = make()
    shell.run(Command("say 'print(1)'"))
    shell.run(Command("say 'print(2)'"))
    assert read(out) == "\n$ say 'print(1)'\n1\n\n$ say 'print(2)'\n2\n"


def test_two_outputs_are_shown_side_by_side(make: Make, out: TextIO) -> None:
    """They follow all command lines; the left one is as wide as its longest line, the right ones form one column."""
    left, *right = (Command(f"say 'print({text})'") for text in ('"POD NODE\\nweb a"', '"x"', '"y\\nz"'))
    make().run(SideBySide(left, tuple(right)))
    shown = read(out).splitlines()
    assert shown[1:4] == [f"$ {command.line}" for command in (left, *right)]
    assert shown[4:] == ["POD NODE  |  x", "web a     |  y", "          |  z"]


def test_a_failure_of_a_command_on_either_side_ends_the_tour(make: Make) -> None:
    """The error names the command and its exit code, as for any other command."""
    with pytest.raises(DemoError, match=r"`say 'exit\(3\)'` exited with code 3"):
        make().run(SideBySide(Command("say 'print(1)'"), (Command("say 'exit(3)'"),)))


def test_columns_of_different_lengths_have_no_trailing_blanks() -> None:
    """The longer column continues alone."""
    assert beside("a\nbb\n", "") == "a   |\nbb  |"
    assert beside("", "") == ""


def test_a_command_runs_with_the_given_directory_and_variables(make: Make, out: TextIO, tmp_path: Path) -> None:
    """Relative paths and KUBECONFIG mean what the printed commands imply."""
    shell = make(variables={"KUBECONFIG": "upper.kubeconfig"})
    shell.run(Command("say 'import os; print(os.getcwd(), os.environ[\"KUBECONFIG\"])'"))
    assert read(out).splitlines()[-1] == f"{tmp_path / 'place'} upper.kubeconfig"


def test_a_command_has_empty_input(make: Make, out: TextIO) -> None:
    """No command waits for a user at the terminal."""
    make().run(Command("say 'import sys; print(repr(sys.stdin.read()))'"))
    assert read(out).splitlines()[-1] == "''"


def test_other_programs_are_found_in_the_path(make: Make, out: TextIO) -> None:
    """A word without a replacement is a program of the machine."""
    make().run(Command("cat /dev/null"))
    assert read(out) == "\n$ cat /dev/null\n"


def test_an_expected_exit_code_is_no_error(make: Make, out: TextIO) -> None:
    """A plan with changes exits with 2."""
    make().run(Command("say 'raise SystemExit(2)'", (2,)))
    assert "SystemExit(2)" in read(out)


@pytest.mark.parametrize(("codes", "wanted"), [((0,), "0"), ((0, 2), "0 or 2")])
def test_an_unexpected_exit_code_ends_the_tour(make: Make, codes: tuple[int, ...], wanted: str) -> None:
    """The error has the command, its exit code, and the expected codes."""
    with pytest.raises(DemoError, match=re.escape(f"`say 'exit(3)'` exited with code 3, expected {wanted};")):
        make().run(Command("say 'exit(3)'", codes))


def test_a_missing_program_is_named(make: Make) -> None:
    """The error recommends an installation of the program."""
    with pytest.raises(DemoError, match=r"`no-such-program -x` cannot be run: No such file.*install no-such-program"):
        make().run(Command("no-such-program -x"))


def test_a_command_that_hangs_is_killed(make: Make) -> None:
    """The error reports the exceeded time limit, and no child process is left."""
    before = children()
    with pytest.raises(DemoError, match=r"`say 'import signal; signal.pause\(\)'` took more than 0 s"):
        make(limit=0.3).run(Command("say 'import signal; signal.pause()'"))
    assert children() == before


@pytest.mark.parametrize("ending", [DemoError("the engine exited"), KeyboardInterrupt()], ids=["engine", "Ctrl-C"])
def test_the_engines_exit_and_an_interrupt_end_the_command(make: Make, tmp_path: Path, ending: BaseException) -> None:
    """Both are noticed while the command runs, and its program is killed."""
    written = tmp_path / "place" / "number"

    def look_after() -> None:
        """Raise the error as soon as the program runs."""
        if written.exists() and written.read_text():
            raise ending

    line = 'say \'import os, signal; open("number", "w").write(str(os.getpid())); signal.pause()\''
    with pytest.raises(type(ending)):
        make(look_after=look_after).run(Command(line))
    assert not Path(f"/proc/{written.read_text()}").exists()
