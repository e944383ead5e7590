"""`kubectl logs`, `exec`, `attach` and `port-forward` on the nodes of a lower cluster, as on real ones."""

import contextlib
import hashlib
import http.client
import http.server
import os
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from sandbox_waiting import until

from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK

pytestmark = pytest.mark.real

LOWER = "lower-a"
SPACE = "streams"
POD = """
apiVersion: v1
kind: Namespace
metadata: {name: streams}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: streams}
spec:
  serviceAccountName: default
  containers:
  - {name: first, image: none}
  - {name: second, image: none}
"""
LINES = """\
2031-01-01T00:00:01.000000001Z stdout F one
2031-01-01T00:00:02.5Z stderr F two
2031-01-01T00:00:03Z stdout P thr
2031-01-01T00:00:03Z stdout F ee
2031-01-01T00:00:04Z stdout F four
"""
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def pod(sandbox: Sandbox) -> Iterator[Sandbox]:
    """The sandbox with a pod `web` of containers `first` and `second` in namespace `streams`."""
    sandbox.kubectl("create", "namespace", SPACE, cluster=LOWER)
    account = ("get", "serviceaccount", "default", f"--namespace={SPACE}")
    until(lambda: sandbox.kubectl(*account, cluster=LOWER).returncode == 0, "the namespace's account")
    assert sandbox.kubectl("apply", "-f", "-", cluster=LOWER, stdin=POD).returncode == 0
    waited = sandbox.kubectl(
        "wait", "--for=condition=Ready", "pod/web", f"--namespace={SPACE}", "--timeout=30s", cluster=LOWER
    )
    assert waited.returncode == 0, waited.stderr
    yield sandbox
    sandbox.kubectl("delete", "namespace", SPACE, "--wait=false", cluster=LOWER)


