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


class Place:
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
        shown = self.kubectl("get", "pod", name, "-o", "json")
        return dict(json.loads(shown.stdout)["status"]) if shown.returncode == 0 else {}

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
def place(sandbox: Sandbox) -> Iterator[Place]:
    """Create the namespace, and delete it with its content at the end."""
    found = Place(sandbox)
    sandbox.kubectl("create", "namespace", SPACE, cluster=LOWER)
    until(lambda: found.kubectl("get", "serviceaccount", "default").returncode == 0, "the namespace's account")
    yield found
    sandbox.kubectl("delete", "namespace", SPACE, "--wait=false", cluster=LOWER)


def told(process: subprocess.Popen[str]) -> str:
    """Return the next line of a command's output."""
    assert process.stdout is not None
    return process.stdout.readline()


def say(process: subprocess.Popen[str], words: str) -> None:
    """Write a line to a command's input."""
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()


def test_a_container_runs_its_command(place: Place) -> None:
    """Its output is its log, its variables include those of the pod, and it does not restart while it waits."""
    place.pod("speaks", ASK, stdin=True, env=[{"name": "WHO", "value": "you"}])
    until(lambda: place.logs("speaks"), "the first line")
    assert place.logs("speaks") == f"round in {SPACE} for you\n"
    assert place.main("speaks")["restartCount"] == 0


def test_no_command_runs_without_the_annotation(place: Place) -> None:
    """A command of a foreign pod is not run on this machine unless the annotation requests it."""
    place.pod("silent", "echo run > ran; sleep 1000", runs=False)
    assert place.logs("silent") == f"main started in pod {SPACE}/silent\n"
    assert place.kubectl("exec", "silent", "--", "ls").stdout == ""


def test_attach_forwards_input_and_the_container_restarts(place: Place) -> None:
    """The process receives a typed line; its exit is visible as a restart, an exit code and previous logs."""
    place.pod("answers", ASK, stdin=True)
    with place.start("attach", "-i", "--quiet", "answers") as attached:
        say(attached, "abc")
        assert told(attached) == "got abc\n"
        attached.communicate(timeout=LIMIT)
    assert attached.returncode == 0
    until(lambda: place.main("answers")["restartCount"] == 1, "the restart")
    assert place.main("answers")["lastState"]["terminated"]["exitCode"] == 3
    assert sorted(place.logs("answers", "--previous").splitlines()) == ["bad", "got abc", f"round in {SPACE} for "]
    until(lambda: place.logs("answers"), "the first line of the second round")
    assert place.logs("answers") == f"round in {SPACE} for \n"


def test_previous_logs_are_not_found_before_the_first_restart(place: Place) -> None:
    """Kubectl gets the same error as from a real node."""
    place.pod("young", "sleep 1000")
    shown = place.kubectl("logs", "young", "--previous")
    assert shown.returncode == 1
    assert 'previous terminated container "main" in pod "young" not found' in shown.stderr


def test_a_followed_log_ends_with_the_container(place: Place) -> None:
    """`kubectl logs -f` shows one run until its end, and not the next one."""
    place.pod("followed", ASK, stdin=True)
    with place.start("logs", "-f", "followed") as follower, place.start("attach", "-i", "--quiet", "followed") as typed:
        assert told(follower) == f"round in {SPACE} for \n"
        say(typed, "end")
        rest, _ = follower.communicate(timeout=LIMIT)
        typed.communicate(timeout=LIMIT)
    assert sorted(rest.splitlines()) == ["bad", "got end"]


def test_a_followed_log_is_complete(place: Place) -> None:
    """Output just before the container's end is shown, and that of a new run is not."""
    place.pod("hasty", "echo begun; read line; seq 1 20000", stdin=True)
    with place.start("logs", "-f", "hasty") as follower, place.start("attach", "-i", "--quiet", "hasty") as typed:
        assert told(follower) == "begun\n"
        say(typed, "end")
        rest, _ = follower.communicate(timeout=LIMIT)
        typed.communicate(timeout=LIMIT)
    assert rest.splitlines() == [str(number) for number in range(1, 20001)]


def test_a_container_ends_with_its_command(place: Place) -> None:
    """A process outside the command's group with its output open delays nothing, and the log is complete."""
    apart = "setsid sh -c 'echo $$ > pid; exec sleep 100' & until [ -s pid ]; do sleep 0.02; done"
    place.pod("outlived", f"{apart}; seq 1 9000", policy="Never")
    until(lambda: place.get("outlived")["phase"] == "Succeeded", "the end")
    os.kill(int((place.files("outlived")[0] / "main" / "pid").read_text()), signal.SIGKILL)  # fails if it has ended
    assert place.logs("outlived").splitlines() == [str(number) for number in range(1, 9001)]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (4, "Failed")])
