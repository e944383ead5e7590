"""Ways to clusters: what is opened from files and Secrets, how credentials are renewed, what is refused."""

import json
import math
import os
import ssl
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from papers import Papers, inline, kubeconfig

from tensile.kube.access import Access, AccessError, from_kubeconfig, from_text, in_cluster

SECRET = "hunter2-do-not-show"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Give the time."""
        return self.now


def write(path: Path, text: str) -> Path:
    """Write a file and give its path."""
    path.write_text(text)
    return path


def bearer(access: Access) -> str:
    """Give the token that an access shows."""
    return access.headers()["Authorization"].removeprefix("Bearer ")


async def test_address_port_and_prefix_come_from_the_server(home: Path) -> None:
    """What a connection of one's own needs is told apart, with HTTPS' port as the default."""
    text = kubeconfig({"token": "t"}, server="https://a.example/k8s/c1")
    access = await from_kubeconfig(write(home / "f", text))
    assert (access.url, access.address, access.port, access.prefix, access.server_name) == (
        "https://a.example/k8s/c1",
        "a.example",
        443,
        "/k8s/c1",
        "a.example",
    )
    assert access.good_until == math.inf


async def test_the_server_is_always_checked(home: Path, papers: Papers) -> None:
    """Certificates and host names are verified, with TLS 1.2 at least, against the file's authority alone."""
    text = kubeconfig({"token": "t"}, {"certificate-authority-data": inline(papers.authority.pem)})
    tls = (await from_kubeconfig(write(home / "f", text))).tls
    assert tls.verify_mode == ssl.CERT_REQUIRED
    assert tls.check_hostname
    assert tls.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(tls.get_ca_certs()) == 1


async def test_files_are_found_beside_the_kubeconfig(home: Path, papers: Papers) -> None:
    """Relative names are relative to the kubeconfig, not to where the program runs."""
    (home / "pki").mkdir()
    for name, pem in (("ca", papers.authority.pem), ("alice", papers.alice), ("key", papers.alice_key)):
        (home / "pki" / name).write_bytes(pem)
    user = {"client-certificate": "pki/alice", "client-key": "pki/key"}
    access = await from_kubeconfig(write(home / "f", kubeconfig(user, {"certificate-authority": "pki/ca"})))
    assert len(access.tls.get_ca_certs()) == 1
    assert access.headers() == {}


async def test_a_token_file_is_read_again_while_it_changes(home: Path) -> None:
    """A replaced token is in use ten seconds later, and a file in the middle of being replaced changes nothing."""
    clock = Clock()
    token = write(home / "token", "one\n")
    access = await from_kubeconfig(write(home / "f", kubeconfig({"tokenFile": "token"})), clock=clock)
    first = access.headers()
    token.write_text("two\n")
    clock.now += 9
    assert access.headers() is first
    clock.now += 1
    assert bearer(access) == "two"
    token.write_text("")
    clock.now += 10
    assert bearer(access) == "two"
    token.unlink()
    clock.now += 10
    assert bearer(access) == "two"


async def test_renewing_reads_everything_anew(home: Path) -> None:
    """After a refusal the kubeconfig itself is read again, so a rotated one comes into force."""
    path = write(home / "f", kubeconfig({"token": "one"}))
    access = await from_kubeconfig(path)
    path.write_text(kubeconfig({"token": "two"}))
    renewed = await access.renew()
    assert (bearer(access), bearer(renewed)) == ("one", "two")


async def test_renewing_says_when_the_file_is_bad_by_now(home: Path) -> None:
    """A kubeconfig that went bad is an error, not another way in."""
    path = write(home / "f", kubeconfig({"token": "one"}))
    access = await from_kubeconfig(path)
    path.write_text("broken: [")
    with pytest.raises(AccessError, match="not YAML"):
        await access.renew()


async def test_an_absent_file_is_named(home: Path) -> None:
    """The path and what to do are in the message; nothing else is tried."""
    with pytest.raises(AccessError, match=r"gone: cannot be read \(No such file or directory\): check the path"):
        await from_kubeconfig(home / "gone")


