"""The program's entry points: run a command, print any error to stderr, and exit with its code."""

import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer
from typer.main import get_command, get_command_name

from tensile import text
from tensile.cli import help as helping
from tensile.cli import inspect_commands, setup_commands, topology_commands  # noqa: F401 - they add commands
from tensile.cli.program import app
from tensile.errors import INTERRUPTED, TensileError
from tensile.text import joined


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program on `arguments` (None: those of the command line) and raise SystemExit.

    The code is 0 or that of the error. A usage error and a TensileError exit with 1, without a traceback; Ctrl-C exits
    with 130.
    """
    text.prepare()
    try:
        helping.prepare()
        given = sys.argv[1:] if arguments is None else arguments
        code = _program_with(given)(
            arguments, prog_name=_program(), complete_var=helping.VARIABLE, standalone_mode=False
        )
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except TensileError as error:
        code = _fail(str(error))
    except OSError as error:
        code = _fail(_system_error_message(error))
    except Exception as error:  # noqa: BLE001 - a user never meets a traceback
        code = _fail(_error_message(error))
    if code == INTERRUPTED:  # typer returns this code for Ctrl-C, too
        typer.echo("interrupted", err=True)
    sys.exit(code or 0)


def complete_kubectl() -> None:
    """Print the completions of the last word after `kubectl tensile`: the program `kubectl_complete-tensile`.

    Its arguments are these words.
    """
    helping.answer_cobra(get_command(app), sys.argv[1:])


def _program_with(arguments: Sequence[str]) -> typer.Typer:
    """Return the program with the one command that the first word names, if any.

    typer builds each command of the program that it runs, which takes 30 ms. Help and completion need all of them.
    """
    first = next((word for word in arguments if not word.startswith("-")), "")
    named = [
        one
        for one in app.registered_commands
        if first == (one.name or get_command_name(getattr(one.callback, "__name__", "")))
    ]
    if not named or first == "help" or helping.VARIABLE in os.environ:
        return app
    found = copy.copy(app)
    found.registered_commands, found.registered_groups = named, []
    return found


def _program() -> str:
    """Return the words that call the program: kubectl runs `kubectl tensile` as a program of another name."""
    return "kubectl tensile" if Path(sys.argv[0]).stem == "kubectl-tensile" else "tensile"


def _system_error_message(error: OSError) -> str:
    """Return the message of a system error.

    An error without a file name may come from a deleted working directory, from which relative paths start.
    """
    if error.filename is None:
        try:
            Path.cwd()
        except OSError as missing:
            return f"the working directory: {missing.strerror}: change to one that exists"
    return f"{error.filename or 'input/output'}: {error.strerror or error}"


def _error_message(error: Exception) -> str:
    """Return the message of a usage error; for any other exception, a message that reports a bug in tensile."""
    if hasattr(error, "format_message"):
        return str(error.format_message()) if helping.is_help(error) else helping.explained(error)
    from tensile.errors import described  # noqa: PLC0415 - only what goes wrong needs it

    return f"unexpected error, a defect of tensile: please report this line: {described(error)}"


def _fail(message: str) -> int:
    """Write an error to stderr, with unprintable characters escaped, and return exit code 1."""
    typer.echo(joined(message.split("\n")), err=True)
    return 1