def test_a_pod_that_does_not_restart_ends_with_its_command(place: Place, code: int, phase: str) -> None:
    """With restartPolicy Never, the pod's phase and exit code follow the command's."""
    name = f"once-{code}"
    place.pod(name, f"echo done; exit {code}", policy="Never")
    until(lambda: place.get(name)["phase"] == phase, f"phase {phase}")
    assert place.main(name)["state"]["terminated"]["exitCode"] == code
    assert place.logs(name) == place.logs(name, "-f") == "done\n"


def test_a_missing_command_is_retried_and_logged(place: Place) -> None:
    """The container restarts repeatedly, and its log names the missing command."""
    place.pod("absent", "", command=["no-such-command"])
    until(lambda: place.get("absent")["containerStatuses"][0]["restartCount"] >= 2, "two restarts")
    assert "no-such-command" in place.logs("absent", "--previous")


def test_long_and_unterminated_lines_are_logged_completely(place: Place) -> None:
    """A line over the runtimes' limit is stored in parts and shown as one; the unterminated line is shown too."""
    place.pod("long", "head -c 40000 /dev/zero | tr '\\0' x; echo; printf unended", policy="Never")
    until(lambda: place.get("long")["phase"] == "Succeeded", "the end")
    assert place.logs("long") == "x" * 40000 + "\nunended\n"


def test_files_and_processes_of_a_pod_are_removed_with_it(place: Place) -> None:
    """They are its folders, its container's process and exec processes; a new pod of its name has no files."""
    place.pod("leaves", "sleep 1000 & sleep 1000")
    with place.start("exec", "leaves", "--", "sh", "-c", "echo $$ > mine; echo written; sleep 1000") as running:
        assert told(running) == "written\n"
        folders = place.files("leaves")
        assert all(folder.is_dir() for folder in folders)
        exec_pid = int((folders[0] / "main" / "mine").read_text())
        place.kubectl("delete", "pod", "leaves", "--now")
        running.communicate(timeout=LIMIT)
    until(lambda: not any(folder.exists() for folder in folders), "the removal of the pod's folders")
    assert not Path(f"/proc/{exec_pid}").exists()
    assert not working_in(folders[0])
    place.pod("leaves", "sleep 1000")
    assert place.kubectl("exec", "leaves", "--", "ls").stdout == ""


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


def test_an_ephemeral_container_supports_attach_exec_and_logs(place: Place) -> None:
    """`kubectl debug` starts a shell beside the pod's containers, and its status shows the shell's exit code."""
    place.pod("odd", "sleep 1000", runs=False)
    with place.start("debug", "-i", "odd", "--image=none", "--container=probe", "--quiet") as shell:
        say(shell, "echo from $HOSTNAME; exit 6")
        assert told(shell) == "from odd\n"
        shell.communicate(timeout=LIMIT)
    until(lambda: "terminated" in place.get("odd")["ephemeralContainerStatuses"][0]["state"], "its end")
    assert place.get("odd")["ephemeralContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 6
    assert place.get("odd")["phase"] == "Running"
    assert place.logs("odd", "--container=probe") == "from odd\n"
    inside = place.kubectl("exec", "odd", "--container=probe", "--", "pwd").stdout
    assert inside == f"{place.files('odd')[0] / 'probe'}\n"


def test_a_restarted_endpoint_restarts_its_containers(place: Place) -> None:
    """Containers end with the endpoint, which holds their pipes, and restart with it; their logs are kept.

    A container that ended permanently is not run again, and following its log ends at once.
    """
    place.pod("kept", "echo begun; sleep 1000")
    place.kubectl("debug", "kept", "--image=none", "--container=probe", "--", "sh", "-c", "echo x >> runs")
    until(lambda: "terminated" in place.get("kept")["ephemeralContainerStatuses"][0]["state"], "the end of the probe")
    until(lambda: place.logs("kept"), "the first line")
    place.sandbox.restart(LOWER, "endpoint")
    until(lambda: place.logs("kept", "--previous"), "the second round")
    assert place.logs("kept", "--previous") == "begun\n"
    until(lambda: place.main("kept")["restartCount"] == 1, "the restart is told")
    assert place.kubectl("exec", "kept", "--container=probe", "--", "cat", "runs").stdout == "x\n"
    assert "terminated" in place.get("kept")["ephemeralContainerStatuses"][0]["state"]
    assert place.kubectl("logs", "kept", "--container=probe", "-f").returncode == 0
