"""Shell completion: what bash completes with the script, and what the program answers to the other shells."""

import os
import subprocess
from pathlib import Path

import pytest
from clikit import PROGRAM, environment, tensile

COMPLETES = """
source <(tensile completion bash)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_tensile_completion tensile
printf '%s\\n' "${COMPREPLY[@]}"
"""


def in_bash(*words: str) -> list[str]:
    """Return what bash offers for the last of some words."""
    path = f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", COMPLETES, "bash", *words],
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_formats() -> None:
    """Also commands of a group; where there is nothing to offer, bash offers files by itself."""
    assert in_bash("tensile", "pl") == ["plan"]
    assert in_bash("tensile", "sandbox", "") == ["up", "status", "down"]
    assert {"--file", "--output", "--help"} <= set(in_bash("tensile", "plan", "--"))
    assert in_bash("tensile", "plan", "-o", "") == ["text", "json", "markdown"]
    assert in_bash("tensile", "completion", "") == ["bash", "zsh", "fish"]
    assert in_bash("tensile", "plan", "-f", "") == []


@pytest.mark.parametrize(("shell", "words"), [("zsh", "compdef _tensile_completion tensile"), ("fish", "complete --")])
def test_the_other_shells_have_scripts_and_answers(shell: str, words: str) -> None:
    """The answer to "tensile val" names the one command that begins so."""
    script = tensile("completion", shell)
    assert (script.code, script.err) == (0, "")
    assert words in script.out
    assert f"_TENSILE_COMPLETE=complete_{shell}" in script.out
    told = tensile(
        _TENSILE_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS="tensile val",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert (told.code, told.err) == (0, "")
    assert "validate" in told.out
    assert "version" not in told.out
