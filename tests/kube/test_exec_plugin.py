"""Tests of exec plugins: when they run, their input, their limits, and which output is accepted."""

import asyncio
import json
import math
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from certkit import CertificateSet, inline, kubeconfig
from pluginkit import V1, exec_config, plugin, script

from tensile.errors import AccessError
from tensile.kube.credentials import Access, from_kubeconfig
from tensile.kube.exec_plugin import MOST, question, read_answer, run_plugin
from tensile.kube.kubeconfig import ExecPlugin, parse

SECRET = "hunter2-do-not-show"


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def bearer(access: Access) -> str:
    """Return the bearer token of an access."""
    return access.headers["Authorization"].removeprefix("Bearer ")


def named(path: Path, *arguments: str) -> ExecPlugin:
    """Return an exec plugin as a kubeconfig would define it."""
    return ExecPlugin(command=str(path), args=arguments, api_version=V1)


async def allowed(config: Path, clock: Clock | None = None) -> Access:
    """Read a kubeconfig with exec plugins allowed."""
    return await from_kubeconfig(config, allow_exec_plugins=True, clock=clock or Clock())


async def test_an_exec_plugin_runs_only_if_exec_plugins_are_allowed(home: Path) -> None:
    """Without --allow-exec-plugins the program is not started."""
    ran = home / "ran"
    config = exec_config(home, str(plugin(home, {"token": "t"}, f"touch {ran}")))
    with pytest.raises(AccessError, match="--allow-exec-plugins"):
        await from_kubeconfig(config)
    assert not ran.exists()
    assert bearer(await allowed(config)) == "t"
    assert ran.exists()


async def test_an_exec_plugin_gets_a_minimal_environment_and_an_empty_stdin(home: Path) -> None:
    """It gets the variables of its kubeconfig and a few harmless ones, and not the rest of the engine's environment."""
    seen, stdin = home / "seen", home / "stdin"
    ran = plugin(home, {"token": "t"}, f"env > {seen}; cat > {stdin}; echo $1 >> {stdin}")
    await allowed(exec_config(home, str(ran), args=["one two"], env=[{"name": "ITS", "value": "x"}]))
    assert "ITS=x" in seen.read_text()
    assert "PATH=" in seen.read_text()
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in seen.read_text()
    assert stdin.read_text() == "one two\n"


async def test_an_exec_plugin_gets_cluster_data_only_with_provide_cluster_info(
    home: Path, certificates: CertificateSet
) -> None:
    """The data are server, CA, tls-server-name and config; `interactive` is always false."""
    seen = home / "seen"
    ran = str(plugin(home, {"token": "t"}, f'echo "$KUBERNETES_EXEC_INFO" > {seen}'))
    cluster = {"certificate-authority-data": inline(certificates.authority.pem), "tls-server-name": "inner"}
    await allowed(exec_config(home, ran, cluster))
    assert json.loads(seen.read_text()) == {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    await allowed(exec_config(home, ran, cluster, provideClusterInfo=True))
    cluster_info = json.loads(seen.read_text())["spec"]["cluster"]
    assert cluster_info == {"server": "https://127.0.0.1:6443", **cluster}
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}
    more = {**cluster, "extensions": [{"name": "other", "extension": 1}, extension]}
    await allowed(exec_config(home, ran, more, provideClusterInfo=True))
    assert json.loads(seen.read_text())["spec"]["cluster"] == {**cluster_info, "config": {"audience": "a"}}


def test_cluster_data_for_an_exec_plugin_omit_absent_fields() -> None:
    """Without a CA or a tls-server-name, the field is absent and not empty."""
    cluster_info = json.loads(
        question(ExecPlugin(command="/x", api_version=V1, provide_cluster_info=True), "https://a", "", "")
    )
    assert cluster_info["spec"]["cluster"] == {"server": "https://a"}


async def test_the_credential_of_an_exec_plugin_expires_a_minute_early(home: Path) -> None:
    """Without a valid expirationTimestamp it never expires."""
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


