"""Tests of the program itself: its errors, its schema, its imports, and its use as a kubectl plugin."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clikit import PROGRAM, Files, environment, run_failing, tensile


@pytest.mark.parametrize("arguments", [("nope",), ("plan", "-o", "xml")])
def test_a_wrong_command_line_gives_exit_code_1(arguments: tuple[str, ...]) -> None:
    """The error is on stderr, and stdout is empty."""
    assert arguments[-1] in run_failing(*arguments)


def test_the_schema_is_a_json_document() -> None:
    """It is printed to stdout completely, and describes each field."""
    result = tensile("schema")
    assert (result.code, result.err) == (0, "")
    schema = json.loads(result.out)
    assert {"apiVersion", "kind", "name", "lowers"} <= set(schema["properties"])
    assert all(field.get("description") for field in schema["properties"].values())


START = """
import sys, tensile.__main__ as program
try:
    program.main()
except SystemExit:
    print(*(name for name, module in sys.modules.items() if module), file=sys.stderr)
"""
HEAVY = {"aiohttp", "asyncio", "cryptography", "deepdiff", "kubernetes", "rich", "ssl", "structlog", "tensile.engine"}


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [(("--version",), set()), (("--help",), set()), (("validate", "-f", "topology.yaml"), {"pydantic", "yaml"})],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_only_needed_modules_are_imported(arguments: tuple[str, ...], needed: set[str], tmp_path: Path) -> None:
    """Help texts and checks in an editor appear without delay, because a command imports only what it needs."""
    Files(tmp_path).save()
    command = [sys.executable, "-c", START, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=True)
    modules = set(done.stderr.decode().split())
    assert "tensile.cli.program" in modules
    assert modules & (HEAVY | {"pydantic", "yaml"}) == needed


def test_a_log_level_before_the_command_applies_to_it(tmp_path: Path) -> None:
    """The option may also follow the command, where it overrides the first one."""
    path = str(Files(tmp_path).save())
    assert tensile("--log-level", "error", "--log-format", "text", "validate", "-f", path).code == 0
    assert tensile("--log-level", "error", "validate", "--log-level", "debug", "-f", path).code == 0


@pytest.mark.process
def test_output_that_cannot_be_written_is_an_error() -> None:
    """A full disk is reported, so that no pipeline accepts half a document."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [PROGRAM, "schema"], stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"input/output: No space left on device\n")


@pytest.mark.process
def test_an_internal_error_is_reported_in_one_line(tmp_path: Path) -> None:
    """A broken library leads to a line for a bug report instead of a traceback."""
    (tmp_path / "uvloop.py").write_text("raise RuntimeError('broken on purpose')\n")
    error = run_failing("run", "-f", Files(tmp_path).save(), PYTHONPATH=str(tmp_path))
    message = (
        "unexpected error, a defect of tensile: please report this line: RuntimeError: broken on purpose at uvloop.py:1"
    )
    assert error == f"{message}\n"


def test_kubectl_can_run_the_program_as_a_plugin(tmp_path: Path) -> None:
    """Under that name its help and errors contain `kubectl tensile`."""
    plugin = tmp_path / "kubectl-tensile"
    plugin.symlink_to(PROGRAM)
    done = subprocess.run([plugin, "plan", "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: kubectl tensile plan [OPTIONS]\n")
    assert "\n  kubectl tensile plan -f topology.yaml\n" in done.stdout
    wrong = subprocess.run([plugin, "plan", "-x"], capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stderr) == (1, "unknown option -x (see: kubectl tensile plan --help)\n")
