"""Tests of the program in unusual environments: closed streams, encodings, a deleted directory, empty options."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml
from clikit import PROGRAM, Completed, Files, completed, environment, run_failing, tensile

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {who: "☃ é"}, labels: {a: "y", commit: "12e45"}}
spec:
  containers: [{name: c, image: app:1, env: [{name: N, value: "1e3"}]}]
"""


def shell(script: str, *arguments: str | Path, **variables: str) -> Completed:
    """Run the program by a shell, in which it is "$0"."""
    command = ["sh", "-c", script, PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, timeout=60, check=False)
    return completed(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
@pytest.mark.process
def test_objects_are_utf_8_in_every_locale(tmp_path: Path, encoding: str) -> None:
    """Kubectl's are too, and the next program reads them as UTF-8."""
    result = tensile("mutate", "-f", "-", stdin=POD.encode(), cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert result.code == 0
    assert yaml.safe_load(result.out)["pod"] == yaml.safe_load(POD)
    assert "☃ é" in result.out


def test_strings_of_a_pod_stay_strings_for_kubectl(tmp_path: Path) -> None:
    """Strings that look like booleans or numbers are quoted, and are read back unchanged."""
    result = tensile("mutate", "-f", "-", stdin=POD.encode(), cwd=tmp_path)
    assert all(line in result.out for line in (' a: "y"\n', ' commit: "12e45"\n', ' value: "1e3"\n'))
    again = "".join(line.removeprefix("  ") for line in result.out.partition("mutated:\n")[2].splitlines(keepends=True))
    both = tensile("mutate", "-f", "-", "-o", "json", stdin=again.partition("lower:")[0].encode(), cwd=tmp_path)
    assert orjson.loads(both.out)["pod"] == yaml.safe_load(result.out)["mutated"]


@pytest.mark.process
def test_a_closed_output_is_no_error(tmp_path: Path) -> None:
    """The exit code is the usual one, and no message appears on the other stream."""
    file = Files(tmp_path).save()
    assert shell('exec "$0" validate -f "$1" >&-', file) == (0, "", "")
    assert shell('exec "$0" doctor -f "$1" >&-', file).err == ""
    assert shell('exec "$0" validate -f gone 2>&-', file) == (1, "", "")


@pytest.mark.process
def test_a_deleted_working_directory_is_reported() -> None:
    """Every relative path depends on it."""
    result = shell('d=$(mktemp -d) && cd "$d" && rmdir "$d" && exec "$0" run')
    assert (result.code, result.err) == (
        1,
        "the working directory: No such file or directory: change to one that exists\n",
    )


@pytest.mark.process
def test_ctrl_c_during_imports_gives_no_traceback(tmp_path: Path) -> None:
    """Imports take a tenth of a second, and a module raises the interrupt here."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-m", "tensile", "--version"]
    variables = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)
    assert completed(done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_escape_codes_in_a_file_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Errors are printed on separate lines with such characters escaped."""
    error = run_failing("validate", "-f", "gone\x1b[2J\nvalid", cwd=tmp_path)
    assert error.splitlines() == [
        "gone\\u001b[2J",
        "valid: no such file: create it, or name another with -f or $TENSILE_TOPOLOGY",
    ]


@pytest.mark.parametrize("command", ["mutate", "simulate"])
def test_empty_names_of_pod_and_topology_files_are_refused(tmp_path: Path, command: str) -> None:
    """An empty name is an unset variable, and no other file is read instead."""
    (tmp_path / "pod.yaml").write_text(POD)
    assert run_failing(command, "-f", "", cwd=tmp_path).startswith("-f is empty: name a file with a pod")
    error = run_failing(command, "-f", "pod.yaml", "--topology", "", cwd=tmp_path)
    assert error == "--topology is empty: name a topology file, or omit the option\n"
    assert "-f and --topology cannot both read" in run_failing(command, "-f", "-", "--topology", "-", cwd=tmp_path)
    assert "-f and --topology cannot both read" in run_failing(command, "-f", "-", cwd=tmp_path, TENSILE_TOPOLOGY="-")


@pytest.mark.parametrize("command", ["mutate", "simulate"])
def test_an_invalid_pod_on_standard_input_is_reported_with_its_position(tmp_path: Path, command: str) -> None:
    """Both commands use the same name for the input, and refuse bytes that are not UTF-8."""
    topology = Files(tmp_path).save()
    given = (command, "-f", "-", "--topology", topology)
    assert run_failing(*given, stdin=b"a: [").startswith("standard input:1:4: a: ")
    assert "standard input: a byte is not valid UTF-8" in run_failing(*given, stdin=b"a: \xff")
    wrong = POD.replace("image: app:1", "resources: {requests: {cpu: one}}").encode()
    assert "standard input:5:" in run_failing(*given, stdin=wrong)
    assert 'requests.cpu: "one" is not a quantity; write one such as 500m' in run_failing(*given, stdin=wrong)


@pytest.mark.parametrize("command", ["mutate", "simulate"])
def test_json_may_have_surrogate_pairs(tmp_path: Path, command: str) -> None:
    """Python and JavaScript write characters beyond the first 65,536 so."""
    pod = orjson.dumps({**yaml.safe_load(POD), "note": "NOTE"}).replace(b"NOTE", rb"\ud83d\ude00")
    result = tensile(command, "-f", "-", "--topology", Files(tmp_path).save(), stdin=pod)
    assert "not valid YAML" not in result.err
    assert command == "simulate" or "\U0001f600" in result.out


@pytest.mark.parametrize("option", ["--kubeconfig", "--key"])
def test_empty_options_of_a_configmap_are_refused(option: str) -> None:
    """An empty value does not select the working directory as kubeconfig."""
    assert (
        run_failing("doctor", "--configmap", "a/b", option, "")
        == f"{option} is empty: give a value, or omit the option\n"
    )


def test_outside_of_a_pod_the_error_names_the_kubeconfig_option() -> None:
    """A topology in a ConfigMap does not define how its own cluster is reached."""
    for command in ("doctor", "status", "run"):
        error = run_failing(command, "--configmap", "a/b")
        assert "name a kubeconfig with --kubeconfig" in error
        assert "upper.kubeconfig" not in error


def test_escape_codes_in_a_pod_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Messages on stderr contain fields of the pod, with such characters escaped."""
    pod = POD.replace("spec:\n", 'spec:\n  nodeName: "x\\e[2J"\n')
    result = tensile("mutate", "-f", "-", "-o", "json", stdin=pod.encode(), cwd=tmp_path)
    assert result.code == 0
    assert result.err.startswith("x\\u001b[2J is not a virtual node: ")
