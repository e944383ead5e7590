"""Tests of the help of every command: its layout, its examples, and the ways to request it."""

import re
from collections.abc import Iterator

import pytest
import typer
from clikit import Capture, run_in_process, tensile
from commandspage import commands
from fences import calls
from typer.core import TyperGroup

import tensile as package
from tensile.cli.help import INSPECT, PLAN, RUN, SET_UP, TRY, TensileCommand, TensileGroup, help_text
from tensile.cli.main import app

GROUPS = ("explain", "sandbox")
EVERY = sorted([*commands(), *GROUPS])
ROOT = typer.main.get_command(app)
WIDTH = 80
FILLED = {"FILE", "NAME", "NAMESPACE", "NAMESPACE/NAME", "COMMAND", "DIR", "FORMAT", "IMAGE", "KEY", "LEVEL", "LOWER",
          "LOWER=N", "N", "KIND", "PLAN", "PORT", "SHELL", "HASH"}  # fmt: skip
"""The placeholders for values in the help."""


def examples(name: str) -> Iterator[list[str]]:
    """Yield the words after `tensile` in each example of a command; "" is the program itself."""
    yield from (call.split() for call in calls(help_text(found(name)).examples))


def found(name: str) -> TensileCommand | TensileGroup:
    """Return a command or group by its words."""
    command = ROOT
    for word in name.split():
        assert isinstance(command, TyperGroup)
        command = command.commands[word]
    assert isinstance(command, TensileCommand | TensileGroup)
    return command


@pytest.mark.parametrize("name", ["", *EVERY])
def test_every_way_to_request_help_prints_the_same(name: str, capsys: Capture) -> None:
    """The options -h and --help and the command `tensile help` print it to stdout and exit with 0."""
    arguments = name.split()
    result = run_in_process(capsys, *arguments, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(" ".join(("Usage: tensile", *arguments, "[OPTIONS]")))
    assert run_in_process(capsys, *arguments, "-h") == result
    assert run_in_process(capsys, "help", *arguments) == result


@pytest.mark.parametrize("name", ["", *EVERY])
def test_help_fits_80_columns_and_has_placeholders_for_values(name: str, capsys: Capture) -> None:
    """No Python type is a placeholder, and the options of every command are the last section."""
    text = run_in_process(capsys, *name.split(), "--help").out
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert not re.search(r"<\w+>|\{\w+\}|\[\d*<?=?x", text)
    values = re.findall(r"^  (?:-\w, )?--[a-z-]+ (\S+)", text, re.MULTILINE)
    assert {"LEVEL", "FORMAT"} <= set(values) <= FILLED
    _, _, everywhere = text.partition("\nGlobal options:\n")
    assert all(f"  {option}" in everywhere for option in ("--log-level", "--log-format", "-h, --help"))
    assert ("--version" in text) == (name == "")


@pytest.mark.parametrize("name", ["", *EVERY])
def test_every_command_has_examples_that_it_accepts(name: str) -> None:
    """There are one to six; each has a command with options that it has, and one is of the command itself."""
    shown = list(examples(name))
    assert 1 <= len(shown) <= 6
    assert any(" ".join(words).startswith(name) for words in shown)
    known = [*commands(), *GROUPS]
    for words in shown:
        called = next(one for one in sorted(known, key=len, reverse=True) if words[: len(one.split())] == one.split())
        command = found(called)
        with command.make_context(called, [], resilient_parsing=True) as context:
            _, left, _ = command.make_parser(context).parse_args(words[len(called.split()) :])
        assert left == [], words


@pytest.mark.parametrize("name", EVERY)
def test_summaries_have_three_to_seven_words(name: str) -> None:
    """No list of commands has to truncate one."""
    assert 3 <= len(help_text(found(name)).summary.split()) <= 7


def test_the_program_lists_its_commands_in_groups(capsys: Capture) -> None:
    """Each command appears once, with its summary."""
    text = run_in_process(capsys, "--help").out
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == [RUN, PLAN, INSPECT, SET_UP, TRY, "Global options", "Examples"]
    assert isinstance(ROOT, TyperGroup)
    for name, command in ROOT.commands.items():
        assert len(re.findall(rf"^  {name} +{re.escape(help_text(command).summary)}$", text, re.MULTILINE)) == 1


def test_the_version_is_printed_in_three_ways(capsys: Capture) -> None:
    """There is a command, an option of the program, and the same option of each command."""
    expected = (0, f"tensile {package.__version__}\n", "")
    assert tensile("--version") == expected
    assert run_in_process(capsys, "version") == expected
    assert run_in_process(capsys, "sandbox", "up", "--version") == expected
    assert run_in_process(capsys, "version", "-o", "json").out == f'{{"version": "{package.__version__}"}}\n'


@pytest.mark.parametrize("command", [(), ("sandbox",)], ids=" ".join)
def test_without_a_command_the_help_is_printed_to_stderr(command: tuple[str, ...], capsys: Capture) -> None:
    """The exit code is 1, so that a script with an empty variable does not continue."""
    assert run_in_process(capsys, *command) == (1, "", run_in_process(capsys, *command, "--help").out)
