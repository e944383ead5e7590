"""Exec plugins: when they run, what they get to see, how they are bounded, and what their answers are worth."""

import asyncio
import json
import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from papers import Papers, inline, kubeconfig
from pluginkit import V1, exec_config, plugin, script

from tensile.errors import AccessError
from tensile.kube.credentials import Access, from_kubeconfig
from tensile.kube.exec_plugin import MOST, question, read_answer, run_plugin
from tensile.kube.kubeconfig import ExecPlugin, parse

SECRET = "hunter2-do-not-show"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def bearer(access: Access) -> str:
    """Return the token that an access shows."""
    return access.headers["Authorization"].removeprefix("Bearer ")


def named(path: Path, *arguments: str) -> ExecPlugin:
    """Name a plugin as a kubeconfig would."""
    return ExecPlugin(command=str(path), args=arguments, api_version=V1)


async def allowed(config: Path, clock: Clock | None = None) -> Access:
    """Read a kubeconfig whose programs may run."""
    return await from_kubeconfig(config, allow_exec_plugins=True, clock=clock or Clock())


async def test_exec_plugins_run_only_when_allowed(home: Path) -> None:
    """Without the permission the program is not started."""
    ran = home / "ran"
    config = exec_config(home, str(plugin(home, {"token": "t"}, f"touch {ran}")))
    with pytest.raises(AccessError, match="--allow-exec-plugins"):
        await from_kubeconfig(config)
    assert not ran.exists()
    assert bearer(await allowed(config)) == "t"
    assert ran.exists()


async def test_exec_plugins_do_not_see_the_whole_environment(home: Path) -> None:
    """A plugin gets its own variables and a handful of harmless ones, not ours, and nothing to read."""
    seen, stdin = home / "seen", home / "stdin"
    ran = plugin(home, {"token": "t"}, f"env > {seen}; cat > {stdin}; echo $1 >> {stdin}")
    await allowed(exec_config(home, str(ran), args=["one two"], env=[{"name": "ITS", "value": "x"}]))
    assert "ITS=x" in seen.read_text()
    assert "PATH=" in seen.read_text()
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in seen.read_text()
    assert stdin.read_text() == "one two\n"


async def test_a_plugin_learns_of_the_cluster_when_it_asks_to(home: Path, papers: Papers) -> None:
    """Address and CA are told to one that wants them, and to no other; nobody is there to be asked."""
    seen = home / "seen"
    ran = str(plugin(home, {"token": "t"}, f'echo "$KUBERNETES_EXEC_INFO" > {seen}'))
    cluster = {"certificate-authority-data": inline(papers.authority.pem), "tls-server-name": "inner"}
    await allowed(exec_config(home, ran, cluster))
    assert json.loads(seen.read_text()) == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    await allowed(exec_config(home, ran, cluster, provideClusterInfo=True))
    told = json.loads(seen.read_text())["spec"]["cluster"]
    assert told == {"server": "https://127.0.0.1:6443", **cluster}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    more = {**cluster, "extensions": [{"name": "other", "extension": 1}, extension]}
    await allowed(exec_config(home, ran, more, provideClusterInfo=True))
    assert json.loads(seen.read_text())["spec"]["cluster"] == {**told, "config": {"audience": "a"}}


def test_what_a_cluster_does_not_have_is_not_told() -> None:
    """An absent CA or name is left out instead of given as an empty one."""
    asked = json.loads(
        question(ExecPlugin(command="/x", api_version=V1, provide_cluster_info=True), "https://a", "", "")
    )
    assert asked["spec"]["cluster"] == {"server": "https://a"}


async def test_a_plugins_credential_has_an_end(home: Path) -> None:
    """It is used until a minute before the time that the plugin tells, and for ever when it tells none."""
    clock = Clock()
    over = {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    assert (await allowed(exec_config(home, str(plugin(home, over))), clock)).good_until == clock.now
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    later = {"token": "t", "expirationTimestamp": in_an_hour}
    until = (await allowed(exec_config(home, str(plugin(home, later))), clock)).good_until
    assert clock.now + 3500 < until <= clock.now + 3540
    for end in ({}, {"expirationTimestamp": "soon"}):
        endless = exec_config(home, str(plugin(home, {"token": "t", **end})))
        assert (await allowed(endless, clock)).good_until == math.inf


async def test_a_plugin_may_give_a_certificate(home: Path, papers: Papers) -> None:
    """A pair in PEM is shown to the server; one that is none is refused."""
    pair = {"clientCertificateData": papers.alice.decode(), "clientKeyData": papers.alice_key.decode()}
    assert (await allowed(exec_config(home, str(plugin(home, pair))))).headers == {}
    pair["clientKeyData"] = papers.server_key.decode()
    with pytest.raises(AccessError, match="not a matching pair"):
        await allowed(exec_config(home, str(plugin(home, pair))))


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("exit 3", "exited with code 3"),
        (f"echo {SECRET}", "did not print an ExecCredential of client.authentication.k8s.io/v1 (is not JSON)"),
        (f"echo {SECRET} >&2; exit 1", "exited with code 1"),
        (f'echo \'{{"kind": "{SECRET}"}}\'', "did not print an ExecCredential"),
        (f"echo '[\"{SECRET}\"]'", "did not print an ExecCredential"),
        ("kill -9 $$", "exited with code -9"),
    ],
)
async def test_a_plugin_that_fails_is_an_error_that_shows_nothing(home: Path, lines: str, words: str) -> None:
    """What a plugin writes may hold secrets and is not repeated; the program is named, and what to do."""
    config = exec_config(home, str(script(home, lines)))
    with pytest.raises(AccessError, match="run it by hand") as refused:
        await allowed(config)
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


