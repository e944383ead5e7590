"""What users see of the command line itself: the layout of `--help`, usage errors, and shell completion.

The layout is the one that users of kubectl and gh know: groups of commands, global options, examples. A command's
docstring is its help: the first line is the summary in lists of commands, and a section `Examples:` at the end holds
commands to copy. The layout of typer would cut summaries at the width of the terminal, show Python types, and reflow
examples.

A usage error names what was typed, what was probably meant, and the help of the command. typer tells a wrong value in
the words of pydantic, and points to no command. Its error classes are private, so they are known here by their names.

Completion is the script that a shell loads, and the answers that it then asks the program for. typer has both, but
registers the shells only together with completion options of its own, which this program has not. kubectl completes the
words of a plugin by a program of its own, in the protocol of Cobra.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from inspect import cleandoc
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.completion import get_completion_inspect_parameters, shell_complete
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from tensile.errors import TensileError

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

RUN, PLAN, INSPECT, SET_UP, TRY = "Run", "Plan", "Inspect", "Set up", "Try"
PANELS = (RUN, PLAN, INSPECT, SET_UP, TRY)
"""The groups of commands, in the order of the help."""
GLOBAL = "Global options"
"""The panel of the options that every command has."""
_EXAMPLES_MARK = "\n\nExamples:\n"
_PROGRAM_CALL = re.compile(r"\btensile (?=[a-z])")
Row = tuple[str, str]


class HelpText(NamedTuple):
    """The parts of a command's help: a summary of some words, a description, and examples ("" for none)."""

    summary: str
    description: str
    examples: str


def help_text(command: "Command") -> HelpText:
    """Return the parts of a command's help."""
    description, _, examples = cleandoc(command.help or "").partition(_EXAMPLES_MARK)
    summary = description.partition("\n\n")[0].rstrip(".")
    return HelpText(" ".join(summary.split()), description, dedent(examples).strip())


class TensileCommand(TyperCommand):
    """A command with our layout of help, which refuses words that it does not take with a hint."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse the command line. Raises TensileError for a word that is no option and no argument."""
        with with_context(ctx):
            given, left, _ = self.make_parser(ctx).parse_args(list(args))
            if left and not ctx.resilient_parsing and not {"help", "version"} & given.keys():
                raise unexpected(left[0], ctx, given)
            return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: "Context") -> list[str]:  # noqa: ARG002 - the form that typer calls
        """Return the words of the usage line after the command's name."""
        return ["[OPTIONS]", *(_argument(one) for one in self.params if isinstance(one, TyperArgument))]

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the page."""
        _write_page(self, ctx, formatter, ())


_KINDS: Mapping[str, tuple[str, ...]] = {
    "pod": ("po", "pods"),
    "node": ("no", "nodes"),
    "claim": ("pvc", "persistentvolumeclaim", "persistentvolumeclaims"),
    "service": ("svc", "services"),
}
"""The commands for kinds of objects, with kubectl's words for them."""