BAD_MATERIAL = {
    "holds no certificate": ({"token": SECRET}, {"certificate-authority-data": inline(b"nothing")}),
    "no pair in PEM": (
        {"client-certificate-data": inline(b"nothing"), "client-key-data": inline(SECRET.encode())},
        {},
    ),
    "missing: cannot be read": ({"tokenFile": "missing"}, {}),
    "empty: holds no token": ({"tokenFile": "empty"}, {}),
    "lines: holds no token": ({"tokenFile": "lines"}, {}),
    "no-ca: cannot be read": ({"token": SECRET}, {"certificate-authority": "no-ca"}),
}


@pytest.mark.parametrize("words", BAD_MATERIAL)
async def test_bad_material_is_refused_without_showing_it(home: Path, words: str) -> None:
    """What is no certificate, key or token is named by where it stands."""
    user, cluster = BAD_MATERIAL[words]
    write(home / "empty", "\n")
    write(home / "lines", f"a\n{SECRET}")
    with pytest.raises(AccessError) as refused:
        await from_kubeconfig(write(home / "f", kubeconfig(user, cluster)))
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


async def test_a_certificate_with_another_key_is_refused(home: Path, papers: Papers) -> None:
    """Certificate and key must belong together."""
    user = {"client-certificate-data": inline(papers.alice), "client-key-data": inline(papers.server_key)}
    with pytest.raises(AccessError, match="no pair"):
        await from_kubeconfig(write(home / "f", kubeconfig(user)))


async def test_an_encrypted_key_is_refused_instead_of_asked_about(home: Path, papers: Papers) -> None:
    """Nothing waits for a password on a terminal."""
    user = {"client-certificate-data": inline(papers.alice), "client-key-data": inline(papers.locked_key())}
    with pytest.raises(AccessError, match="client-key is encrypted"):
        await from_kubeconfig(write(home / "f", kubeconfig(user)))


async def test_a_kubeconfig_out_of_a_secret_opens_no_files_and_runs_nothing() -> None:
    """Text that others may write cannot name files of this machine or programs."""
    with pytest.raises(AccessError, match=r"Secret a/b: names the file /etc/shadow"):
        await from_text(kubeconfig({"tokenFile": "/etc/shadow"}), "Secret a/b")
    with pytest.raises(AccessError, match="exec plugins are refused"):
        await from_text(kubeconfig({"exec": {"command": "/bin/true", "apiVersion": "v1"}}), "Secret a/b")
    access = await from_text(kubeconfig({"token": "t"}), "Secret a/b")
    assert access.origin == "Secret a/b"
    assert bearer(await access.renew()) == "t"


async def test_inside_a_pod_its_service_account_is_used(home: Path, papers: Papers) -> None:
    """Address, CA and token are those that Kubernetes puts into every pod; IPv6 addresses get their brackets."""
    (home / "ca.crt").write_bytes(papers.authority.pem)
    write(home / "token", "pod-token")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = await in_cluster(environment, home)
    assert (access.url, access.address, access.port) == ("https://[fd00::1]:6443", "fd00::1", 6443)
    assert bearer(access) == "pod-token"
    write(home / "token", "next")
    assert bearer(await access.renew()) == "next"


async def test_outside_of_a_pod_that_is_said(home: Path) -> None:
    """The message names what is missing and the field to set."""
    with pytest.raises(AccessError, match=r"upper\.kubeconfig"):
        await in_cluster({}, home)


