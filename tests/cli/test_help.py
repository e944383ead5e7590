"""The help of every command: its layout, its examples, and the ways to it."""

import re
from collections.abc import Iterator

import pytest
import typer
from clikit import Capture, tensile, within
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
"""What stands for values in the help."""


def examples(name: str) -> Iterator[list[str]]:
    """Yield the words behind `tensile` in each example of a command, "" for the program's own."""
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
def test_help_is_the_same_by_every_way(name: str, capsys: Capture) -> None:
    """By -h, by --help, and by `tensile help`; on stdout, with 0."""
    words = name.split()
    told = within(capsys, *words, "--help")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith(" ".join(("Usage: tensile", *words, "[OPTIONS]")))
    assert within(capsys, *words, "-h") == told
    assert within(capsys, "help", *words) == told


@pytest.mark.parametrize("name", ["", *EVERY])
def test_help_fits_80_columns_and_names_values_in_words(name: str, capsys: Capture) -> None:
    """No Python type stands for a value, and the options that every command has come last."""
    text = within(capsys, *name.split(), "--help").out
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert not re.search(r"<\w+>|\{\w+\}|\[\d*<?=?x", text)
    values = re.findall(r"^  (?:-\w, )?--[a-z-]+ (\S+)", text, re.MULTILINE)
    assert {"LEVEL", "FORMAT"} <= set(values) <= FILLED
    _, _, everywhere = text.partition("\nGlobal options:\n")
    assert all(f"  {option}" in everywhere for option in ("--log-level", "--log-format", "-h, --help"))
    assert ("--version" in text) == (name == "")


@pytest.mark.parametrize("name", ["", *EVERY])
def test_every_command_has_examples_that_its_options_allow(name: str) -> None:
    """One to six of them; each names a command, and options that the command has. One at least is its own."""
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
def test_summaries_are_three_to_seven_words(name: str) -> None:
    """So that no list of commands has to cut one."""
    assert 3 <= len(help_text(found(name)).summary.split()) <= 7


def test_the_program_lists_its_commands_in_groups(capsys: Capture) -> None:
    """Each command of the program once, with its summary."""
    text = within(capsys, "--help").out
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert titles == [RUN, PLAN, INSPECT, SET_UP, TRY, "Global options", "Examples"]
    assert isinstance(ROOT, TyperGroup)
    for name, command in ROOT.commands.items():
        assert len(re.findall(rf"^  {name} +{re.escape(help_text(command).summary)}$", text, re.MULTILINE)) == 1


def test_the_version_is_printed_in_three_ways(capsys: Capture) -> None:
    """By a command, by an option of the program, and by the same option of each command."""
    told = (0, f"tensile {package.__version__}\n", "")
    assert tensile("--version") == told
    assert within(capsys, "version") == told
    assert within(capsys, "sandbox", "up", "--version") == told
    assert within(capsys, "version", "-o", "json").out == f'{{"version": "{package.__version__}"}}\n'


@pytest.mark.parametrize("command", [(), ("sandbox",)], ids=" ".join)
def test_no_command_at_all_shows_the_help(command: tuple[str, ...], capsys: Capture) -> None:
    """On stderr and with 1, so that a script with an empty variable in it does not go on."""
    assert within(capsys, *command) == (1, "", within(capsys, *command, "--help").out)
