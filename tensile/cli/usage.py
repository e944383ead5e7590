"""Usage errors in words that name what was typed, what was probably meant, and the help of the command.

typer tells a wrong value in the words of pydantic, and points to no command. Its error classes are private, so they are
known here by their names.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperArgument, TyperOption

from tensile.errors import TensileError

if TYPE_CHECKING:
    from typer._click import Context

_FILES = (".yaml", ".yml", ".json")


@contextmanager
def placed(ctx: "Context") -> Iterator[None]:
    """Note the command in an error of typer that does not have it."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


def unexpected(word: str, ctx: "Context", given: Collection[str]) -> TensileError:
    """Return the error for a word that the command does not take; `given` are the names of the options used."""
    takes_file = any("-f" in one.opts and one.name not in given for one in ctx.command.params)
    is_file = word == "-" or word.endswith(_FILES) or Path(word).is_file()
    hint = f"did you mean -f {word}?" if takes_file and is_file else "the command takes no such argument"
    return _error(f"unexpected {word!r}: {hint}", ctx)


def unknown_command(word: str, ctx: "Context", names: Iterable[str]) -> TensileError:
    """Return the error for a word that is none of the commands with these names."""
    return _error(f"unknown command {word!r}{_meant(get_close_matches(word, names, n=1))}", ctx)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range."""

    def parsed(value: str) -> int:
        """Return the number. Raises BadParameter for another text, and outside the range."""
        if not value.removeprefix("-").isdecimal():
            raise typer.BadParameter(f"{value!r} is not a whole number")
        number = int(value)
        if number < least:
            raise typer.BadParameter(f"{number} is too small: {least} is the least")
        if most is not None and number > most:
            raise typer.BadParameter(f"{number} is too large: {most} is the most")
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
    return str(_error(_wrong(error), getattr(error, "ctx", None)))


def _wrong(error: Any) -> str:
    match type(error).__name__:
        case "NoSuchOption":
            return f"unknown option {error.option_name}{_meant(error.possibilities or ())}"
        case "MissingParameter":
            return f"{_named(error.param)} is missing"
        case "BadOptionUsage":
            option = next((one for one in error.ctx.command.params if error.option_name in one.opts), None)
            if isinstance(option, TyperOption) and not option.is_flag:
                return f"{error.option_name}: give a value: {error.option_name} {placeholder(option)}"
            return f"{error.option_name} takes no value"
        case "BadParameter" if error.param is not None:
            return f"{_label(error.param)}: {error.message}"
    return str(error.message).rstrip(".")


def _label(param: TyperArgument | TyperOption) -> str:
    return placeholder(param) if isinstance(param, TyperArgument) else param.opts[-1]


def _named(param: TyperArgument | TyperOption) -> str:
    return placeholder(param) if isinstance(param, TyperArgument) else f"{param.opts[0]} {placeholder(param)}"


def _meant(likely: Iterable[str]) -> str:
    names = " or ".join(sorted(likely))
    return f": did you mean {names}?" if names else ""


def _error(what: str, ctx: "Context | None") -> TensileError:
    return TensileError(f"{what} (see: {ctx.command_path if ctx else 'tensile'} --help)")