def plugin(home: Path, status: Mapping[str, str], extra: str = "") -> Path:
    """Write an exec plugin that answers with `status`."""
    credential = json.dumps(
        {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    )
    path = write(home / "plugin", f"#!/bin/sh\n{extra}\ncat <<'EOF'\n{credential}\nEOF\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def exec_config(home: Path, command: str, **more: object) -> Path:
    """Write a kubeconfig that uses an exec plugin."""
    section = {"command": command, "apiVersion": "client.authentication.k8s.io/v1", **more}
    return write(home / "f", kubeconfig({"exec": section}))


async def test_exec_plugins_run_only_when_allowed(home: Path) -> None:
    """Without the permission the program is not started."""
    ran = home / "ran"
    config = exec_config(home, str(plugin(home, {"token": "t"}, f"touch {ran}")))
    with pytest.raises(AccessError, match="--allow-exec-plugins"):
        await from_kubeconfig(config)
    assert not ran.exists()
    assert bearer(await from_kubeconfig(config, allow_exec_plugins=True)) == "t"
    assert ran.exists()


async def test_exec_plugins_are_run_by_absolute_path_only(home: Path) -> None:
    """A bare name would be looked for on the PATH, where somebody else may have put it."""
    with pytest.raises(AccessError, match="'plugin' is refused: give its absolute path"):
        await from_kubeconfig(exec_config(home, "plugin"), allow_exec_plugins=True)


async def test_exec_plugins_do_not_see_the_whole_environment(home: Path) -> None:
    """A plugin gets its own variables and a handful of harmless ones, not ours."""
    seen = home / "seen"
    config = exec_config(home, str(plugin(home, {"token": "t"}, f"env > {seen}")), env=[{"name": "ITS", "value": "x"}])
    await from_kubeconfig(config, allow_exec_plugins=True)
    assert "ITS=x" in seen.read_text()
    assert "PATH=" in seen.read_text()
    assert "PYTEST_CURRENT_TEST" in os.environ
    assert "PYTEST_CURRENT_TEST" not in seen.read_text()


async def test_a_plugins_credential_has_an_end(home: Path) -> None:
    """It is used until a minute before the time that the plugin tells, and for ever when it tells none."""
    status = {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    clock = Clock()
    access = await from_kubeconfig(exec_config(home, str(plugin(home, status))), allow_exec_plugins=True, clock=clock)
    assert access.good_until == clock.now
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    later = {"token": "t", "expirationTimestamp": in_an_hour}
    access = await from_kubeconfig(exec_config(home, str(plugin(home, later))), allow_exec_plugins=True, clock=clock)
    assert clock.now + 3500 < access.good_until <= clock.now + 3540
    access = await from_kubeconfig(
        exec_config(home, str(plugin(home, {"token": "t"}))), allow_exec_plugins=True, clock=clock
    )
    assert access.good_until == math.inf


async def test_a_plugin_may_give_a_certificate(home: Path, papers: Papers) -> None:
    """A pair in PEM is shown to the server; one that is none is refused."""
    pair = {"clientCertificateData": papers.alice.decode(), "clientKeyData": papers.alice_key.decode()}
    access = await from_kubeconfig(exec_config(home, str(plugin(home, pair))), allow_exec_plugins=True)
    assert access.headers() == {}
    pair["clientKeyData"] = papers.server_key.decode()
    with pytest.raises(AccessError, match="no pair"):
        await from_kubeconfig(exec_config(home, str(plugin(home, pair))), allow_exec_plugins=True)


@pytest.mark.parametrize("extra", ["exit 3", "echo no json; exit 0", f"echo {SECRET} >&2; exit 1"])
async def test_a_plugin_that_fails_is_an_error_that_shows_nothing(home: Path, extra: str) -> None:
    """What a plugin writes may hold secrets and is not repeated."""
    config = exec_config(home, str(plugin(home, {}, extra)))
    with pytest.raises(AccessError, match="run it by hand") as refused:
        await from_kubeconfig(config, allow_exec_plugins=True)
    assert SECRET not in str(refused.value)


async def test_a_plugin_that_gives_nothing_is_an_error(home: Path) -> None:
    """An answer without a token and without a certificate is no credential, nor is a token of two lines."""
    for status in ({}, {"clientKeyData": "k"}, {"token": "a\nb"}):
        with pytest.raises(AccessError, match="gave no credential"):
            await from_kubeconfig(exec_config(home, str(plugin(home, status))), allow_exec_plugins=True)


async def test_an_access_does_not_show_its_secrets(home: Path) -> None:
    """Its own words hold no token."""
    assert SECRET not in repr(await from_kubeconfig(write(home / "f", kubeconfig({"token": SECRET}))))
