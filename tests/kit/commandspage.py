"""The reference of the commands, generated from the program's own help, so a new command needs no other text.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m commandspage`.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tensile.cli.help import PANELS, help_text, placeholder
from tensile.cli.main import app

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
BEGIN, END = "<!-- commands -->", "<!-- end of commands -->"
EVERYWHERE = ("--log-level", "--log-format", "--version", "-h", "--help")
"""Options that each command has; the page describes them once."""
EXITS = {
    "plan": {
        1: "a lower cluster is out of reach, or another error; the other clusters are planned all the same",
        2: "something would change",
    },
    "uninstall": {
        1: "an engine runs, pods are bound to virtual nodes, a cluster is out of reach, or another error",
        2: "with `--plan`: something would be deleted",
    },
    "apply": {1: "the answer is not `yes`, an object is blocked, a lower cluster is out of reach, or another error"},
    "simulate": {2: "fewer fit than are asked for, not even one fits, or pods of a lost cluster find no place"},
    "doctor": {1: "something fails; warnings do not count"},
    "status": {1: "no engine responds"},
    "list": {1: "a cluster or a kind cannot be listed"},
    "sandbox status": {1: "not all of it runs"},
    "demo": {0: "also when Ctrl-C ends it after the tour"},
}
"""Meanings of exit codes other than the usual 0 and 1; a code that a command's help mentions is here too."""

Parameter = TyperOption | TyperArgument


@cache
def commands() -> dict[str, TyperCommand]:
    """Return every command that `--help` shows, by the words that call it."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    return dict(_within(root, ()))


def _within(group: TyperGroup, names: tuple[str, ...]) -> Iterator[tuple[str, TyperCommand]]:
    for name, command in sorted(group.commands.items(), key=_panel):
        if isinstance(command, TyperGroup):
            yield from _within(command, (*names, name))
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield " ".join((*names, name)), command


def _panel(named: tuple[str, Any]) -> int:
    """Return the position of a command's panel in the help of the program, 0 within a group."""
    panel = getattr(named[1], "rich_help_panel", None)
    return PANELS.index(panel) if panel in PANELS else 0


def options(command: TyperCommand) -> set[str]:
    """Return every spelling of a command's options."""
    spelled = {word for one in parameters(command) for word in (*one.opts, *one.secondary_opts)}
    return {word for word in spelled if word.startswith("-")} | set(EVERYWHERE)


def parameters(command: TyperCommand) -> list[Parameter]:
    """Return its arguments and options, in order."""
    return [one for one in command.params if isinstance(one, TyperOption | TyperArgument)]


def reference() -> str:
    """Return the text about all commands."""
    found = commands()
    return "\n".join(line for name in found for line in _command(name, found[name]))


def rewritten(text: str) -> str:
    """Return a text with the reference of the commands between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


def _command(name: str, command: TyperCommand) -> Iterator[str]:
    own = [one for one in parameters(command) if not set(one.opts) & set(EVERYWHERE)]
    yield f"## tensile {name}\n\n{_one_line(help_text(command).description)}\n"
    if own:
        yield "| | meaning | default |\n|---|---|---|"
        yield from (f"| {_spelling(one)} | {_meaning(one)} | {_default(one)} |" for one in own)
        yield ""
    yield f"```\n{help_text(command).examples}\n```\n"
    if name in EXITS:
        yield f"Exit code {'; '.join(f'{code}: {meaning}' for code, meaning in EXITS[name].items())}.\n"


def _one_line(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split())


def _spelling(one: Parameter) -> str:
    if isinstance(one, TyperArgument):
        return f"`{placeholder(one)}`"
    value = "" if one.is_flag else f" {placeholder(one)}"
    return ", ".join(f"`{word}{value}`" for word in (*one.opts, *one.secondary_opts))


def _meaning(one: Parameter) -> str:
    meaning, _, _ = _one_line(one.help).partition(" Default: ")
    return meaning.replace("|", "\\|")


def _default(one: Parameter) -> str:
    _, _, default = _one_line(one.help).partition(" Default: ")
    if default:
        return default.removesuffix(".")
    if one.required:
        return "*required*"
    is_told = one.default not in (None, False) and not callable(one.default)
    return f"`{one.default}`" if is_told else ""


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
