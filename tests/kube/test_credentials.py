"""Tests of access to clusters: what is read from files and Secrets, how credentials are renewed, what is rejected."""

import math
import ssl
from pathlib import Path

import pytest
from certkit import CertificateSet, inline, kubeconfig
from pluginkit import exec_config, plugin

from tensile.kube.credentials import Access, AccessError, from_kubeconfig, from_text, in_cluster

SECRET = "hunter2-do-not-show"


def write(path: Path, text: str) -> Path:
    """Write a file and return its path."""
    path.write_text(text)
    return path


def bearer(access: Access) -> str:
    """Return the bearer token of an access."""
    return access.headers["Authorization"].removeprefix("Bearer ")


async def test_address_port_and_path_prefix_come_from_the_server_url(home: Path) -> None:
    """The default port is that of HTTPS, and a credential without an expiry never expires."""
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


async def test_the_tls_context_always_verifies_the_server(home: Path, certificates: CertificateSet) -> None:
    """It verifies certificate and host name with TLS 1.2 or newer, and trusts only the CA of the kubeconfig."""
    text = kubeconfig({"token": "t"}, {"certificate-authority-data": inline(certificates.authority.pem)})
    tls = (await from_kubeconfig(write(home / "f", text))).tls
    assert tls.verify_mode == ssl.CERT_REQUIRED
    assert tls.check_hostname
    assert tls.minimum_version == ssl.TLSVersion.TLSv1_2
    assert len(tls.get_ca_certs()) == 1


async def test_relative_file_names_are_relative_to_the_kubeconfig(home: Path, certificates: CertificateSet) -> None:
    """The working directory of the program does not matter."""
    (home / "pki").mkdir()
    for name, pem in (
        ("ca", certificates.authority.pem),
        ("alice", certificates.alice),
        ("key", certificates.alice_key),
    ):
        (home / "pki" / name).write_bytes(pem)
    user = {"client-certificate": "pki/alice", "client-key": "pki/key"}
    access = await from_kubeconfig(write(home / "f", kubeconfig(user, {"certificate-authority": "pki/ca"})))
    assert len(access.tls.get_ca_certs()) == 1
    assert access.headers == {}


async def test_the_access_records_the_state_of_every_file_that_was_read(
    home: Path, certificates: CertificateSet
) -> None:
    """These are the kubeconfig and the files that it names, so that a change of any of them can be detected."""
    for name, content in (("token", b"one"), ("ca", certificates.authority.pem)):
        (home / name).write_bytes(content)
    text = kubeconfig({"tokenFile": "token"}, {"certificate-authority": "ca"})
    access = await from_kubeconfig(write(home / "f", text))
    assert access.files.paths == tuple(home / name for name in ("f", "ca", "token"))
    assert access.files.again() == access.files
    write(home / "token", "other")
    assert access.files.again() != access.files
    assert bearer(access) == "one"
    assert bearer(await access.renew()) == "other"


async def test_a_file_that_changes_while_it_is_read_counts_as_changed(home: Path) -> None:
    """The state of the files is recorded before they are read, so that no change is missed."""
    ran = plugin(home, {"token": "t"}, f"echo >> {home / 'f'}")
    access = await from_kubeconfig(exec_config(home, str(ran)), allow_exec_plugins=True)
    assert access.files.again() != access.files


async def test_a_renewed_access_keeps_the_tls_context_if_only_the_token_changed(
    home: Path, certificates: CertificateSet
) -> None:
    """This keeps open connections; another CA needs another TLS context."""
    authority = {"certificate-authority-data": inline(certificates.authority.pem)}
    path = write(home / "f", kubeconfig({"token": "one"}, authority))
    access = await from_kubeconfig(path)
    same = await access.renew()
    assert same.visible_parts() == access.visible_parts()
    write(path, kubeconfig({"token": "two"}, authority))
    other = (await access.renew()).with_tls_of(access)
    assert other.visible_parts() != access.visible_parts()
    assert other.tls is access.tls
    write(path, kubeconfig({"token": "two"}, {"certificate-authority-data": inline(certificates.other_authority.pem)}))
    assert (await access.renew()).with_tls_of(access).tls is not access.tls


async def test_an_encrypted_client_key_is_rejected_without_a_password_prompt(
    home: Path, certificates: CertificateSet
) -> None:
    """The engine must not wait for a password on a terminal."""
    user = {
        "client-certificate-data": inline(certificates.alice),
        "client-key-data": inline(certificates.encrypted_key()),
    }
    with pytest.raises(AccessError, match="client-key is encrypted"):
        await from_kubeconfig(write(home / "f", kubeconfig(user)))


async def test_a_kubeconfig_from_a_secret_has_no_files() -> None:
    """It must be UTF-8 text, its origin names the Secret, and renewing it returns the same access."""
    with pytest.raises(AccessError, match="byte 3 is not UTF-8"):
        await from_text(b"a: \xff", "Secret a/b")
    access = await from_text(kubeconfig({"token": "t"}).encode(), "Secret a/b")
    assert access.files.paths == ()
    assert access.origin == "Secret a/b"
    assert bearer(await access.renew()) == "t"


async def test_the_access_inside_a_pod_uses_its_service_account(home: Path, certificates: CertificateSet) -> None:
    """Address, CA and token are those that Kubernetes provides in every pod; an IPv6 address gets brackets."""
    (home / "ca.crt").write_bytes(certificates.authority.pem)
    write(home / "token", "pod-token")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = await in_cluster(environment, home)
    assert (access.url, access.address, access.port) == ("https://[fd00::1]:6443", "fd00::1", 6443)
    assert bearer(access) == "pod-token"
    write(home / "token", "next")
    assert bearer(await access.renew()) == "next"


async def test_in_cluster_access_outside_of_a_pod_raises_an_error(home: Path) -> None:
    """The error recommends to set upper.kubeconfig."""
    with pytest.raises(AccessError, match=r"upper\.kubeconfig"):
        await in_cluster({}, home)


async def test_the_repr_of_an_access_contains_no_token(home: Path) -> None:
    """An access may be logged, so its text must not contain the credential."""
    assert SECRET not in repr(await from_kubeconfig(write(home / "f", kubeconfig({"token": SECRET}))))


async def test_an_access_has_the_kubectl_flags_for_the_same_cluster(home: Path, certificates: CertificateSet) -> None:
    """The kubeconfig and its context are quoted for a shell.

    For a kubeconfig in a Secret the path is FILE, and a pod needs no flags.
    """
    path = write(home / "my file", kubeconfig({"token": "t"}))
    assert (await from_kubeconfig(path, "here")).flags == f"--kubeconfig '{path}' --context here"
    assert (await from_kubeconfig(path)).flags == f"--kubeconfig '{path}'"
    assert (
        await from_text(kubeconfig({"token": "t"}), "Secret a/b", "here")
    ).flags == "--kubeconfig FILE --context here"
    (home / "ca.crt").write_bytes(certificates.authority.pem)
    write(home / "token", "pod-token")
    assert (await in_cluster({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, home)).flags == ""


async def test_an_access_error_has_a_problem_and_an_advice(home: Path) -> None:
    """Both may contain any characters; the text of the error joins them in one line."""
    path = write(home / "f", kubeconfig({"token": "t"}, {"insecure-skip-tls-verify": True}))
    with pytest.raises(AccessError) as caught:
        await from_kubeconfig(path)
    assert caught.value.what == f"{path}: clusters[0].cluster: insecure-skip-tls-verify is refused"
    assert caught.value.advice.startswith("give certificate-authority-data instead: without it")
    assert str(caught.value) == f"{caught.value.what}: {caught.value.advice}"