class TensileGroup(TyperGroup):
    """A group of commands with our layout of help, which lists the commands by their panel."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse the options before the command."""
        with with_context(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, Command | None, list[str]]":
        """Return the command that the first word names, also in the words of kubectl. Raises TensileError if none."""
        args = _of_kubectl(args, self.commands)
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise unknown_command(args[0], ctx, [name for name, one in self.commands.items() if not one.hidden])
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the page."""
        _write_page(self, ctx, formatter, _listed(self))
        formatter.write_paragraph()
        formatter.write_text(f"Use `{ctx.command_path} COMMAND --help` for more about a command.")


def _of_kubectl(args: list[str], commands: Container[str]) -> list[str]:
    """Return words such as `svc web` or `pod/web` as the command for that kind of object, if the group has one."""
    word, slash, name = args[0].partition("/")
    kind = next((one for one, words in _KINDS.items() if word == one or word in words), "")
    return [kind, *([name] if slash else []), *args[1:]] if kind in commands else args


def _listed(group: TyperGroup) -> Iterator[tuple[str, list[Row]]]:
    """Yield the commands of a group, by the title of their panel."""
    shown = {name: one for name, one in group.commands.items() if not one.hidden}
    width = max(map(len, shown))
    panels: dict[str, list[Row]] = {}
    for name, one in shown.items():
        panel = getattr(one, "rich_help_panel", None) or "Commands"
        panels.setdefault(panel, []).append((name.ljust(width), help_text(one).summary))
    order = [*PANELS, *panels]
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
    dots = "..." if one.nargs != 1 else ""
    return f"{placeholder(one)}{dots}" if one.required else f"[{placeholder(one)}{dots}]"


def _spelling(one: TyperArgument | TyperOption) -> str:
    """Return how a parameter is written: "-f, --file FILE"."""
    if isinstance(one, TyperArgument):
        return placeholder(one)
    value = "" if one.is_flag else f" {placeholder(one)}"
    return ", ".join(sorted([*one.opts, *one.secondary_opts], key=_dashes)) + value


def _dashes(option: str) -> int:
    return len(option) - len(option.lstrip("-"))


def _meaning(one: TyperArgument | TyperOption) -> str:
    """Return the help of a parameter, with its default."""
    if isinstance(one, TyperOption) and one.name == "help":
        return "Show this help."
    if one.required:
        return f"{one.help} Required."
    shows_default = one.show_default and one.default not in (None, False) and not callable(one.default)
    return f"{one.help} Default: {one.default}." if shows_default else one.help or ""


def _examples(text: str, ctx: "Context") -> Iterator[str]:
    """Yield the lines of examples, with the name by which the program was called."""
    program = ctx.find_root().command_path
    for line in text.splitlines():
        yield line if line.startswith("#") else _PROGRAM_CALL.sub(f"{program} ", line)


_FILES = (".yaml", ".yml", ".json")


@contextmanager
def with_context(ctx: "Context") -> Iterator[None]:
    """Note the command in an error of typer that does not have it."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


def unexpected(word: str, ctx: "Context", given: Mapping[str, Any]) -> TensileError:
    """Return the error for a word that the command does not take; `given` are the values of the options used.

    An option without its value takes the next option for it, so that the value of that one is left.
    """
    if option := _without_value(ctx.command.params, given):
        return _error(_needs_value(option.opts[0], option), ctx)
    takes_file = any("-f" in one.opts and one.name not in given for one in ctx.command.params)
    is_file = word == "-" or word.endswith(_FILES) or Path(word).is_file()
    hint = f"did you mean -f {word}?" if takes_file and is_file else "the command takes no such argument"
    return _error(f"unexpected {word!r}: {hint}", ctx)


def _without_value(params: Iterable[Any], given: Mapping[str, Any]) -> TyperOption | None:
    options = [one for one in params if isinstance(one, TyperOption)]
    names = {name for one in options for name in one.opts}
    for one in options:
        value = given.get(str(one.name))
        if not one.is_flag and names.intersection(value if isinstance(value, list) else [value]):
            return one
    return None


def _needs_value(name: str, option: TyperOption) -> str:
    return f"{name}: give a value: {name} {placeholder(option)}"


_KUBECTL_COMMANDS = (
    "attach",
    "cp",
    "debug",
    "describe",
    "exec",
    "get",
    "label",
    "logs",
    "port-forward",
    "taint",
    "top",
)
_KUBECTL_ADVICE = {
    word: f"use kubectl {word}: pods and nodes are in the upper cluster" for word in _KUBECTL_COMMANDS
} | {
    "cordon": "set maintenance: cordon for the lower cluster in the topology",
    "drain": (
        "set maintenance: drain for the lower cluster in the topology; `tensile plan --drain NAME` shows what moves"
    ),
    "uncordon": "delete maintenance of the lower cluster in the topology",
}
"""What to do in place of kubectl's commands for pods and nodes."""
_COMMANDS_BY_OTHER_NAMES = {
    "start": ("run", "up"),
    "stop": ("down",),
    "create": ("up",),
    "delete": ("uninstall", "down"),
    "destroy": ("uninstall", "down"),
    "diff": ("plan",),
    "preview": ("plan",),
}
"""Commands by the words that users of other programs take for them, the first one that is there."""


_MAX_LISTED = 8
"""Commands that an error lists; more are in the help."""