NOTHING = "status has neither a token nor a certificate with its key"
NO_TOKEN = "status.token is not one line of at most 32768 visible characters"
GIVES_NOTHING = {
    "nothing": ({}, NOTHING),
    "half a pair": ({"clientKeyData": "k"}, NOTHING),
    "two lines": ({"token": f"a\n{SECRET}"}, NO_TOKEN),
    "other letters": ({"token": f"\u0442{SECRET}"}, NO_TOKEN),
    "without end": ({"token": SECRET * 5000}, NO_TOKEN),
    "a number": ({"token": 5}, "status.token must be text"),
    "a list": ({"clientCertificateData": [SECRET]}, "status.clientCertificateData must be text"),
    "no mapping": ([SECRET], "status must be a mapping"),
}


@pytest.mark.parametrize("sort", GIVES_NOTHING)
def test_a_plugin_that_gives_nothing_is_an_error(sort: str) -> None:
    """What is missing, or is none, is named by its key; nothing of the answer is repeated."""
    status, words = GIVES_NOTHING[sort]
    output = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}).encode()
    with pytest.raises(AccessError) as refused:
        read_answer(output, named(Path("/p")), "f")
    printed = f"f: the exec plugin /p did not print an ExecCredential of {V1}"
    assert str(refused.value) == f"{printed} ({words}): run it by hand"


def test_what_else_a_plugin_prints_is_passed_over() -> None:
    """Kubernetes does so: keys of later forms, and null for what is not given."""
    status = {"token": " t\n", "clientKeyData": None, "later": {"a": 1}}
    output = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "spec": {}, "status": status}).encode()
    found = read_answer(output, named(Path("/p")), "f")
    assert (found.token, found.certificate, found.key, found.until) == ("t", "", "", None)
    assert "t'" not in repr(found)


def test_all_that_kubernetes_has_in_the_section_is_read() -> None:
    """Also hints for people and null for what is not given; the variables' values are not shown."""
    section = {
        "command": "/x",
        "apiVersion": V1,
        "args": ["-c", ""],
        "env": [{"name": "N", "value": SECRET}],
        "installHint": "fetch it",
        "provideClusterInfo": True,
        "interactiveMode": "IfAvailable",
    }
    found = parse(kubeconfig({"exec": section}), None, "f").plugin
    assert found is not None
    assert (found.command, found.args, found.api_version) == ("/x", ("-c", ""), V1)
    assert [(one.name, one.value) for one in found.env] == [("N", SECRET)]
    assert found.provide_cluster_info
    assert SECRET not in f"{found!r}{found}"
    empty = {"command": "/x", "apiVersion": V1, "args": None, "env": None, "interactiveMode": None}
    assert parse(kubeconfig({"exec": empty}), None, "f").plugin == ExecPlugin(command="/x", api_version=V1)


def test_an_answer_of_another_form_is_refused() -> None:
    """The plugin has to speak the version that the kubeconfig names."""
    output = json.dumps({"apiVersion": f"{V1}beta1", "kind": "ExecCredential", "status": {"token": "t"}}).encode()
    assert read_answer(output, ExecPlugin(command="/p", api_version=f"{V1}beta1"), "f").token == "t"
    with pytest.raises(AccessError, match=f"no?t? print an ExecCredential of {V1}"):
        read_answer(output, named(Path("/p")), "f")


async def test_a_plugin_that_does_not_end_is_ended_with_all_it_started(home: Path) -> None:
    """After the time given to it neither the program nor its children run on."""
    pids = home / "pids"
    ran = script(home, f"sleep 1000 & echo $! > {pids}; echo $$ >> {pids}; wait")
    with pytest.raises(AccessError, match=r"did not exit within 2 s: run it by hand"):
        await run_plugin(named(ran), "", "f", seconds=2.0)
    async with asyncio.timeout(60):
        while any(_runs(pid) for pid in pids.read_text().split()):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.01)


def _runs(pid: str) -> bool:
    """Report whether a process runs; one that has ended and waits to be noticed does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_plugin_that_prints_without_end_is_ended(home: Path) -> None:
    """Only so much is read as an answer can have."""
    with pytest.raises(AccessError, match=f"printed more than {MOST} bytes"):
        await run_plugin(named(script(home, "exec yes")), "", "f")


async def test_a_plugin_that_cannot_be_started_is_told(home: Path) -> None:
    """Whatever the system has against it, it is an error with the program's name."""
    (home / "text").write_text("no program")
    with pytest.raises(AccessError, match=r"text could not be started \(PermissionError\)"):
        await run_plugin(named(home / "text"), "", "f")
    with pytest.raises(AccessError, match="gone is not a file: install it"):
        await run_plugin(named(home / "gone"), "", "f")


async def test_a_plugin_may_leave_a_helper_running(home: Path) -> None:
    """What a plugin that came through has started on purpose is not ours to end."""
    pid = home / "pid"
    ran = script(home, f"sleep 1000 >/dev/null & echo $! > {pid}; echo done")
    assert await run_plugin(named(ran), "", "f") == b"done\n"
    assert _runs(pid.read_text().strip())
    os.kill(int(pid.read_text()), 9)
