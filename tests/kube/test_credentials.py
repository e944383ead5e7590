"""Ways to clusters: what is opened from files and Secrets, how credentials are renewed, what is refused."""

import math
import ssl
from pathlib import Path

import pytest
from papers import Papers, inline, kubeconfig
from pluginkit import exec_config, plugin

from tensile.kube.credentials import Access, AccessError, from_kubeconfig, from_text, in_cluster

SECRET = "hunter2-do-not-show"


def write(path: Path, text: str) -> Path:
    """Write a file and give its path."""
    path.write_text(text)
    return path


def bearer(access: Access) -> str:
    """Return the token that an access shows."""
    return access.headers["Authorization"].removeprefix("Bearer ")


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
    assert access.headers == {}


async def test_every_file_that_was_read_can_be_looked_at_again(home: Path, papers: Papers) -> None:
    """The kubeconfig and all that it names, so that a change of any of them is seen; no more than that."""
    for name, content in (("token", b"one"), ("ca", papers.authority.pem)):
        (home / name).write_bytes(content)
    text = kubeconfig({"tokenFile": "token"}, {"certificate-authority": "ca"})
    access = await from_kubeconfig(write(home / "f", text))
    assert access.files.paths == tuple(home / name for name in ("f", "ca", "token"))
    assert access.files.again() == access.files
    write(home / "token", "other")
    assert access.files.again() != access.files
    assert bearer(access) == "one"
    assert bearer(await access.renew()) == "other"


async def test_what_changes_while_it_is_read_counts_as_changed_afterwards(home: Path) -> None:
    """The look at the files comes before the reading, so nothing can slip in between."""
    ran = plugin(home, {"token": "t"}, f"echo >> {home / 'f'}")
    access = await from_kubeconfig(exec_config(home, str(ran)), allow_exec_plugins=True)
    assert access.files.again() != access.files


async def test_the_same_papers_keep_their_context(home: Path, papers: Papers) -> None:
    """Another token alone does not cost the connections that are open; another CA does."""
    authority = {"certificate-authority-data": inline(papers.authority.pem)}
    path = write(home / "f", kubeconfig({"token": "one"}, authority))
    access = await from_kubeconfig(path)
    same = await access.renew()
    assert same.shows() == access.shows()
    write(path, kubeconfig({"token": "two"}, authority))
    other = (await access.renew()).keeping(access)
    assert other.shows() != access.shows()
    assert other.tls is access.tls
    write(path, kubeconfig({"token": "two"}, {"certificate-authority-data": inline(papers.other.pem)}))
    assert (await access.renew()).keeping(access).tls is not access.tls


async def test_an_encrypted_key_is_refused_instead_of_asked_about(home: Path, papers: Papers) -> None:
    """Nothing waits for a password on a terminal."""
    user = {"client-certificate-data": inline(papers.alice), "client-key-data": inline(papers.locked_key())}
    with pytest.raises(AccessError, match="client-key is encrypted"):
        await from_kubeconfig(write(home / "f", kubeconfig(user)))


async def test_a_kubeconfig_out_of_a_secret_is_read_as_text() -> None:
    """No file stands for it; read anew, it is the same."""
    with pytest.raises(AccessError, match="byte 3 is not UTF-8"):
        await from_text(b"a: \xff", "Secret a/b")
    access = await from_text(kubeconfig({"token": "t"}).encode(), "Secret a/b")
    assert access.files.paths == ()
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


async def test_an_access_does_not_show_its_secrets(home: Path) -> None:
    """Its own words hold no token."""
    assert SECRET not in repr(await from_kubeconfig(write(home / "f", kubeconfig({"token": SECRET}))))


async def test_kubectl_can_be_told_the_same_way(home: Path, papers: Papers) -> None:
    """By the file and its context, quoted for a shell; a Secret has to become a FILE; a pod needs nothing."""
    path = write(home / "my file", kubeconfig({"token": "t"}))
    assert (await from_kubeconfig(path, "here")).flags == f"--kubeconfig '{path}' --context here"
    assert (await from_kubeconfig(path)).flags == f"--kubeconfig '{path}'"
    assert (
        await from_text(kubeconfig({"token": "t"}), "Secret a/b", "here")
    ).flags == "--kubeconfig FILE --context here"
    (home / "ca.crt").write_bytes(papers.authority.pem)
    write(home / "token", "pod-token")
    assert (await in_cluster({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, home)).flags == ""


async def test_what_is_wrong_and_what_to_do_are_two_things(home: Path) -> None:
    """Whatever signs are in them; people read both in one line."""
    path = write(home / "f", kubeconfig({"token": "t"}, {"insecure-skip-tls-verify": True}))
    with pytest.raises(AccessError) as caught:
        await from_kubeconfig(path)
    assert caught.value.what == f"{path}: clusters[0].cluster: insecure-skip-tls-verify is refused"
    assert caught.value.advice.startswith("give certificate-authority-data instead: without it")
    assert str(caught.value) == f"{caught.value.what}: {caught.value.advice}"
