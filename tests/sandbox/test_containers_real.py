"""Tests of pods whose containers run as local processes: logs, input, exits, restarts, and removal."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sandbox_waiting import until

from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

LOWER = "lower-a"
SPACE = "containers"
RUNS = {"sandbox.tensile-kube.io/run": "command"}
ASK = 'echo "round in $POD_NAMESPACE for $WHO"; read line; echo "got $line"; echo bad >&2; exit 3'
LIMIT = 30


class LowerNamespace:
    """A namespace of the lower cluster, with kubectl for it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.cluster = sandbox.clusters[LOWER]
        self.sandbox = sandbox

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl until it ends."""
        return self.sandbox.kubectl("-n", SPACE, *arguments, cluster=LOWER, stdin=stdin, limit=LIMIT)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl with pipes."""
        command = self.sandbox.kubectl_command("-n", SPACE, *arguments, cluster=LOWER)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pod(self, name: str, script: str, *, policy: str = "Always", runs: bool = True, **container: Any) -> None:
        """Create a pod of one container that runs a shell script, and wait until it has started."""
        main = {"name": "main", "image": "none", "command": ["sh", "-c", script], **container}
        spec = {"serviceAccountName": "default", "restartPolicy": policy, "containers": [main]}
        meta = {"name": name, "annotations": RUNS if runs else {}}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        made = self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        assert made.returncode == 0, made.stderr
        until(lambda: self.get(name).get("phase", "Pending") != "Pending", f"pod {name} starts")

    def get(self, name: str) -> dict[str, Any]:
        """Return a pod's status, or {} if the pod does not exist."""
        completed = self.kubectl("get", "pod", name, "-o", "json")
        return dict(json.loads(completed.stdout)["status"]) if completed.returncode == 0 else {}

    def main(self, name: str) -> dict[str, Any]:
        """Return the status of a pod's only container."""
        (status,) = self.get(name)["containerStatuses"]
        return dict(status)

    def logs(self, name: str, *flags: str) -> str:
        """Return the output of kubectl logs."""
        return self.kubectl("logs", name, *flags).stdout

    def files(self, name: str) -> list[Path]:
        """Return the folders that a pod may have."""
        return [self.cluster.work / SPACE / name, self.cluster.logs / SPACE / name]


@pytest.fixture(scope="module")
def lower_namespace(sandbox: Sandbox) -> Iterator[LowerNamespace]:
    """Create the namespace, and delete it with its content at the end."""
    found = LowerNamespace(sandbox)
    sandbox.kubectl("create", "namespace", SPACE, cluster=LOWER)
    until(lambda: found.kubectl("get", "serviceaccount", "default").returncode == 0, "the namespace's account")
    yield found
    sandbox.kubectl("delete", "namespace", SPACE, "--wait=false", cluster=LOWER)


def next_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a command's output."""
    assert process.stdout is not None
    return process.stdout.readline()


def write_line(process: subprocess.Popen[str], text: str) -> None:
    """Write a line to a command's input."""
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def test_a_container_runs_its_command(lower_namespace: LowerNamespace) -> None:
    """Its output is its log, its variables include those of the pod, and it does not restart while it waits."""
    lower_namespace.pod("speaks", ASK, stdin=True, env=[{"name": "WHO", "value": "you"}])
    until(lambda: lower_namespace.logs("speaks"), "the first line")
    assert lower_namespace.logs("speaks") == f"round in {SPACE} for you\n"
    assert lower_namespace.main("speaks")["restartCount"] == 0


def test_no_command_runs_without_the_annotation(lower_namespace: LowerNamespace) -> None:
    """A command of a foreign pod is not run on this machine unless the annotation requests it."""
    lower_namespace.pod("silent", "echo run > ran; sleep 1000", runs=False)
    assert lower_namespace.logs("silent") == f"main started in pod {SPACE}/silent\n"
    assert lower_namespace.kubectl("exec", "silent", "--", "ls").stdout == ""


