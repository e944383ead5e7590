"""Tests of shell completion: the script for bash, and the program's answers to other shells and to kubectl."""

import os
import subprocess
import sys
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


def in_bash(*arguments: str) -> list[str]:
    """Return bash's candidates for the last of some words."""
    path = f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", COMPLETES, "bash", *arguments],
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_options_and_formats() -> None:
    """It completes commands of groups too, and falls back to file names if there are no candidates."""
    assert in_bash("tensile", "pl") == ["plan"]
    assert in_bash("tensile", "sandbox", "") == ["up", "status", "down"]
    assert {"--file", "--output", "--help"} <= set(in_bash("tensile", "plan", "--"))
    assert in_bash("tensile", "plan", "-o", "") == ["text", "json", "markdown"]
    assert in_bash("tensile", "completion", "") == ["bash", "zsh", "fish"]
    assert in_bash("tensile", "plan", "-f", "") == []


@pytest.mark.parametrize(
    ("shell", "arguments"), [("zsh", "compdef _tensile_completion tensile"), ("fish", "complete --")]
)
def test_zsh_and_fish_have_scripts_and_get_candidates(shell: str, arguments: str) -> None:
    """The answer to "tensile val" has the only command with that prefix."""
    script = tensile("completion", shell)
    assert (script.code, script.err) == (0, "")
    assert arguments in script.out
    assert f"_TENSILE_COMPLETE=complete_{shell}" in script.out
    result = tensile(
        _TENSILE_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS="tensile val",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert (result.code, result.err) == (0, "")
    assert "validate" in result.out
    assert "version" not in result.out


def for_kubectl(*arguments: str) -> list[str]:
    """Return the lines for kubectl's completion of the last of some words after `kubectl tensile`."""
    command = [sys.executable, "-c", "from tensile.cli.main import complete_kubectl as main; main()", *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.process
def test_kubectl_completes_the_words_of_the_plugin() -> None:
    """Cobra's protocol has one candidate a line, and a last line that turns file names on or off."""
    assert for_kubectl("pl") == ["plan", ":4"]
    assert for_kubectl("explain", "") == ["pod", "node", "claim", "service", ":4"]
    assert {"--plan", "--yes", ":4"} <= set(for_kubectl("uninstall", "--"))
    assert for_kubectl("plan", "-f", "") == [":0"]
    assert {"validate", "plan"} <= set(for_kubectl())


@pytest.mark.process
def test_special_characters_of_a_shell_have_no_effect_on_kubectl_completion() -> None:
    """Words are passed unchanged: quotes and blanks are part of a word."""
    assert for_kubectl("plan", "--lower", "it's $(here) \"", "--drai") == ["--drain", ":4"]