def unknown_command(word: str, ctx: "Context", names: Iterable[str]) -> TensileError:
    """Return the error for a word that is none of the commands with these names."""
    known = [*names]
    if word in _KUBECTL_ADVICE and "plan" in known:
        return _error(f"unknown command {word!r}: {_KUBECTL_ADVICE[word]}", ctx)
    likely = [name for name in _COMMANDS_BY_OTHER_NAMES.get(word, ()) if name in known] or get_close_matches(
        word, known
    )
    available = f"; there are: {', '.join(known)}" if len(known) <= _MAX_LISTED and not likely else ""
    return _error(f"unknown command {word!r}{_suggestion(likely[:1])}{available}", ctx)


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range."""

    def parsed(value: str) -> int:
        """Return the number. Raises BadParameter for another text, and outside the range."""
        if not value.removeprefix("-").isdecimal():
            raise typer.BadParameter(f"{value!r} is not a whole number")
        number = int(value)
        if number < minimum:
            raise typer.BadParameter(f"{number} is too small: {minimum} is the least")
        if maximum is not None and number > maximum:
            raise typer.BadParameter(f"{number} is too large: {maximum} is the most")
        return number

    return parsed


def placeholder(one: TyperArgument | TyperOption) -> str:
    """Return what stands for the value of a parameter: "FILE"."""
    return one.metavar or str(one.name).strip("_").upper()


def is_help(error: Exception) -> bool:
    """Report whether an error of typer is a group that was called without a command; its message is the help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def explained(error: Any) -> str:
    """Return the message of a usage error of typer: what is wrong, and where to read on."""
    return str(_error(_usage_problem(error), getattr(error, "ctx", None)))


def _option_of_command_hint(option: str, ctx: "Context") -> str:
    """Return that an option belongs after a command of the group, "" if none of its commands has it."""
    commands = getattr(ctx.command, "commands", {}).values()
    has_it = any(option in param.opts for command in commands for param in command.params)
    return ": put it after the command" if has_it else ""


def _usage_problem(error: Any) -> str:
    match type(error).__name__:
        case "NoSuchOption":
            message = f"unknown option {error.option_name}{_suggestion(error.possibilities or ())}"
            return f"{message}{_option_of_command_hint(error.option_name, error.ctx)}"
        case "MissingParameter":
            return f"{_named(error.param)} is missing"
        case "BadOptionUsage":
            option = next((one for one in error.ctx.command.params if error.option_name in one.opts), None)
            if isinstance(option, TyperOption) and not option.is_flag:
                return _needs_value(error.option_name, option)
            return f"{error.option_name} takes no value"
        case "BadParameter" if error.param is not None:
            return f"{_label(error.param)}: {error.message}"
    return str(error.message).rstrip(".")


def _label(param: TyperArgument | TyperOption) -> str:
    return placeholder(param) if isinstance(param, TyperArgument) else param.opts[-1]


def _named(param: TyperArgument | TyperOption) -> str:
    return placeholder(param) if isinstance(param, TyperArgument) else f"{param.opts[0]} {placeholder(param)}"


def _suggestion(likely: Iterable[str]) -> str:
    names = " or ".join(sorted(likely))
    return f": did you mean {names}?" if names else ""


def _error(message: str, ctx: "Context | None") -> TensileError:
    return TensileError(f"{message} (see: {ctx.command_path if ctx else 'tensile'} --help)")


VARIABLE = "_TENSILE_COMPLETE"
"""The environment variable by which a script asks for completions."""
SHELLS = ("bash", "zsh", "fish")
_COBRA_FILES, _COBRA_NO_FILES = ":0", ":4"
"""Cobra's last line: whether the shell completes names of files."""


def prepare() -> None:
    """Register the shells with typer if one of them asks for completions."""
    if VARIABLE in os.environ:
        get_completion_inspect_parameters()


def print_script(command: "Command", shell: str) -> int:
    """Print the script with which a shell completes the commands and options of `tensile`; return the exit code."""
    get_completion_inspect_parameters()
    return shell_complete(command, {}, "tensile", VARIABLE, f"source_{shell}")


def answer_cobra(command: "Command", words: Sequence[str]) -> None:
    """Print the completions of the last of some words in the protocol of Cobra.

    Each line is a completion. Without any, the last line allows names of files.
    """
    found = _completions(command, words)
    sys.stdout.write("".join(f"{line}\n" for line in [*found, _COBRA_NO_FILES if found else _COBRA_FILES]))


def _completions(command: "Command", words: Sequence[str]) -> list[str]:
    """Return what bash would offer for the last of some words."""
    get_completion_inspect_parameters()
    os.environ |= {"COMP_WORDS": shlex.join(["tensile", *(words or [""])]), "COMP_CWORD": str(len(words) or 1)}
    with redirect_stdout(StringIO()) as out:
        shell_complete(command, {}, "tensile", VARIABLE, "complete_bash")
    return out.getvalue().split()
