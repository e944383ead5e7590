"""Tests of which topology file a command reads, and of its errors about unusable files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from clikit import Capture, Files, run_failing, run_in_process, tensile

from tensile.cli.options import TopologyOptions

ADVICE = "create it, or name another with -f"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A topology in a separate directory."""
    (tmp_path / "given").mkdir()
    return Files(tmp_path / "given")


def test_the_file_is_named_by_option_variable_or_default_in_this_order(files: Files, tmp_path: Path) -> None:
    """The first of them that is set wins, and the output names the file."""
    given, named = files.save(), files.save(name="named.yaml")
    files.save(lambda topology: topology.update(lowers=[]), name="other.yaml")
    variable = {"TENSILE_TOPOLOGY": "other.yaml"}
    cwd = files.directory
    assert tensile("validate", cwd=cwd).out == "topology.yaml: valid: topology files with 1 lower cluster\n"
    assert tensile("validate", cwd=cwd, **variable).out == "other.yaml: valid: topology files with 0 lower clusters\n"
    assert tensile("validate", "-f", named, cwd=cwd, **variable).out.startswith(f"{named}: valid: ")
    assert tensile("validate", cwd=cwd, TENSILE_TOPOLOGY="").out.startswith("topology.yaml: valid: ")
    assert ADVICE in run_failing("validate", cwd=tmp_path)
    assert given.exists()


def test_options_of_a_configmap_are_repeated_in_suggested_commands() -> None:
    """They can be pasted into another command; a file needs none of them."""
    options = TopologyOptions(None, "a/b", None, "my upper", "east", allow_exec_plugins=False)
    given = "--configmap a/b --kubeconfig 'my upper' --context east"
    assert options.of_configmap() == given
    assert options._replace(allow_exec_plugins=True).of_configmap() == f"{given} --allow-exec-plugins"
    assert TopologyOptions("t.yaml", None, None, None, None, allow_exec_plugins=False).of_configmap() == ""


@pytest.mark.parametrize("command", ["validate", "apply"])
def test_standard_input_is_read_by_commands_that_end(files: Files, command: str) -> None:
    """Errors name it, with line and column."""
    text = files.save().read_bytes() + b"nonsense: 1\n"
    line = text.count(b"\n")
    error = run_failing(command, "-f", "-", stdin=text)
    assert error.startswith(f"standard input:{line}:1: nonsense: ")


def test_a_valid_topology_on_standard_input_is_accepted(files: Files) -> None:
    """It is as good as a file."""
    result = tensile("validate", "-f", "-", stdin=files.save().read_bytes())
    assert (result.code, result.out) == (0, "standard input: valid: topology files with 1 lower cluster\n")


def test_paths_are_relative_to_the_topology_file(files: Files, tmp_path: Path) -> None:
    """The working directory does not matter, except for standard input."""
    path = files.save(lambda topology: topology["upper"].update(kubeconfig="missing"))
    error = run_failing("plan", "-f", "given/topology.yaml", cwd=tmp_path)
    assert error.startswith(f"upper: {files.directory}/missing: cannot be read (No such file or directory): ")
    error = run_failing("apply", "-f", "-", stdin=path.read_bytes(), cwd=tmp_path)
    assert error.startswith(f"upper: {tmp_path}/missing: cannot be read (No such file or directory): ")


def test_run_refuses_standard_input(files: Files) -> None:
    """The engine watches its file and cannot watch standard input; the error contains the remedy."""
    error = run_failing("run", "-f", "-", stdin=files.save().read_bytes())
    assert error == "run watches a file and cannot read standard input: name a file with -f\n"


def _missing(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _binary(path: Path) -> None:
    path.write_bytes(b"name: \xff\xfe\x00\x01")


def _large(path: Path) -> None:
    path.write_bytes(b"# nothing\n" * 200_000)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("command", "spoil", "message"),
    [
        ("validate", _missing, f"no such file: {ADVICE}"),
        ("validate", _directory, "not a file: name a topology file"),
        ("validate", _binary, "this byte is not valid UTF-8; save the file as UTF-8"),
        ("validate", _large, "larger than 1048576 bytes; check that it is a topology"),
        ("validate", _loop, "cannot be read: Too many levels of symbolic links: fix that, or name another with -f"),
        ("run", _missing, f"no such file: {ADVICE}"),
        ("run", _directory, "not a regular file: use the path of a topology file"),
        ("run", _large, "larger than 1048576 bytes; check that it is a topology"),
    ],
)
def test_an_unusable_file_is_named_with_the_remedy(
    files: Files, command: str, spoil: Callable[[Path], None], message: str
) -> None:
    """Commands that read the file once and the one that watches it report the same errors."""
    path = files.save()
    spoil(path)
    error = run_failing(command, "-f", path)
    assert error.startswith(f"{path}:")
    assert message in error


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_named(files: Files) -> None:
    """The error has the operating system's reason and the remedy."""
    path = files.save()
    path.chmod(0)
    assert run_failing("validate", "-f", path).startswith(f"{path}: cannot be read: Permission denied: fix that")


def test_an_endless_file_is_refused() -> None:
    """A device without an end is refused instead of being read indefinitely."""
    assert "/dev/zero:1:1: " in run_failing("validate", "-f", "/dev/zero")


def test_all_errors_of_a_file_are_reported_at_once(files: Files) -> None:
    """Each has a line with its position and key, and `run` reports the same as `validate`."""

    def spoil(topology: dict[str, object]) -> None:
        """Make two mistakes."""
        topology.update(name="Not A Label", telemetri={})

    path = files.save(spoil)
    error = run_failing("validate", "-f", path)
    keys = [line.removeprefix(f"{path}:").split(": ")[1] for line in error.splitlines()]
    assert {"name", "telemetri"} <= set(keys)
    assert run_failing("run", "-f", path) == error


def test_an_enabled_feature_gives_no_message(files: Files) -> None:
    """Only the result is printed."""
    result = tensile("validate", "-f", files.save(lambda topology: topology.update(extender={"enabled": True})))
    assert result.code == 0
    assert result.out.endswith(": valid: topology files with 1 lower cluster\n")
    assert result.err == ""


def test_valid_but_doubtful_settings_are_warnings(files: Files, capsys: Capture) -> None:
    """The file stays valid, and the warning is printed to stderr."""
    file = files.save(lambda topology: topology.update(webhook={"enabled": True}))
    result = tensile("validate", "-f", file)
    assert result.code == 0
    assert ": valid: topology files with" in result.out
    assert ": webhook.enabled: the upper cluster cannot call the webhook without an address" in result.err
    assert result.err.startswith("warning: ")
    planned = run_in_process(capsys, "plan", "-f", file, "--lower", "none")
    assert planned.err.startswith(f"{result.err}--lower none: no lower cluster of the topology")
