"""The layout of `--help`, as users of kubectl and gh know it: groups of commands, global options, examples.

A command's docstring is its help: the first line is the summary in lists of commands, and a section `Examples:` at the
end holds commands to copy. The layout of typer would cut summaries at the width of the terminal, show Python types, and
reflow examples.
"""

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from textwrap import dedent
from typing import TYPE_CHECKING, NamedTuple

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tensile.cli import usage

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

RUN, PLAN, INSPECT, SET_UP, TRY = "Run", "Plan", "Inspect", "Set up", "Try"
_PANELS = (RUN, PLAN, INSPECT, SET_UP, TRY)
"""The groups of commands, in the order of the help."""
GLOBAL = "Global options"
"""The panel of the options that every command has."""
_MARK = "\n\nExamples:\n"
_CALL = re.compile(r"\btensile (?=[a-z])")
Row = tuple[str, str]


class HelpText(NamedTuple):
    """The parts of a command's help: a summary of some words, a description, and examples ("" for none)."""

    summary: str
    description: str
    examples: str


def help_text(command: "Command") -> HelpText:
    """Return the parts of a command's help."""
    description, _, examples = cleandoc(command.help or "").partition(_MARK)
    summary = description.partition("\n\n")[0].rstrip(".")
    return HelpText(" ".join(summary.split()), description, dedent(examples).strip())


class TensileCommand(TyperCommand):
    """A command with our layout of help, which refuses words that it does not take with a hint."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse the command line. Raises TensileError for a word that is no option and no argument."""
        with usage.placed(ctx):
            given, left, _ = self.make_parser(ctx).parse_args(list(args))
            if left and not ctx.resilient_parsing and not {"help", "version"} & given.keys():
                raise usage.unexpected(left[0], ctx, given)
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:  # noqa: ARG002 - the form that typer calls
        """Return the words of the usage line after the command's name."""
        return ["[OPTIONS]", *(_argument(one) for one in self.params if isinstance(one, TyperArgument))]

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the page."""
        _write_page(self, ctx, formatter, ())


class TensileGroup(TyperGroup):
    """A group of commands with our layout of help, which lists the commands by their panel."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse the options before the command."""
        with usage.placed(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, Command | None, list[str]]":
        """Return the command that the first word names. Raises TensileError if there is none."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise usage.unknown_command(args[0], ctx, [name for name, one in self.commands.items() if not one.hidden])
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the page."""
        _write_page(self, ctx, formatter, _listed(self))
        formatter.write_paragraph()
        formatter.write_text(f"Use `{ctx.command_path} COMMAND --help` for more about a command.")


def _listed(group: TyperGroup) -> Iterator[tuple[str, list[Row]]]:
    """Yield the commands of a group, by the title of their panel."""
    shown = {name: one for name, one in group.commands.items() if not one.hidden}
    width = max(map(len, shown))
    panels: dict[str, list[Row]] = {}
    for name, one in shown.items():
        panel = getattr(one, "rich_help_panel", None) or "Commands"
        panels.setdefault(panel, []).append((name.ljust(width), help_text(one).summary))
    order = [*_PANELS, *panels]
    yield from sorted(panels.items(), key=lambda panel: order.index(panel[0]))


def _write_page(
    command: "Command", ctx: "Context", formatter: "HelpFormatter", lists: Iterable[tuple[str, list[Row]]]
) -> None:
    parts = help_text(command)
    command.format_usage(ctx, formatter)
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(parts.description)
    for title, rows in (*lists, *_parameters(command, ctx)):
        with formatter.section(title):
            formatter.write_dl(rows)
    if parts.examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}".rstrip() + "\n" for line in _examples(parts.examples, ctx)))


def _parameters(command: "Command", ctx: "Context") -> Iterator[tuple[str, list[Row]]]:
    """Yield the arguments, the options of the command's own, and those that every command has."""
    found = command.get_params(ctx)
    options = [one for one in found if isinstance(one, TyperOption) and not one.hidden]
    everywhere = [one for one in options if one.rich_help_panel == GLOBAL or one.name == "help"]
    yield from _section("Arguments", [one for one in found if isinstance(one, TyperArgument)])
    yield from _section("Options", [one for one in options if one not in everywhere])
    yield from _section(GLOBAL, everywhere)


def _section(title: str, found: Iterable[TyperArgument | TyperOption]) -> Iterator[tuple[str, list[Row]]]:
    rows = [(_spelling(one), _meaning(one)) for one in found]
    if rows:
        yield title, rows


def _argument(one: TyperArgument) -> str:
    more = "..." if one.nargs != 1 else ""
    return f"{usage.placeholder(one)}{more}" if one.required else f"[{usage.placeholder(one)}{more}]"


def _spelling(one: TyperArgument | TyperOption) -> str:
    """Return how a parameter is written: "-f, --file FILE"."""
    if isinstance(one, TyperArgument):
        return usage.placeholder(one)
    value = "" if one.is_flag else f" {usage.placeholder(one)}"
    return ", ".join(sorted([*one.opts, *one.secondary_opts], key=_dashes)) + value


def _dashes(option: str) -> int:
    return len(option) - len(option.lstrip("-"))


def _meaning(one: TyperArgument | TyperOption) -> str:
    """Return the help of a parameter, with its default."""
    if isinstance(one, TyperOption) and one.name == "help":
        return "Show this help."
    if one.required:
        return f"{one.help} Required."
    is_told = one.show_default and one.default not in (None, False) and not callable(one.default)
    return f"{one.help} Default: {one.default}." if is_told else one.help or ""


def _examples(text: str, ctx: "Context") -> Iterator[str]:
    """Yield the lines of examples, with the name by which the program was called."""
    program = ctx.find_root().command_path
    for line in text.splitlines():
        yield line if line.startswith("#") else _CALL.sub(f"{program} ", line)
