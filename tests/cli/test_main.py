"""What the program says of itself, and what it answers to a command line that is wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clikit import PROGRAM, Files, environment, refused, tensile


@pytest.mark.parametrize("arguments", [("nope",), ("plan", "-o", "xml")])
def test_a_process_ends_with_1_after_a_wrong_command_line(arguments: tuple[str, ...]) -> None:
    """Its words are on stderr and nothing is on stdout."""
    assert arguments[-1] in refused(*arguments)


def test_the_schema_is_a_json_document() -> None:
    """It goes to stdout whole, and says of each field what it means."""
    told = tensile("schema")
    assert (told.code, told.err) == (0, "")
    schema = json.loads(told.out)
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
def test_a_start_imports_what_the_command_needs(arguments: tuple[str, ...], needed: set[str], tmp_path: Path) -> None:
    """A help text or a check in an editor is there at once."""
    Files(tmp_path).save()
    command = [sys.executable, "-c", START, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=True)
    modules = set(done.stderr.decode().split())
    assert "tensile.cli.program" in modules
    assert modules & (HEAVY | {"pydantic", "yaml"}) == needed


def test_a_log_level_before_the_command_holds_for_it(tmp_path: Path) -> None:
    """It is not another option than the one behind the command, which goes first."""
    path = str(Files(tmp_path).save())
    assert tensile("--log-level", "error", "--log-format", "text", "validate", "-f", path).code == 0
    assert tensile("--log-level", "error", "validate", "--log-level", "debug", "-f", path).code == 0


@pytest.mark.process
def test_output_that_cannot_be_written_is_an_error() -> None:
    """A full disk is told, and no pipeline takes half a document for a whole one."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [PROGRAM, "schema"], stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"input/output: No space left on device\n")


@pytest.mark.process
def test_a_defect_is_told_in_a_line(tmp_path: Path) -> None:
    """An installation in which a library is broken leads to no traceback but to what to report."""
    (tmp_path / "uvloop.py").write_text("raise RuntimeError('broken on purpose')\n")
    said = refused("run", "-f", Files(tmp_path).save(), PYTHONPATH=str(tmp_path))
    words = (
        "unexpected error, a defect of tensile: please report this line: RuntimeError: broken on purpose at uvloop.py:1"
    )
    assert said == f"{words}\n"


def test_kubectl_runs_it_as_a_plugin(tmp_path: Path) -> None:
    """By that name it speaks of itself as kubectl's users call it."""
    plugin = tmp_path / "kubectl-tensile"
    plugin.symlink_to(PROGRAM)
    done = subprocess.run([plugin, "plan", "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage: kubectl tensile plan [OPTIONS]\n")
    assert "\n  kubectl tensile plan -f topology.yaml\n" in done.stdout
    wrong = subprocess.run([plugin, "plan", "-x"], capture_output=True, text=True, timeout=60, check=False)
    assert (wrong.returncode, wrong.stderr) == (1, "unknown option -x (see: kubectl tensile plan --help)\n")