async def test_an_exec_plugin_may_return_a_client_certificate(home: Path, certificates: CertificateSet) -> None:
    """A certificate and key that do not match are rejected."""
    pair = {"clientCertificateData": certificates.alice.decode(), "clientKeyData": certificates.alice_key.decode()}
    assert (await allowed(exec_config(home, str(plugin(home, pair))))).headers == {}
    pair["clientKeyData"] = certificates.server_key.decode()
    with pytest.raises(AccessError, match="not a matching pair"):
        await allowed(exec_config(home, str(plugin(home, pair))))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("exit 3", "exited with code 3"),
        (f"echo {SECRET}", "did not print an ExecCredential of client.authentication.k8s.io/v1 (is not JSON)"),
        (f"echo {SECRET} >&2; exit 1", "exited with code 1"),
        (f'echo \'{{"kind": "{SECRET}"}}\'', "did not print an ExecCredential"),
        (f"echo '[\"{SECRET}\"]'", "did not print an ExecCredential"),
        ("kill -9 $$", "exited with code -9"),
    ],
)
async def test_the_error_for_a_failed_exec_plugin_does_not_show_its_output(
    home: Path, lines: str, message: str
) -> None:
    """The output may contain secrets, so the error only gives the reason and advises to run the plugin by hand."""
    config = exec_config(home, str(script(home, lines)))
    with pytest.raises(AccessError, match="run it by hand") as refused:
        await allowed(config)
    assert message in str(refused.value)
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
def test_output_of_an_exec_plugin_without_a_valid_credential_is_an_error(sort: str) -> None:
    """The error names the key that is missing or invalid, and no value of the output."""
    status, message = GIVES_NOTHING[sort]
    output = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}).encode()
    with pytest.raises(AccessError) as refused:
        read_answer(output, named(Path("/p")), "f")
    printed = f"f: the exec plugin /p did not print an ExecCredential of {V1}"
    assert str(refused.value) == f"{printed} ({message}): run it by hand"


def test_unknown_keys_and_nulls_in_the_output_of_an_exec_plugin_are_ignored() -> None:
    """Kubernetes ignores them too, for example keys of later API versions."""
    status = {"token": " t\n", "clientKeyData": None, "later": {"a": 1}}
    output = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "spec": {}, "status": status}).encode()
    found = read_answer(output, named(Path("/p")), "f")
    assert (found.token, found.certificate, found.key, found.until) == ("t", "", "", None)
    assert "t'" not in repr(found)


def test_all_exec_plugin_fields_of_kubernetes_are_accepted_in_a_kubeconfig() -> None:
    """Hints for users and null values are accepted too, and values of variables are not shown in the repr."""
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


def test_an_exec_plugin_must_use_the_api_version_of_the_kubeconfig() -> None:
    """An ExecCredential of another API version is an error."""
    output = json.dumps({"apiVersion": f"{V1}beta1", "kind": "ExecCredential", "status": {"token": "t"}}).encode()
    assert read_answer(output, ExecPlugin(command="/p", api_version=f"{V1}beta1"), "f").token == "t"
    with pytest.raises(AccessError, match=f"no?t? print an ExecCredential of {V1}"):
        read_answer(output, named(Path("/p")), "f")


async def test_an_exec_plugin_is_killed_with_its_child_processes_after_a_timeout(home: Path) -> None:
    """The error says that it did not exit in time."""
    pids = home / "pids"
    ran = script(home, f"sleep 1000 & echo $! > {pids}; echo $$ >> {pids}; wait")
    with pytest.raises(AccessError, match=r"did not exit within 2 s: run it by hand"):
        await run_plugin(named(ran), "", "f", seconds=2.0)
    async with asyncio.timeout(60):
        while any(_runs(pid) for pid in pids.read_text().split()):  # noqa: ASYNC110 - the kernel sends no notice
            await asyncio.sleep(0.01)


def _runs(pid: str) -> bool:
    """Report whether a process runs; a zombie does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_an_exec_plugin_is_killed_if_it_prints_too_much(home: Path) -> None:
    """The limit is more than any valid output needs."""
    with pytest.raises(AccessError, match=f"printed more than {MOST} bytes"):
        await run_plugin(named(script(home, "exec yes")), "", "f")


async def test_the_error_for_an_exec_plugin_that_cannot_be_started_names_the_program(home: Path) -> None:
    """This applies to a file that is not executable and to a file that does not exist."""
    (home / "text").write_text("no program")
    with pytest.raises(AccessError, match=r"text could not be started \(PermissionError\)"):
        await run_plugin(named(home / "text"), "", "f")
    with pytest.raises(AccessError, match="gone is not a file: install it"):
        await run_plugin(named(home / "gone"), "", "f")


async def test_a_background_process_of_a_successful_exec_plugin_is_not_killed(home: Path) -> None:
    """The plugin started it on purpose."""
    pid = home / "pid"
    ran = script(home, f"sleep 1000 >/dev/null & echo $! > {pid}; echo done")
    assert await run_plugin(named(ran), "", "f") == b"done\n"
    assert _runs(pid.read_text().strip())
    os.kill(int(pid.read_text()), 9)
