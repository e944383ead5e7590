"""The program in odd surroundings: streams, encodings, a directory that is gone, Ctrl-C, options without a value."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import yaml
from clikit import PROGRAM, Completed, Files, checked, environment, refused, tensile

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {who: "☃ é"}, labels: {a: "y", commit: "12e45"}}
spec:
  containers: [{name: c, image: app:1, env: [{name: N, value: "1e3"}]}]
"""


def shell(script: str, *words: str | Path, **variables: str) -> Completed:
    """Run the program by a shell, which knows it as "$0"."""
    command = ["sh", "-c", script, PROGRAM, *map(str, words)]
    done = subprocess.run(command, env=environment(**variables), capture_output=True, timeout=60, check=False)
    return checked(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
@pytest.mark.process
def test_objects_are_utf_8_whatever_the_locale(tmp_path: Path, encoding: str) -> None:
    """As kubectl's: whoever reads them next takes them for that."""
    told = tensile("mutate", "-f", "-", stdin=POD.encode(), cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert told.code == 0
    assert yaml.safe_load(told.out)["pod"] == yaml.safe_load(POD)
    assert "☃ é" in told.out


def test_text_of_a_pod_stays_text_for_kubectl(tmp_path: Path) -> None:
    """What it would take for a switch or a number stands in quotes, and is read again as it was."""
    told = tensile("mutate", "-f", "-", stdin=POD.encode(), cwd=tmp_path)
    assert all(line in told.out for line in (' a: "y"\n', ' commit: "12e45"\n', ' value: "1e3"\n'))
    again = "".join(line.removeprefix("  ") for line in told.out.partition("mutated:\n")[2].splitlines(keepends=True))
    both = tensile("mutate", "-f", "-", "-o", "json", stdin=again.partition("lower:")[0].encode(), cwd=tmp_path)
    assert orjson.loads(both.out)["pod"] == yaml.safe_load(told.out)["mutated"]


@pytest.mark.process
def test_a_closed_output_is_no_defect(tmp_path: Path) -> None:
    """The code is as ever; what is said on the other stream too."""
    file = Files(tmp_path).save()
    assert shell('exec "$0" validate -f "$1" >&-', file) == (0, "", "")
    assert shell('exec "$0" doctor -f "$1" >&-', file).err == ""
    assert shell('exec "$0" validate -f gone 2>&-', file) == (1, "", "")


@pytest.mark.process
def test_a_working_directory_that_is_gone_is_said_to_be() -> None:
    """Every name starts from it."""
    told = shell('d=$(mktemp -d) && cd "$d" && rmdir "$d" && exec "$0" run')
    assert (told.code, told.err) == (
        1,
        "the working directory: No such file or directory: change to one that exists\n",
    )


@pytest.mark.process
def test_ctrl_c_before_the_program_is_there_is_no_traceback(tmp_path: Path) -> None:
    """It comes while modules are read, for a tenth of a second: here one of them brings it."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    command = [sys.executable, "-m", "tensile", "--version"]
    variables = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    done = subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)
    assert checked(done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_words_of_a_file_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    """Errors are lines of their own, whatever is in them."""
    told = refused("validate", "-f", "gone\x1b[2J\nvalid", cwd=tmp_path)
    assert told.splitlines() == [
        "gone\\u001b[2J",
        "valid: no such file: create it, or name another with -f or $TENSILE_TOPOLOGY",
    ]


@pytest.mark.parametrize("command", ["mutate", "simulate"])
def test_pods_and_topologies_that_are_not_named_are_asked_for(tmp_path: Path, command: str) -> None:
    """An empty name is a variable that was not set: nothing else is taken in its place."""
    (tmp_path / "pod.yaml").write_text(POD)
    assert refused(command, "-f", "", cwd=tmp_path).startswith("-f is empty: name a file with a pod")
    told = refused(command, "-f", "pod.yaml", "--topology", "", cwd=tmp_path)
    assert told == "--topology is empty: name a topology file, or omit the option\n"
    assert "-f and --topology cannot both read" in refused(command, "-f", "-", "--topology", "-", cwd=tmp_path)
    assert "-f and --topology cannot both read" in refused(command, "-f", "-", cwd=tmp_path, TENSILE_TOPOLOGY="-")


@pytest.mark.parametrize("command", ["mutate", "simulate"])
def test_a_pod_from_standard_input_is_refused_by_its_place(tmp_path: Path, command: str) -> None:
    """Under the same name in both, and bytes that are no text are not made into some."""
    topology = Files(tmp_path).save()
    given = (command, "-f", "-", "--topology", topology)
    assert refused(*given, stdin=b"a: [").startswith("standard input:1:4: a: ")
    assert "standard input: a byte is not valid UTF-8" in refused(*given, stdin=b"a: \xff")
    wrong = POD.replace("image: app:1", "resources: {requests: {cpu: one}}").encode()
    assert "standard input:5:" in refused(*given, stdin=wrong)
    assert 'requests.cpu: "one" is not a quantity; write one such as 500m' in refused(*given, stdin=wrong)


@pytest.mark.parametrize("command", ["mutate", "simulate"])
def test_json_may_have_a_character_in_two_halves(tmp_path: Path, command: str) -> None:
    """As Python and JavaScript write those beyond the first 65,536."""
    pod = orjson.dumps({**yaml.safe_load(POD), "note": "NOTE"}).replace(b"NOTE", rb"\ud83d\ude00")
    told = tensile(command, "-f", "-", "--topology", Files(tmp_path).save(), stdin=pod)
    assert "not valid YAML" not in told.err
    assert command == "simulate" or "\U0001f600" in told.out


@pytest.mark.parametrize("option", ["--kubeconfig", "--key"])
def test_options_of_a_configmap_that_are_empty_are_asked_for(option: str) -> None:
    """The working directory is no kubeconfig."""
    assert (
        refused("doctor", "--configmap", "a/b", option, "") == f"{option} is empty: give a value, or omit the option\n"
    )


def test_outside_of_a_pod_the_option_is_named_where_there_is_no_file() -> None:
    """A topology in a ConfigMap says nothing of how the cluster around it is reached."""
    for command in ("doctor", "status", "run"):
        told = refused(command, "--configmap", "a/b")
        assert "name a kubeconfig with --kubeconfig" in told
        assert "upper.kubeconfig" not in told


def test_what_is_told_of_a_pod_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    """Its fields stand in the lines beside the output."""
    pod = POD.replace("spec:\n", 'spec:\n  nodeName: "x\\e[2J"\n')
    told = tensile("mutate", "-f", "-", "-o", "json", stdin=pod.encode(), cwd=tmp_path)
    assert told.code == 0
    assert told.err.startswith("x\\u001b[2J is not a virtual node: ")
