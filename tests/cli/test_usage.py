"""Tests of usage errors: one line with the mistake, the correction, and the command's help."""

from pathlib import Path

import pytest
from clikit import Capture, Files, run_in_process, tensile

from tensile.cli.plan import kinds_named


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--nope", "unknown option --nope (see: tensile --help)"),
        ("pln", "unknown command 'pln': did you mean plan? (see: tensile --help)"),
        ("sandbox dwn", "unknown command 'dwn': did you mean down? (see: tensile sandbox --help)"),
        ("start", "unknown command 'start': did you mean run? (see: tensile --help)"),
        ("sandbox start", "unknown command 'start': did you mean up? (see: tensile sandbox --help)"),
        (
            "logs web",
            "unknown command 'logs': use kubectl logs: pods and nodes are in the upper cluster (see: tensile --help)",
        ),
        (
            "cordon lower-a",
            (
                "unknown command 'cordon': set maintenance: cordon for the lower cluster in the topology "
                "(see: tensile --help)"
            ),
        ),
        ("sandbox logs", "unknown command 'logs'; there are: up, status, down (see: tensile sandbox --help)"),
        ("help xyz", "unknown command 'xyz' (see: tensile --help)"),
        (
            "explain deployment",
            "unknown command 'deployment'; there are: pod, node, claim, service (see: tensile explain --help)",
        ),
        ("explain -f t.yaml pod x", "unknown option -f: put it after the command (see: tensile explain --help)"),
        ("-f t.yaml plan", "unknown option -f: put it after the command (see: tensile --help)"),
        ("plan --ouput json", "unknown option --ouput: did you mean --out or --output? (see: tensile plan --help)"),
        ("validate -x", "unknown option -x (see: tensile validate --help)"),
        ("schema topology", "unexpected 'topology': the command takes no such argument (see: tensile schema --help)"),
        ("plan topology.yml", "unexpected 'topology.yml': did you mean -f topology.yml? (see: tensile plan --help)"),
        ("mutate pod.json", "unexpected 'pod.json': did you mean -f pod.json? (see: tensile mutate --help)"),
        ("plan -f a b.yaml", "unexpected 'b.yaml': the command takes no such argument (see: tensile plan --help)"),
        ("run -", "unexpected '-': did you mean -f -? (see: tensile run --help)"),
        ("mutate", "-f FILE is missing (see: tensile mutate --help)"),
        ("explain pod", "NAME is missing (see: tensile explain pod --help)"),
        ("validate -f", "-f: give a value: -f FILE (see: tensile validate --help)"),
        ("plan --drain -f a.yaml", "--drain: give a value: --drain NAME (see: tensile plan --help)"),
        ("--log-level", "--log-level: give a value: --log-level LEVEL (see: tensile --help)"),
        ("apply --force=1", "--force takes no value (see: tensile apply --help)"),
        ("plan -o xml", "--output: 'xml' is not one of text, json, markdown (see: tensile plan --help)"),
        ("run --log-format xml", "--log-format: 'xml' is not one of text, json (see: tensile run --help)"),
        ("--log-level x schema", "--log-level: 'x' is not one of debug, info, warn, error (see: tensile --help)"),
        ("completion tcsh", "SHELL: 'tcsh' is not one of bash, zsh, fish (see: tensile completion --help)"),
        ("sandbox up --lowers many", "--lowers: 'many' is not a whole number (see: tensile sandbox up --help)"),
        ("simulate --replicas 0", "--replicas: 0 is too small: 1 is the least (see: tensile simulate --help)"),
        ("run --probes 70000", "--probes: 70000 is too large: 65535 is the most (see: tensile run --help)"),
    ],
    ids=lambda value: value.partition(" (")[0],
)
def test_a_wrong_command_line_is_one_line_with_exit_code_1(line: str, message: str, capsys: Capture) -> None:
    """The line is on stderr, and stdout is empty."""
    assert run_in_process(capsys, *line.split()) == (1, "", f"{message}\n")


@pytest.mark.parametrize("arguments", ["pod web", "po web", "pods web", "pod/web", "svc web", "pvc/web", "no web"])
def test_a_kind_can_be_named_as_in_kubectl(arguments: str, capsys: Capture) -> None:
    """Each form of the kind is accepted, so the missing topology file is the error."""
    assert run_in_process(capsys, "explain", *arguments.split(), "-f", "none.yaml").err.startswith(
        "none.yaml: no such file"
    )


def test_an_argument_that_is_a_file_is_suggested_as_the_topology(tmp_path: Path, capsys: Capture) -> None:
    """The name of the file does not matter."""
    path = tmp_path / "topology"
    path.touch()
    assert f"did you mean -f {path}?" in run_in_process(capsys, "plan", str(path)).err


def test_help_is_shown_despite_other_mistakes(capsys: Capture) -> None:
    """The user may have added --help after an error."""
    assert run_in_process(capsys, "plan", "topology.yaml", "--help") == run_in_process(capsys, "plan", "--help")


def test_an_empty_file_name_is_refused(capsys: Capture) -> None:
    """A script with an empty variable must not read another file than intended."""
    assert run_in_process(capsys, "validate", "-f", "").err == "-f is empty: name a topology file, or omit the option\n"


@pytest.mark.parametrize("option", ["--drain", "--lower"])
def test_an_unknown_lower_is_refused_before_any_cluster_is_contacted(option: str, tmp_path: Path) -> None:
    """The error lists the lowers of the topology."""
    assert tensile("plan", "-f", Files(tmp_path).save(), option, "lower-x") == (
        1,
        "",
        f"{option} lower-x: no lower cluster of the topology; there are: below\n",
    )


def test_an_unknown_kind_of_a_plan_is_refused_with_the_known_ones(tmp_path: Path, capsys: Capture) -> None:
    """No cluster is contacted; kinds may be named as in kubectl."""
    result = run_in_process(capsys, "plan", "-f", str(tmp_path / "none.yaml"), "--kind", "pods", "--kind", "widget")
    assert result.err.startswith("--kind widget: no kind of a plan; there are: ClusterRole, ConfigMap, EndpointSlice, ")
    assert kinds_named(["pods", "Secret", "POD"]) == ("Pod", "Secret")


@pytest.mark.parametrize("command", ["status", "rollback --list"])
def test_a_missing_file_is_reported_with_the_location_of_its_history(command: str, capsys: Capture) -> None:
    """A running engine continues with its text, which the history has."""
    first, second = run_in_process(capsys, *command.split(), "-f", "gone.yaml").err.splitlines()
    assert first == "gone.yaml: no such file: create it, or name another with -f or $TENSILE_TOPOLOGY"
    assert "ConfigMap kube-system/tensile-NAME-history of the upper cluster has its text" in second
