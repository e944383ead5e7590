"""Shell completion: the script that a shell loads, and the answers that it then asks the program for.

typer has both, but registers the shells only together with completion options of its own, which this program has not.
kubectl completes the words of a plugin by a program of its own, in the protocol of Cobra.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

from typer.completion import get_completion_inspect_parameters, shell_complete

if TYPE_CHECKING:
    from typer._click import Command

VARIABLE = "_TENSILE_COMPLETE"
"""The environment variable by which a script asks for completions."""
SHELLS = ("bash", "zsh", "fish")
_FILES, _NO_FILES = ":0", ":4"
"""Cobra's last line: whether the shell completes names of files."""


def prepare() -> None:
    """Register the shells with typer if one of them asks for completions."""
    if VARIABLE in os.environ:
        get_completion_inspect_parameters()


def print_script(command: "Command", shell: str) -> int:
    """Print the script with which a shell completes the commands and options of `tensile`; return the exit code."""
    get_completion_inspect_parameters()
    return shell_complete(command, {}, "tensile", VARIABLE, f"source_{shell}")


def answer_kubectl() -> None:
    """Print the completions of the last word after `kubectl tensile`: the program `kubectl_complete-tensile`.

    Its arguments are these words. Each line is a completion; without any, the last line allows names of files.
    """
    from typer.main import get_command  # noqa: PLC0415 - the commands import this module

    from tensile.cli.commands import app  # noqa: PLC0415

    found = _completions(get_command(app), sys.argv[1:])
    sys.stdout.write("".join(f"{line}\n" for line in [*found, _NO_FILES if found else _FILES]))


def _completions(command: "Command", words: Sequence[str]) -> list[str]:
    """Return what bash would offer for the last of some words."""
    get_completion_inspect_parameters()
    os.environ |= {"COMP_WORDS": shlex.join(["tensile", *(words or [""])]), "COMP_CWORD": str(len(words) or 1)}
    with redirect_stdout(StringIO()) as out:
        shell_complete(command, {}, "tensile", VARIABLE, "complete_bash")
    return out.getvalue().split()
