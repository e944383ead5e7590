"""What the program says of itself, and what it answers to a command line that is wrong."""

import json
import subprocess
from pathlib import Path

import pytest
from clikit import PROGRAM, Completed, Files, environment, refused, tensile

import tensile as package
from tensile.cli.main import main

COMMANDS = (
    ("validate",),
    ("run",),
    ("plan",),
    ("apply",),
    ("drain",),
    ("schema",),
    ("demo",),
    ("explain",),
    ("explain", "pod"),
    ("simulate",),
    ("sandbox",),
    ("sandbox", "up"),
    ("sandbox", "status"),
    ("sandbox", "down"),
)


Capture = pytest.CaptureFixture[str]


def within(capsys: Capture, *arguments: str) -> Completed:
    """Run the program inside the tests' own process: starting one costs far more than reading a command line."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return Completed(int(str(ended.value.code)), *capsys.readouterr())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_knows_what_stands_everywhere(command: tuple[str, ...], capsys: Capture) -> None:
    """Its help shows the options that stand everywhere, and asking for the version does nothing else."""
    told = within(capsys, *command, "--help")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("Usage: ")
    assert f" {' '.join(command)} [OPTIONS]" in told.out
    assert [word for word in ("--log-level", "--log-format", "--version", "--help") if word not in told.out] == []
    assert within(capsys, *command, "--version") == (0, f"tensile {package.__version__}\n", "")


def test_the_program_tells_its_version_and_its_commands() -> None:
    """On stdout, with 0; there is a line for each command."""
    assert tensile("--version") == (0, f"tensile {package.__version__}\n", "")
    told = tensile("--help")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("Usage: tensile ")
    assert [command for command, *more in COMMANDS if f"\n  {command} " not in told.out and not more] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nope",), "--nope"),
        (("nope",), "'nope'"),
        (("sandbox", "nope"), "'nope'"),
        (("validate", "--nope"), "--nope"),
        (("validate", "more", "words"), "more words"),
        (("validate", "-f"), "'-f' requires an argument"),
        (("validate", "-f", ""), "-f: empty: name a topology file"),
        (("plan", "-o", "xml"), "'xml': take one of text, json, markdown"),
        (("plan", "--log-level", "loud"), "'--log-level': 'loud': take one of debug, info, warn, error"),
        (("run", "--log-format", "xml"), "'--log-format': 'xml': take one of text, json"),
        (("--log-level", "loud", "schema"), "'--log-level': 'loud': take one of debug, info, warn, error"),
        (("sandbox", "up", "--lowers", "many"), "--lowers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_command_line_is_a_line_and_exit_code_1(
    arguments: tuple[str, ...], words: str, capsys: Capture
) -> None:
    """The line names what is wrong with it; where it was not understood it says where to read on."""
    code, out, said = within(capsys, *arguments)
    assert (code, out) == (1, "")
    assert words in said
    assert said.count("\n") == 1
    assert said.endswith(" (see: tensile --help)\n") or said.startswith("-f: ")


@pytest.mark.parametrize("arguments", [("nope",), ("plan", "-o", "xml")])
def test_a_process_ends_with_1_after_a_wrong_command_line(arguments: tuple[str, ...]) -> None:
    """Its words are on stderr and nothing is on stdout."""
    assert arguments[-1] in refused(*arguments)


@pytest.mark.parametrize("command", [(), ("sandbox",)], ids=" ".join)
def test_no_command_at_all_shows_the_help(command: tuple[str, ...], capsys: Capture) -> None:
    """On stderr and with 1, so that a script with an empty variable in it does not go on."""
    assert within(capsys, *command) == (1, "", within(capsys, *command, "--help").out)


def test_the_schema_is_a_json_document() -> None:
    """It goes to stdout whole, and says of each field what it means."""
    told = tensile("schema")
    assert (told.code, told.err) == (0, "")
    schema = json.loads(told.out)
    assert {"apiVersion", "kind", "name", "lowers"} <= set(schema["properties"])
    assert all(field.get("description") for field in schema["properties"].values())


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