def test_attach_forwards_input_and_the_container_restarts(lower_namespace: LowerNamespace) -> None:
    """The process receives a typed line; its exit is visible as a restart, an exit code and previous logs."""
    lower_namespace.pod("answers", ASK, stdin=True)
    with lower_namespace.start("attach", "-i", "--quiet", "answers") as attached:
        write_line(attached, "abc")
        assert next_line(attached) == "got abc\n"
        attached.communicate(timeout=LIMIT)
    assert attached.returncode == 0
    until(lambda: lower_namespace.main("answers")["restartCount"] == 1, "the restart")
    assert lower_namespace.main("answers")["lastState"]["terminated"]["exitCode"] == 3
    assert sorted(lower_namespace.logs("answers", "--previous").splitlines()) == [
        "bad",
        "got abc",
        f"round in {SPACE} for ",
    ]
    until(lambda: lower_namespace.logs("answers"), "the first line of the second round")
    assert lower_namespace.logs("answers") == f"round in {SPACE} for \n"


def test_previous_logs_are_not_found_before_the_first_restart(lower_namespace: LowerNamespace) -> None:
    """Kubectl gets the same error as from a real node."""
    lower_namespace.pod("young", "sleep 1000")
    completed = lower_namespace.kubectl("logs", "young", "--previous")
    assert completed.returncode == 1
    assert 'previous terminated container "main" in pod "young" not found' in completed.stderr


def test_a_followed_log_ends_with_the_container(lower_namespace: LowerNamespace) -> None:
    """`kubectl logs -f` shows one run until its end, and not the next one."""
    lower_namespace.pod("followed", ASK, stdin=True)
    with (
        lower_namespace.start("logs", "-f", "followed") as follower,
        lower_namespace.start("attach", "-i", "--quiet", "followed") as typed,
    ):
        assert next_line(follower) == f"round in {SPACE} for \n"
        write_line(typed, "end")
        rest, _ = follower.communicate(timeout=LIMIT)
        typed.communicate(timeout=LIMIT)
    assert sorted(rest.splitlines()) == ["bad", "got end"]


def test_a_followed_log_is_complete(lower_namespace: LowerNamespace) -> None:
    """Output just before the container's end is shown, and that of a new run is not."""
    lower_namespace.pod("hasty", "echo begun; read line; seq 1 20000", stdin=True)
    with (
        lower_namespace.start("logs", "-f", "hasty") as follower,
        lower_namespace.start("attach", "-i", "--quiet", "hasty") as typed,
    ):
        assert next_line(follower) == "begun\n"
        write_line(typed, "end")
        rest, _ = follower.communicate(timeout=LIMIT)
        typed.communicate(timeout=LIMIT)
    assert rest.splitlines() == [str(number) for number in range(1, 20001)]


def test_a_container_ends_with_its_command(lower_namespace: LowerNamespace) -> None:
    """A process outside the command's group with its output open delays nothing, and the log is complete."""
    apart = "setsid sh -c 'echo $$ > pid; exec sleep 100' & until [ -s pid ]; do sleep 0.02; done"
    lower_namespace.pod("outlived", f"{apart}; seq 1 9000", policy="Never")
    until(lambda: lower_namespace.get("outlived")["phase"] == "Succeeded", "the end")
    os.kill(
        int((lower_namespace.files("outlived")[0] / "main" / "pid").read_text()), signal.SIGKILL
    )  # fails if it has ended
    assert lower_namespace.logs("outlived").splitlines() == [str(number) for number in range(1, 9001)]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (4, "Failed")])
def test_a_pod_that_does_not_restart_ends_with_its_command(
    lower_namespace: LowerNamespace, code: int, phase: str
) -> None:
    """With restartPolicy Never, the pod's phase and exit code follow the command's."""
    name = f"once-{code}"
    lower_namespace.pod(name, f"echo done; exit {code}", policy="Never")
    until(lambda: lower_namespace.get(name)["phase"] == phase, f"phase {phase}")
    assert lower_namespace.main(name)["state"]["terminated"]["exitCode"] == code
    assert lower_namespace.logs(name) == lower_namespace.logs(name, "-f") == "done\n"


def test_a_missing_command_is_retried_and_logged(lower_namespace: LowerNamespace) -> None:
    """The container restarts repeatedly, and its log names the missing command."""
    lower_namespace.pod("absent", "", command=["no-such-command"])
    until(lambda: lower_namespace.get("absent")["containerStatuses"][0]["restartCount"] >= 2, "two restarts")
    assert "no-such-command" in lower_namespace.logs("absent", "--previous")