def execute(pod: Sandbox, *command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in the pod's first container."""
    interactive = ["-i"] if stdin is not None else []
    base = ["exec", f"--namespace={SPACE}", "web", "--container=first", *interactive, "--", *command]
    return pod.kubectl(*base, cluster=LOWER, stdin=stdin or "")


def logs(pod: Sandbox, *flags: str) -> str:
    """Return what kubectl logs shows of the container whose log the test wrote."""
    shown = pod.kubectl("logs", f"--namespace={SPACE}", "web", *flags, cluster=LOWER)
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


def log_file(pod: Sandbox, container: str) -> Path:
    """Return the path of a container's log; its folder exists."""
    path = pod.clusters[LOWER].logs / SPACE / "web" / f"{container}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def written(pod: Sandbox) -> Sandbox:
    """The pod, with known lines in the log of `second`."""
    log_file(pod, "second").write_text(LINES)
    return pod


def test_exec_shows_both_outputs(pod: Sandbox) -> None:
    """Standard output and standard error arrive apart."""
    done = execute(pod, "sh", "-c", "echo out; echo err >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


@pytest.mark.parametrize("code", [1, 7, 255])
def test_exec_reports_the_exit_code(pod: Sandbox, code: int) -> None:
    """Kubectl ends as the command did."""
    done = execute(pod, "sh", "-c", f"exit {code}")
    assert done.returncode == code
    assert f"exit code {code}" in done.stderr


def test_exec_reports_a_signal_as_shells_do(pod: Sandbox) -> None:
    """A killed command ends with 128 and the signal's number."""
    assert execute(pod, "sh", "-c", "kill -9 $$").returncode == 137


def test_exec_of_what_is_not_there_is_an_error(pod: Sandbox) -> None:
    """The error names the command."""
    done = execute(pod, "no-such-command")
    assert done.returncode != 0
    assert "no-such-command" in done.stderr


def test_exec_hands_input_on_and_ends_with_it(pod: Sandbox) -> None:
    """A command that reads to the end of its input ends when the input does."""
    done = execute(pod, "cat", stdin="line one\nline two\n")
    assert (done.returncode, done.stdout) == (0, "line one\nline two\n")


def test_exec_ends_though_its_input_goes_on(pod: Sandbox) -> None:
    """A command may end before its input does, with its exit code."""
    command = pod.kubectl_command(
        "exec", "-i", f"--namespace={SPACE}", "web", "--", "sh", "-c", "exit 5", cluster=LOWER
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(timeout=30) == 5


def test_exec_starts_in_a_directory_of_its_own(pod: Sandbox) -> None:
    """Files that a command makes are still there for the next one, and belong to the container."""
    execute(pod, "sh", "-c", "echo kept > file")
    work = pod.clusters[LOWER].work / SPACE / "web" / "first"
    assert execute(pod, "pwd").stdout == f"{work}\n"
    assert execute(pod, "cat", "file").stdout == "kept\n"


def test_exec_knows_its_pod_and_nothing_of_the_user(pod: Sandbox) -> None:
    """The host name is the pod's, and no variable of the one who started the sandbox is visible."""
    names = dict(line.split("=", 1) for line in execute(pod, "env").stdout.splitlines() if "=" in line)
    assert names["HOSTNAME"] == "web"
    assert names["POD_NAMESPACE"] == SPACE
    unset = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert set(names) - unset == {"HOSTNAME", "HOME", "PATH", "POD_NAMESPACE", "TENSILE_SANDBOX_ID"}


@pytest.mark.parametrize(("websocket", "amount"), [("true", 100 * MEBIBYTE), ("false", 20 * MEBIBYTE)])
def test_exec_carries_a_great_deal_unchanged(pod: Sandbox, websocket: str, amount: int) -> None:
    """Every byte arrives, by WebSocket and by SPDY.

    The command ends when all of it has been read: the apiserver closes a SPDY connection without waiting for its
    reader, and what is still on the way then is lost when kubectl happens to send a ping, as it does every five
    seconds. So by SPDY it is less, which is through before the first one also on a busy machine.
    """
    script = f"seq 1 99999999 | head -c {amount}"
    command = pod.kubectl_command(
        "exec", "-i", f"--namespace={SPACE}", "web", "--", "sh", "-c", f"{script}; timeout 300 cat", cluster=LOWER
    )
    environ = {**os.environ, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websocket}
    arrived, expected = hashlib.sha256(), hashlib.sha256()
    length = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while chunk := process.stdout.read1(1 << 20):  # type: ignore[attr-defined]
            arrived.update(chunk)
            length += len(chunk)
            if length >= amount:
                process.stdin.close()
    expected.update(subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, check=True).stdout)
    assert (process.returncode, length) == (0, amount)
    assert arrived.digest() == expected.digest()


def test_a_log_is_there_without_preparation(pod: Sandbox) -> None:
    """A container of which nothing is known has logged its start."""
    assert logs(pod, "--container=first") == f"first started in pod {SPACE}/web\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "one\ntwo\nthree\nfour\n"),
        (("--tail=1",), "four\n"),
        (("--tail=0",), ""),
        (("--since-time=2031-01-01T00:00:02.5Z",), "two\nthree\nfour\n"),
        (("--since=1s",), "one\ntwo\nthree\nfour\n"),
        (("--limit-bytes=6",), "one\ntw"),
        (("--limit-bytes=10", "--follow"), "one\ntwo\nth"),
        (
            ("--timestamps", "--tail=1"),
            "2031-01-01T00:00:04.000000000Z four\n",
        ),
        (
            ("--timestamps", "--since-time=2031-01-01T00:00:03Z"),
            "2031-01-01T00:00:03.000000000Z three\n2031-01-01T00:00:04.000000000Z four\n",
        ),
    ],
    ids=["all", "tail", "tail 0", "since time", "since", "limit", "limit of follow", "timestamps", "parts"],
)
def test_logs_takes_the_flags_of_kubectl(written: Sandbox, flags: tuple[str, ...], expected: str) -> None:
    """Each flag shows what it shows on a real node; a line in parts is one line."""
    assert logs(written, "--container=second", *flags) == expected


def test_since_leaves_out_what_is_older(pod: Sandbox) -> None:
    """Lines of the past are not shown when only the last seconds are asked for."""
    log_file(pod, "second").write_text("2001-01-01T00:00:01Z stdout F old\n")
    assert logs(pod, "--container=second", "--since=10s") == ""


