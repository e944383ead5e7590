"""Shell completion: the script that a shell loads, and the answers that it then asks the program for.

typer has both, but registers the shells only together with completion options of its own, which this program has not.
"""

import os
from typing import TYPE_CHECKING

from typer.completion import get_completion_inspect_parameters, shell_complete

if TYPE_CHECKING:
    from typer._click import Command

VARIABLE = "_TENSILE_COMPLETE"
"""The environment variable by which a script asks for completions."""
SHELLS = ("bash", "zsh", "fish")


def prepare() -> None:
    """Register the shells with typer if one of them asks for completions."""
    if VARIABLE in os.environ:
        get_completion_inspect_parameters()


def print_script(command: "Command", shell: str) -> int:
    """Print the script with which a shell completes the commands and options of `tensile`; return the exit code."""
    get_completion_inspect_parameters()
    return shell_complete(command, {}, "tensile", VARIABLE, f"source_{shell}")