def test_long_and_unterminated_lines_are_logged_completely(lower_namespace: LowerNamespace) -> None:
    """A line over the runtimes' limit is stored in parts and shown as one; the unterminated line is shown too."""
    lower_namespace.pod("long", "head -c 40000 /dev/zero | tr '\\0' x; echo; printf unended", policy="Never")
    until(lambda: lower_namespace.get("long")["phase"] == "Succeeded", "the end")
    assert lower_namespace.logs("long") == "x" * 40000 + "\nunended\n"


def test_files_and_processes_of_a_pod_are_removed_with_it(lower_namespace: LowerNamespace) -> None:
    """They are its folders, its container's process and exec processes; a new pod of its name has no files."""
    lower_namespace.pod("leaves", "sleep 1000 & sleep 1000")
    with lower_namespace.start(
        "exec", "leaves", "--", "sh", "-c", "echo $$ > mine; echo written; sleep 1000"
    ) as running:
        assert next_line(running) == "written\n"
        folders = lower_namespace.files("leaves")
        assert all(folder.is_dir() for folder in folders)
        exec_pid = int((folders[0] / "main" / "mine").read_text())
        lower_namespace.kubectl("delete", "pod", "leaves", "--now")
        running.communicate(timeout=LIMIT)
    until(lambda: not any(folder.exists() for folder in folders), "the removal of the pod's folders")
    assert not Path(f"/proc/{exec_pid}").exists()
    assert not working_in(folders[0])
    lower_namespace.pod("leaves", "sleep 1000")
    assert lower_namespace.kubectl("exec", "leaves", "--", "ls").stdout == ""


def working_in(folder: Path) -> list[str]:
    """Return the processes whose working directory is, or was, under the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = str(entry.readlink())
        except OSError:
            continue
        found += [str(entry)] if where.startswith(str(folder)) else []
    return found


def test_an_ephemeral_container_supports_attach_exec_and_logs(lower_namespace: LowerNamespace) -> None:
    """`kubectl debug` starts a shell beside the pod's containers, and its status shows the shell's exit code."""
    lower_namespace.pod("odd", "sleep 1000", runs=False)
    with lower_namespace.start("debug", "-i", "odd", "--image=none", "--container=probe", "--quiet") as shell:
        write_line(shell, "echo from $HOSTNAME; exit 6")
        assert next_line(shell) == "from odd\n"
        shell.communicate(timeout=LIMIT)
    until(lambda: "terminated" in lower_namespace.get("odd")["ephemeralContainerStatuses"][0]["state"], "its end")
    assert lower_namespace.get("odd")["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 6
    assert lower_namespace.get("odd")["phase"] == "Running"
    assert lower_namespace.logs("odd", "--container=probe") == "from odd\n"
    inside = lower_namespace.kubectl("exec", "odd", "--container=probe", "--", "pwd").stdout
    assert inside == f"{lower_namespace.files('odd')[0] / 'probe'}\n"


def test_a_restarted_endpoint_restarts_its_containers(lower_namespace: LowerNamespace) -> None:
    """Containers end with the endpoint, which holds their pipes, and restart with it; their logs are kept.

    A container that ended permanently is not run again, and following its log ends at once.
    """
    lower_namespace.pod("kept", "echo begun; sleep 1000")
    lower_namespace.kubectl("debug", "kept", "--image=none", "--container=probe", "--", "sh", "-c", "echo x >> runs")
    until(
        lambda: "terminated" in lower_namespace.get("kept")["ephemeralContainerStatuses"][0]["state"],
        "the end of the probe",
    )
    until(lambda: lower_namespace.logs("kept"), "the first line")
    lower_namespace.sandbox.restart(LOWER, "endpoint")
    until(lambda: lower_namespace.logs("kept", "--previous"), "the second round")
    assert lower_namespace.logs("kept", "--previous") == "begun\n"
    until(lambda: lower_namespace.main("kept")["restartCount"] == 1, "the restart is told")
    assert lower_namespace.kubectl("exec", "kept", "--container=probe", "--", "cat", "runs").stdout == "x\n"
    assert "terminated" in lower_namespace.get("kept")["ephemeralContainerStatuses"][0]["state"]
    assert lower_namespace.kubectl("logs", "kept", "--container=probe", "-f").returncode == 0