def test_since_counts_for_each_part_of_a_line(pod: Sandbox) -> None:
    """A part has its own time, and outputs may be mixed."""
    lines = "2031-01-01T00:00:01Z stdout P ol\n2031-01-01T00:00:02Z stderr F err\n2031-01-01T00:00:03Z stdout F d\n"
    log_file(pod, "second").write_text(lines)
    assert logs(pod, "--container=second", "--since-time=2031-01-01T00:00:02Z") == "err\nd\n"


def test_the_last_lines_of_a_long_log_are_found(pod: Sandbox) -> None:
    """Also where each line ends at the end of a block of 4096 bytes, which is read at once."""
    head = "2031-01-01T00:00:01Z stdout F "
    texts = [letter * (4095 - len(head)) + "\n" for letter in "abcdef"]
    log_file(pod, "second").write_text("".join(head + text for text in texts))
    assert logs(pod, "--container=second", "--tail=3") == "".join(texts[3:])


def test_a_line_without_an_end_is_shown(pod: Sandbox) -> None:
    """It is the last one that a container has written; `--tail` does not count it, as on a real node."""
    log_file(pod, "second").write_text(LINES + "2031-01-01T00:00:05Z stdout F unended")
    assert logs(pod, "--container=second", "--since-time=2031-01-01T00:00:04Z") == "four\nunended"
    assert logs(pod, "--container=second", "--tail=1") == "four\n"


def test_a_file_of_another_format_is_refused(pod: Sandbox) -> None:
    """The message has its first line; a single such line among others is left out."""
    log_file(pod, "second").write_text("plain text\n")
    shown = pod.kubectl("logs", f"--namespace={SPACE}", "web", "--container=second", cluster=LOWER)
    assert shown.returncode != 0
    assert 'unsupported log format: "plain text\\n"' in shown.stderr
    log_file(pod, "second").write_text(LINES + "plain text\n" + LINES)
    assert logs(pod, "--container=second") == "one\ntwo\nthree\nfour\n" * 2


def test_there_is_no_previous_container(pod: Sandbox) -> None:
    """No container was ever restarted, which kubectl is told."""
    shown = pod.kubectl("logs", f"--namespace={SPACE}", "web", "--container=first", "--previous", cluster=LOWER)
    assert shown.returncode != 0
    assert "not found" in shown.stderr


