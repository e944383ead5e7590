"""Tests of `kubectl logs`, `exec`, `attach` and `port-forward` on nodes of a lower cluster, as on real nodes."""

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
    """Return the output of kubectl logs for the pod."""
    completed = pod.kubectl("logs", f"--namespace={SPACE}", "web", *flags, cluster=LOWER)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def log_file(pod: Sandbox, container: str) -> Path:
    """Return the path of a container's log, after the creation of its folder."""
    path = pod.clusters[LOWER].logs / SPACE / "web" / f"{container}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.fixture
def written(pod: Sandbox) -> Sandbox:
    """The pod, with known lines in the log of `second`."""
    log_file(pod, "second").write_text(LINES)
    return pod


def test_exec_separates_stdout_and_stderr(pod: Sandbox) -> None:
    """Kubectl writes each to its own stream."""
    done = execute(pod, "sh", "-c", "echo out; echo err >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


@pytest.mark.parametrize("code", [1, 7, 255])
def test_exec_reports_the_exit_code(pod: Sandbox, code: int) -> None:
    """Kubectl exits with the code of the command."""
    done = execute(pod, "sh", "-c", f"exit {code}")
    assert done.returncode == code
    assert f"exit code {code}" in done.stderr


def test_exec_reports_a_signal_as_shells_do(pod: Sandbox) -> None:
    """The exit code of a killed command is 128 plus the signal's number."""
    assert execute(pod, "sh", "-c", "kill -9 $$").returncode == 137


def test_exec_of_a_missing_command_is_an_error(pod: Sandbox) -> None:
    """The error names the command."""
    done = execute(pod, "no-such-command")
    assert done.returncode != 0
    assert "no-such-command" in done.stderr


def test_exec_forwards_input_until_its_end(pod: Sandbox) -> None:
    """A command that reads all of its input ends when the input ends."""
    done = execute(pod, "cat", stdin="line one\nline two\n")
    assert (done.returncode, done.stdout) == (0, "line one\nline two\n")


def test_exec_ends_before_its_input_ends(pod: Sandbox) -> None:
    """A command may end before its input does, with its own exit code."""
    command = pod.kubectl_command(
        "exec", "-i", f"--namespace={SPACE}", "web", "--", "sh", "-c", "exit 5", cluster=LOWER
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(timeout=30) == 5


def test_exec_starts_in_a_directory_of_the_container(pod: Sandbox) -> None:
    """Files that one command creates are available to the next one."""
    execute(pod, "sh", "-c", "echo kept > file")
    work = pod.clusters[LOWER].work / SPACE / "web" / "first"
    assert execute(pod, "pwd").stdout == f"{work}\n"
    assert execute(pod, "cat", "file").stdout == "kept\n"


def test_exec_has_variables_of_the_pod_and_none_of_the_user(pod: Sandbox) -> None:
    """The host name is the pod's, and no variable of the user who started the sandbox is visible."""
    names = dict(line.split("=", 1) for line in execute(pod, "env").stdout.splitlines() if "=" in line)
    assert names["HOSTNAME"] == "web"
    assert names["POD_NAMESPACE"] == SPACE
    unset = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert set(names) - unset == {"HOSTNAME", "HOME", "PATH", "POD_NAMESPACE", "TENSILE_SANDBOX_ID"}


@pytest.mark.parametrize(("websocket", "amount"), [("true", 100 * MEBIBYTE), ("false", 20 * MEBIBYTE)])
def test_exec_transfers_large_output_unchanged(pod: Sandbox, websocket: str, amount: int) -> None:
    """Every byte arrives, by WebSocket and by SPDY.

    The command ends when all of its output has been read: the apiserver closes a SPDY connection without waiting for
    its reader, and the remaining data is lost if kubectl sends a ping at that moment, as it does every five seconds.
    The amount is smaller by SPDY, so that it is transferred before the first ping even on a busy machine.
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


def test_a_container_has_a_log_by_default(pod: Sandbox) -> None:
    """A container without a log file has logged its start."""
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
def test_logs_supports_the_flags_of_kubectl(written: Sandbox, flags: tuple[str, ...], expected: str) -> None:
    """Each flag has the same effect as on a real node; a line in parts is one line."""
    assert logs(written, "--container=second", *flags) == expected


def test_since_omits_older_lines(pod: Sandbox) -> None:
    """Only lines of the requested period are shown."""
    log_file(pod, "second").write_text("2001-01-01T00:00:01Z stdout F old\n")
    assert logs(pod, "--container=second", "--since=10s") == ""


def test_since_applies_to_each_part_of_a_line(pod: Sandbox) -> None:
    """Each part has its own time, and parts of stdout and stderr may alternate."""
    lines = "2031-01-01T00:00:01Z stdout P ol\n2031-01-01T00:00:02Z stderr F err\n2031-01-01T00:00:03Z stdout F d\n"
    log_file(pod, "second").write_text(lines)
    assert logs(pod, "--container=second", "--since-time=2031-01-01T00:00:02Z") == "err\nd\n"


def test_tail_finds_the_last_lines_of_a_long_log(pod: Sandbox) -> None:
    """It finds them even if each line ends at the end of a block of 4096 bytes, the unit of reading."""
    head = "2031-01-01T00:00:01Z stdout F "
    texts = [letter * (4095 - len(head)) + "\n" for letter in "abcdef"]
    log_file(pod, "second").write_text("".join(head + text for text in texts))
    assert logs(pod, "--container=second", "--tail=3") == "".join(texts[3:])


def test_an_unterminated_line_is_shown(pod: Sandbox) -> None:
    """It is the last line that a container has written; `--tail` does not count it, as on a real node."""
    log_file(pod, "second").write_text(LINES + "2031-01-01T00:00:05Z stdout F unended")
    assert logs(pod, "--container=second", "--since-time=2031-01-01T00:00:04Z") == "four\nunended"
    assert logs(pod, "--container=second", "--tail=1") == "four\n"


def test_a_log_of_another_format_is_refused(pod: Sandbox) -> None:
    """The error has its first line; a single invalid line among valid ones is omitted."""
    log_file(pod, "second").write_text("plain text\n")
    completed = pod.kubectl("logs", f"--namespace={SPACE}", "web", "--container=second", cluster=LOWER)
    assert completed.returncode != 0
    assert 'unsupported log format: "plain text\\n"' in completed.stderr
    log_file(pod, "second").write_text(LINES + "plain text\n" + LINES)
    assert logs(pod, "--container=second") == "one\ntwo\nthree\nfour\n" * 2


def test_previous_logs_are_not_found(pod: Sandbox) -> None:
    """The container never restarted, and kubectl gets an error."""
    completed = pod.kubectl("logs", f"--namespace={SPACE}", "web", "--container=first", "--previous", cluster=LOWER)
    assert completed.returncode != 0
    assert "not found" in completed.stderr


def test_a_log_can_be_followed(written: Sandbox) -> None:
    """A line is shown when it is written, and the stream continues until the file is removed."""
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


def test_a_followed_line_is_shown_when_it_is_complete(written: Sandbox) -> None:
    """A line that is written in pieces is shown at once."""
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


def test_several_readers_can_follow_the_same_log(written: Sandbox) -> None:
    """Neither a reader that leaves nor the end of another log ends the other streams."""
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
    """Return the next line of a command's output, or "" at its end."""
    assert process.stdout is not None
    return process.stdout.readline()


def test_attach_shows_only_new_lines(written: Sandbox) -> None:
    """Lines that were logged before are not shown."""
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
    """Report whether the endpoint watches the file.

    The kernel lists watches in fdinfo as "inotify wd:1 ino:2a sdev:...".
    """
    watched = f" ino:{path.stat().st_ino:x} "
    for description in Path(f"/proc/{sandbox.clusters[LOWER].pids['endpoint']}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            if watched in description.read_text():
                return True
    return False


class GreetingHandler(http.server.BaseHTTPRequestHandler):
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
    """The port of a server on this machine, whose network all pods of the sandbox share."""
    serving = http.server.ThreadingHTTPServer((LOOPBACK, 0), GreetingHandler)
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
    """Call the endpoint directly, without the apiserver, and return the status of its answer."""
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


def test_a_client_without_a_certificate_cannot_connect(pod: Sandbox) -> None:
    """The endpoint ends the connection of a client without a certificate of the cluster."""
    with pytest.raises((ssl.SSLError, ConnectionError)):
        call(pod, None, "/healthz")


def test_only_the_apiserver_may_call_the_endpoint(pod: Sandbox) -> None:
    """Another certificate of the cluster is refused, even an administrator's."""
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
def test_a_path_with_an_invalid_name_is_refused(pod: Sandbox, path: str) -> None:
    """Invalid names are refused before any file is opened, so no name leads out of its folder."""
    assert call(pod, "kubelet-client", path) in {301, 307, 400}


@pytest.mark.parametrize("query", ["tailLines=x", "limitBytes=-1", "sinceSeconds=1.5", "sinceTime=yesterday"])
def test_an_invalid_log_option_is_refused(pod: Sandbox, query: str) -> None:
    """An invalid number is not treated as 0."""
    assert call(pod, "kubelet-client", f"/containerLogs/{SPACE}/web/first?{query}") == 400
