"""Pods whose containers run as local processes: they write logs, take input, end, come again, and leave nothing."""

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
    """A namespace of the lower cluster, with kubectl in it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.cluster = sandbox.clusters[LOWER]
        self.sandbox = sandbox

    def kubectl(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl to its end."""
        return self.sandbox.kubectl("-n", SPACE, *arguments, cluster=LOWER, stdin=stdin, limit=LIMIT)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start kubectl with pipes."""
        command = self.sandbox.kubectl_command("-n", SPACE, *arguments, cluster=LOWER)
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def pod(self, name: str, script: str, *, policy: str = "Always", runs: bool = True, **container: Any) -> None:
        """Make a pod of one container that runs a shell script, and wait until it has started."""
        main = {"name": "main", "image": "none", "command": ["sh", "-c", script], **container}
        spec = {"serviceAccountName": "default", "restartPolicy": policy, "containers": [main]}
        meta = {"name": name, "annotations": RUNS if runs else {}}
        manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        made = self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        assert made.returncode == 0, made.stderr
        until(lambda: self.get(name).get("phase", "Pending") != "Pending", f"pod {name} starts")

    def get(self, name: str) -> dict[str, Any]:
        """Return a pod's status, {} for a pod that is not there."""
        shown = self.kubectl("get", "pod", name, "-o", "json")
        return dict(json.loads(shown.stdout)["status"]) if shown.returncode == 0 else {}

    def main(self, name: str) -> dict[str, Any]:
        """Return the status of a pod's one container."""
        (status,) = self.get(name)["containerStatuses"]
        return dict(status)

    def logs(self, name: str, *flags: str) -> str:
        """Return what kubectl logs shows."""
        return self.kubectl("logs", name, *flags).stdout

    def files(self, name: str) -> list[Path]:
        """Return the folders that a pod may have."""
        return [self.cluster.work / SPACE / name, self.cluster.logs / SPACE / name]


@pytest.fixture(scope="module")
def place(sandbox: Sandbox) -> Iterator[Place]:
    """The namespace, removed with all that is in it."""
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
    """Type a line."""
    assert process.stdin is not None
    process.stdin.write(words + "\n")
    process.stdin.flush()


def test_a_container_runs_its_command(place: Place) -> None:
    """Its output is its log, in its own environment, as long as nothing else is asked for."""
    place.pod("speaks", ASK, stdin=True, env=[{"name": "WHO", "value": "you"}])
    until(lambda: place.logs("speaks"), "the first line")
    assert place.logs("speaks") == f"round in {SPACE} for you\n"
    assert place.main("speaks")["restartCount"] == 0


def test_without_the_annotation_no_command_runs(place: Place) -> None:
    """What a pod of another's says is not run on this machine unless it was asked for."""
    place.pod("silent", "echo run > ran; sleep 1000", runs=False)
    assert place.logs("silent") == f"main started in pod {SPACE}/silent\n"
    assert place.kubectl("exec", "silent", "--", "ls").stdout == ""


def test_attach_takes_input_and_the_container_comes_again(place: Place) -> None:
    """A line that is typed reaches the process; its end shows as restart, exit code and --previous."""
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


def test_there_is_nothing_previous_before_the_first_restart(place: Place) -> None:
    """Kubectl is told so, as by a real node."""
    place.pod("young", "sleep 1000")
    shown = place.kubectl("logs", "young", "--previous")
    assert shown.returncode == 1
    assert 'previous terminated container "main" in pod "young" not found' in shown.stderr


def test_a_log_that_is_followed_ends_with_the_container(place: Place) -> None:
    """`kubectl logs -f` shows a run to its end and no other."""
    place.pod("followed", ASK, stdin=True)
    with place.start("logs", "-f", "followed") as follower, place.start("attach", "-i", "--quiet", "followed") as typed:
        assert told(follower) == f"round in {SPACE} for \n"
        say(typed, "end")
        rest, _ = follower.communicate(timeout=LIMIT)
        typed.communicate(timeout=LIMIT)
    assert sorted(rest.splitlines()) == ["bad", "got end"]


def test_a_log_that_is_followed_is_whole(place: Place) -> None:
    """What a container writes just before its end is shown, and a new run does not show in it."""
    place.pod("hasty", "echo begun; read line; seq 1 20000", stdin=True)
    with place.start("logs", "-f", "hasty") as follower, place.start("attach", "-i", "--quiet", "hasty") as typed:
        assert told(follower) == "begun\n"
        say(typed, "end")
        rest, _ = follower.communicate(timeout=LIMIT)
        typed.communicate(timeout=LIMIT)
    assert rest.splitlines() == [str(number) for number in range(1, 20001)]


def test_a_container_ends_with_its_command(place: Place) -> None:
    """A process outside the command's group that has its output open delays nothing, and the log is whole."""
    place.pod("outlived", "setsid sleep 100 & echo $! > pid; seq 1 9000", policy="Never")
    until(lambda: place.get("outlived")["phase"] == "Succeeded", "the end")
    os.kill(int((place.files("outlived")[0] / "main" / "pid").read_text()), signal.SIGKILL)  # fails if it has ended
    assert place.logs("outlived").splitlines() == [str(number) for number in range(1, 9001)]


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (4, "Failed")])
def test_a_pod_that_is_not_started_again_ends(place: Place, code: int, phase: str) -> None:
    """With restartPolicy Never the pod's phase and exit code are its command's."""
    name = f"once-{code}"
    place.pod(name, f"echo done; exit {code}", policy="Never")
    until(lambda: place.get(name)["phase"] == phase, f"phase {phase}")
    assert place.main(name)["state"]["terminated"]["exitCode"] == code
    assert place.logs(name) == place.logs(name, "-f") == "done\n"


def test_a_command_that_is_not_there_says_so(place: Place) -> None:
    """It is tried again and again, and the log tells why."""
    place.pod("absent", "", command=["no-such-command"])
    until(lambda: place.get("absent")["containerStatuses"][0]["restartCount"] >= 2, "two restarts")
    assert "no-such-command" in place.logs("absent", "--previous")


def test_long_and_unended_lines_are_logged_whole(place: Place) -> None:
    """A line over the runtimes' limit comes in parts and is one line; what has no end is there at the end."""
    place.pod("long", "head -c 40000 /dev/zero | tr '\\0' x; echo; printf unended", policy="Never")
    until(lambda: place.get("long")["phase"] == "Succeeded", "the end")
    assert place.logs("long") == "x" * 40000 + "\nunended\n"


def test_what_a_pod_had_goes_with_it(place: Place) -> None:
    """Its folders, its container's process, and what was exec'd in it; a pod of its name begins with nothing."""
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


def test_an_ephemeral_container_can_be_worked_in(place: Place) -> None:
    """`kubectl debug` starts a shell beside the pod's containers: attach, exec and logs reach it, and its end shows."""
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


def test_a_restarted_endpoint_begins_again(place: Place) -> None:
    """Containers do not outlive the server that holds their pipes; they come again with it, their logs kept.

    What had ended for good is not run once more, and its log does not wait for more.
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