def test_a_log_can_be_followed(written: Sandbox) -> None:
    """A line is shown when it is written, and the stream goes on until its file is removed."""
    path = log_file(written, "second")
    flags = ["logs", f"--namespace={SPACE}", "web", "--container=second", "--follow", "--tail=1"]
    with subprocess.Popen(written.kubectl_command(*flags, cluster=LOWER), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "four\n"
        for number in range(3):
            with path.open("a") as file:
                file.write(f"2031-01-01T00:00:05Z stdout F more {number}\n")
            assert process.stdout.readline() == f"more {number}\n"
        path.unlink()
        assert process.stdout.readline() == ""
    assert process.returncode == 0


def test_a_line_that_is_followed_is_shown_when_it_has_its_end(written: Sandbox) -> None:
    """Not in pieces, as its writer writes it."""
    path = log_file(written, "second")
    flags = ["logs", f"--namespace={SPACE}", "web", "--container=second", "--follow", "--timestamps", "--tail=1"]
    with subprocess.Popen(written.kubectl_command(*flags, cluster=LOWER), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with path.open("a", buffering=1) as file:
            file.write("2031-01-01T00:00:05Z stdout F ha")
            file.flush()
            file.write("lf\n")
        assert process.stdout.readline() == "2031-01-01T00:00:05.000000000Z half\n"
        path.unlink()
    assert process.returncode == 0


def test_many_can_follow_the_same_log(written: Sandbox) -> None:
    """One that leaves does not end the others, nor does the end of another log."""
    paths = [log_file(written, name) for name in ("first", "second")]
    for path in paths:
        path.write_text(LINES)
    flags = ("logs", f"--namespace={SPACE}", "web", "--follow", "--tail=1")
    commands = [written.kubectl_command(*flags, f"--container={path.stem}", cluster=LOWER) for path in paths]
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            for command in (commands[0], commands[1], commands[1])
        ]
        other, leaver, stayer = opened
        assert [_line(process) for process in opened] == ["four\n"] * 3
        leaver.kill()
        paths[0].unlink()
        assert _line(other) == ""
        with paths[1].open("a") as file:
            file.write("2031-01-01T00:00:05Z stdout F more\n")
        assert _line(stayer) == "more\n"
        paths[1].unlink()
        assert _line(stayer) == ""


def _line(process: subprocess.Popen[str]) -> str:
    """Return the next line of a command's output, "" at its end."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_attach_shows_what_is_logged_from_now_on(written: Sandbox) -> None:
    """What was logged before is not shown."""
    path = log_file(written, "second")
    command = written.kubectl_command(
        "attach", "--quiet", f"--namespace={SPACE}", "web", "--container=second", cluster=LOWER
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        until(lambda: _followed(written, path), "the attached stream's watch of the log")
        with path.open("a") as file:
            file.write("2031-01-01T00:00:05Z stdout F new\n")
        assert process.stdout.readline() == "new\n"
        process.kill()


def _followed(sandbox: Sandbox, path: Path) -> bool:
    """Report whether the endpoint watches the file, as the kernel lists it: "inotify wd:1 ino:2a sdev:..."."""
    watched = f" ino:{path.stat().st_ino:x} "
    for description in Path(f"/proc/{sandbox.clusters[LOWER].pids['endpoint']}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if watched in description.read_text():
                return True
    return False


class Hello(http.server.BaseHTTPRequestHandler):
    """Answers each request with a greeting."""

    def do_GET(self) -> None:
        """Answer a GET."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[int]:
    """The port of a server on this machine, which is every pod's network here."""
    serving = http.server.ThreadingHTTPServer((LOOPBACK, 0), Hello)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield serving.server_port
    serving.shutdown()
    thread.join()
    serving.server_close()


def test_a_port_can_be_forwarded(pod: Sandbox, server: int) -> None:
    """A connection to the local end reaches the server at the pod's port."""
    command = pod.kubectl_command(
        "port-forward", f"--address={LOOPBACK}", f"--namespace={SPACE}", "pod/web", f":{server}", cluster=LOWER
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+) -> ", process.stdout.readline())
        assert found is not None
        connection = http.client.HTTPConnection(LOOPBACK, int(found[1]), timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"hello"
        connection.close()
        process.kill()


def call(pod: Sandbox, credential: str | None, path: str) -> int:
    """Call the endpoint without the apiserver; return the status of its answer."""
    cluster = pod.clusters[LOWER]
    pki = cluster.audit_log.parent / "pki"
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    if credential:
        context.load_cert_chain(pki / f"{credential}.crt", pki / f"{credential}.key")
    connection = HTTPSConnection(LOOPBACK, cluster.ports.endpoint, context=context, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_stranger_is_not_even_heard(pod: Sandbox) -> None:
    """Without a certificate of the cluster the connection ends."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        call(pod, None, "/healthz")


def test_only_the_apiserver_may_run_commands(pod: Sandbox) -> None:
    """Another certificate of the cluster is refused, an administrator's too."""
    assert call(pod, "admin", "/healthz") == 403
    assert call(pod, "kubelet-client", "/healthz") == 200


@pytest.mark.parametrize(
    "path",
    [
        "/containerLogs/streams/web/..%2f..%2fstate",
        "/containerLogs/streams/%2e%2e/first",
        "/containerLogs/streams/web/first%00",
        "/containerLogs/streams/web/.hidden",
        "/containerLogs/streams/web/UPPER",
    ],
)
def test_a_name_never_leads_out_of_its_folder(pod: Sandbox, path: str) -> None:
    """What is no name is refused before any file is looked for."""
    assert call(pod, "kubelet-client", path) in {301, 307, 400}


@pytest.mark.parametrize("query", ["tailLines=x", "limitBytes=-1", "sinceSeconds=1.5", "sinceTime=yesterday"])
def test_an_option_that_is_none_is_refused(pod: Sandbox, query: str) -> None:
    """A number that is none does not become 0."""
    assert call(pod, "kubelet-client", f"/containerLogs/{SPACE}/web/first?{query}") == 400
