"""Tests of a fleet whose kubeconfigs and token files change on disk: used, rejected, reported, and corrected."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from certkit import CertificateSet, inline, kubeconfig
from filekit import wait_for_watcher
from scripted import (
    UID,
    WAIT,
    ChangeSignal,
    ScriptedApiserver,
    WatchStream,
    listing,
    make_pod,
    refusal,
    running,
    wait_for_cache,
)
from structlog.testing import capture_logs

from tensile.kube.cluster import Selection
from tensile.kube.credentials import from_kubeconfig
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.health import WrongCluster
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache
from tensile.objects import POD, UPPER, Ref

REF = Ref("a", POD, "default", "web")
QUICK = InformerTimings(first=0.01, cap=0.02, near=0.02, shortest=60, longest=60, settled=0.0)


class RotatedFleet:
    """Two apiservers with TLS, a kubeconfig for the first one, and a fleet that opens it as cluster `a`."""

    def __init__(
        self, home: Path, certificates: CertificateSet, servers: tuple[ScriptedApiserver, ScriptedApiserver]
    ) -> None:
        self.path = home / "lower.kubeconfig"
        self.papers = certificates
        self.one, self.other = servers
        self.news = ChangeSignal()
        self.cache = Cache()
        self.fleet = Fleet(
            chance=self.news.fixed_random,
            pace=QUICK,
            probe=0.02,
            patience=5.0,
            again=0.05,
            sleep=self._wait,
        )

    def write(
        self, server: ScriptedApiserver, token: str = "t", user: Mapping[str, Any] | None = None, authority: str = ""
    ) -> None:
        """Replace the kubeconfig by a rename, as an editor does. `authority` names a CA file."""
        data = {"certificate-authority-data": inline(self.papers.authority.pem)}
        cluster = {"certificate-authority": authority} if authority else data
        scratch = self.path.with_suffix(".new")
        scratch.write_text(kubeconfig(user or {"token": token}, cluster, server=f"https://127.0.0.1:{server.port}"))
        scratch.rename(self.path)

    async def open(self, name: str = "a", *, anchored: bool = False) -> None:
        """Open the cluster and wait until it is identified and listed."""
        self.fleet.open(
            name,
            await from_kubeconfig(self.path),
            [InformerSpec(name, POD, Selection(), self.cache)],
            anchored=anchored,
        )
        await self.fleet[name].identified()
        await self.fleet.synced()

    async def until_complaint(self, message: str, name: str = "a") -> None:
        """Wait until the cluster's credential error contains these words; "" for no error."""
        await self.news.wait_until(
            lambda: (message in self.fleet[name].credential_error) if message else not self.fleet[name].credential_error
        )

    async def _wait(self, seconds: float) -> None:
        """Wait at most briefly, and notify the waiting test."""
        await self.news.sleep(min(seconds, 0.01))


def bearers(server: ScriptedApiserver) -> set[str]:
    """Return the tokens in the requests to a server."""
    return {request.headers["authorization"].removeprefix("Bearer ") for request in server.requests}


@asynccontextmanager
async def ground(home: Path, certificates: CertificateSet, uid: str = UID) -> AsyncIterator[RotatedFleet]:
    """Yield such a fleet; the second apiserver belongs to the cluster with that UID."""
    one, other = ScriptedApiserver(), ScriptedApiserver(uid)
    tls = certificates.server_context()
    async with running(one, tls), running(other, tls), asyncio.timeout(2 * WAIT):
        made = RotatedFleet(home, certificates, (one, other))
        made.write(one)
        try:
            yield made
        finally:
            await made.fleet.close_all()


async def test_a_rotated_kubeconfig_is_used_without_a_401_before(home: Path, certificates: CertificateSet) -> None:
    """The TLS context and the open watch are kept, and the reload is logged once."""
    async with ground(home, certificates) as rotated_fleet:
        await rotated_fleet.open()
        await rotated_fleet.one.wait_for_request("watch")
        tls = rotated_fleet.fleet["a"].cluster.access.tls
        rotated_fleet.write(rotated_fleet.one, "new")
        with capture_logs() as logs:
            await rotated_fleet.news.wait_until(lambda: "new" in bearers(rotated_fleet.one))
        assert [line["event"] for line in logs] == ["credential reloaded"]
        assert rotated_fleet.fleet["a"].cluster.access.tls is tls
        assert len(rotated_fleet.one.requests_of("watch")) == 1
        assert rotated_fleet.cache.synced


async def test_a_rotated_token_file_is_used_without_a_change_of_the_kubeconfig(
    home: Path, certificates: CertificateSet
) -> None:
    """The files that a kubeconfig names are watched too."""
    async with ground(home, certificates) as rotated_fleet:
        (home / "token").write_text("first")
        rotated_fleet.write(rotated_fleet.one, user={"tokenFile": "token"})
        await rotated_fleet.open()
        (home / "token").write_text("second")
        await rotated_fleet.news.wait_until(lambda: "second" in bearers(rotated_fleet.one))
        assert bearers(rotated_fleet.one) == {"first", "second"}


async def test_a_rotated_ca_file_is_used_for_new_connections(home: Path, certificates: CertificateSet) -> None:
    """A server with a certificate of another CA is not trusted until the CA file contains that CA."""
    certificate, key = certificates.other_authority.sign("server")
    chain = home / "other.pem"
    chain.write_bytes(certificate + key)
    async with ground(home, certificates) as rotated_fleet:
        (home / "ca").write_bytes(certificates.authority.pem)
        server = ScriptedApiserver()
        async with running(server, certificates.server_context()):
            rotated_fleet.write(server, authority="ca")
            await rotated_fleet.open()
        tls = certificates.server_context()
        tls.load_cert_chain(chain)
        async with running(server, tls):
            await rotated_fleet.until_complaint(
                "not trusted (unable to get local issuer certificate): "
                f"check that it is the apiserver of this cluster, and the CA in {rotated_fleet.path}"
            )
            count = len(server.requests)
            (home / "ca").write_bytes(certificates.authority.pem + certificates.other_authority.pem)
            await rotated_fleet.news.wait_until(lambda: rotated_fleet.fleet["a"].unreachable_seconds == 0.0)
            assert len(server.requests) > count
            await rotated_fleet.fleet.close("a")


async def test_a_kubeconfig_of_a_different_cluster_is_refused_until_it_is_corrected(
    home: Path, certificates: CertificateSet
) -> None:
    """That cluster gets only identity checks; afterwards everything is listed again."""
    async with ground(home, certificates, "another") as rotated_fleet:
        rotated_fleet.one.queue("list", listing(20, make_pod("a", 5)))
        await rotated_fleet.open()
        rotated_fleet.write(rotated_fleet.other)
        await rotated_fleet.until_complaint("a different cluster responds")
        await rotated_fleet.news.wait_until(lambda: not rotated_fleet.cache.synced)
        with pytest.raises(WrongCluster):
            await rotated_fleet.fleet["a"].cluster.create(REF, make_pod("web", 1))
        assert {request.sort for request in rotated_fleet.other.requests} == {"identity"}
        rotated_fleet.one.queue("list", listing(30, make_pod("b", 6)))
        rotated_fleet.write(rotated_fleet.one)
        await wait_for_cache(rotated_fleet.cache, lambda: [entry.name for entry in rotated_fleet.cache] == ["b"])
        assert rotated_fleet.fleet["a"].credential_error == ""
        assert {request.sort for request in rotated_fleet.other.requests} == {"identity"}


@pytest.mark.parametrize("text", ["", "clusters: [", None], ids=["empty", "incomplete", "deleted"])
async def test_an_unusable_kubeconfig_is_reported_and_the_previous_access_is_kept(
    home: Path, certificates: CertificateSet, text: str | None
) -> None:
    """The problem is logged once, and its end is logged when the kubeconfig is corrected."""
    async with ground(home, certificates) as rotated_fleet:
        await rotated_fleet.open()
        with capture_logs() as logs:
            if text is None:
                rotated_fleet.path.unlink()
            else:
                rotated_fleet.path.write_text(text)
            await rotated_fleet.until_complaint(str(rotated_fleet.path))
            await rotated_fleet.fleet["a"].cluster.create(REF, make_pod("web", 1))
            assert rotated_fleet.fleet["a"].unreachable_seconds == 0.0
            rotated_fleet.write(rotated_fleet.one, "mended")
            await rotated_fleet.news.wait_until(lambda: "mended" in bearers(rotated_fleet.one))
        assert rotated_fleet.fleet["a"].credential_error == ""
        log_events = [line["event"] for line in logs]
        assert log_events.count("credential cannot be reloaded, the previous one stays in use") == 1
        assert log_events[-2:] == ["credential can be loaded again", "credential reloaded"]
        assert {line["cluster"] for line in logs} == {"a"}


async def test_a_token_file_that_is_created_after_its_kubeconfig_is_used(
    home: Path, certificates: CertificateSet
) -> None:
    """The kubeconfig is read again when the missing file appears."""
    async with ground(home, certificates) as rotated_fleet:
        await rotated_fleet.open()
        rotated_fleet.write(rotated_fleet.one, user={"tokenFile": "late"})
        await rotated_fleet.until_complaint("late: cannot be read")
        (home / "late").write_text("late-token")
        await rotated_fleet.news.wait_until(lambda: "late-token" in bearers(rotated_fleet.one))
        assert rotated_fleet.fleet["a"].credential_error == ""


PLUGIN = """#!/bin/sh
test -e HOME/ready || { touch HOME/ready; exit 1; }
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "of-a-plugin"}}'
"""


async def test_a_failed_exec_plugin_is_run_again_after_a_while(home: Path, certificates: CertificateSet) -> None:
    """No change of a file shows when the plugin succeeds, unlike for a missing file, so it is retried."""
    async with ground(home, certificates) as rotated_fleet:
        plugin = home / "plugin"
        plugin.write_text(PLUGIN.replace("HOME", str(home)))
        plugin.chmod(0o755)
        access = await from_kubeconfig(rotated_fleet.path, allow_exec_plugins=True)
        rotated_fleet.fleet.open("a", access)
        await rotated_fleet.fleet["a"].identified()
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": str(plugin),
                "interactiveMode": "Never",
            }
        }
        rotated_fleet.write(rotated_fleet.one, user=user)
        await rotated_fleet.until_complaint("plugin")
        await rotated_fleet.news.wait_until(lambda: "of-a-plugin" in bearers(rotated_fleet.one))
        assert rotated_fleet.fleet["a"].credential_error == ""


async def test_the_files_of_a_replaced_access_are_no_longer_watched(home: Path, certificates: CertificateSet) -> None:
    """Only changes of the new kubeconfig are used after the access is replaced."""
    async with ground(home, certificates) as rotated_fleet:
        await rotated_fleet.open()
        moved = home / "moved"
        moved.write_text(rotated_fleet.path.read_text().replace("token: t", "token: handed"))
        await rotated_fleet.fleet["a"].replace(await from_kubeconfig(moved))
        async with wait_for_watcher(rotated_fleet.fleet.watcher, rotated_fleet.path, moved):
            rotated_fleet.write(rotated_fleet.one, "of-the-former-file")
            moved.write_text(moved.read_text().replace("handed", "rotated"))
        await rotated_fleet.news.wait_until(lambda: "rotated" in bearers(rotated_fleet.one))
        assert "of-the-former-file" not in bearers(rotated_fleet.one)


async def test_a_kubeconfig_of_the_upper_cluster_with_another_server_is_not_used(
    home: Path, certificates: CertificateSet
) -> None:
    """The error says that a restart is needed; a rotated token for the same server is used."""
    async with ground(home, certificates) as rotated_fleet:
        await rotated_fleet.open(UPPER, anchored=True)
        rotated_fleet.write(rotated_fleet.other)
        await rotated_fleet.until_complaint("restart the engine to change the upper cluster", UPPER)
        await rotated_fleet.fleet[UPPER].cluster.create(REF, make_pod("web", 1))
        assert rotated_fleet.other.requests == []
        assert len(rotated_fleet.one.requests_of("write")) == 1
        rotated_fleet.write(rotated_fleet.one, "rotated")
        await rotated_fleet.news.wait_until(lambda: "rotated" in bearers(rotated_fleet.one))
        assert rotated_fleet.fleet[UPPER].credential_error == ""


async def test_a_rejected_credential_is_replaced_when_the_kubeconfig_changes(
    home: Path, certificates: CertificateSet
) -> None:
    """While it is rejected, the cluster is unreachable with a credential error, and its open watch continues."""
    async with ground(home, certificates) as rotated_fleet:
        stream = WatchStream()
        rotated_fleet.one.queue("watch", stream)
        await rotated_fleet.open()
        await rotated_fleet.one.wait_for_request("watch")
        rotated_fleet.one.queue("identity", *[refusal(401, "Unauthorized")] * 10_000)
        await rotated_fleet.until_complaint("Unauthorized")
        assert rotated_fleet.fleet["a"].unreachable_seconds > 0
        rotated_fleet.one.clear_queue("identity")
        rotated_fleet.write(rotated_fleet.one, "new")
        await rotated_fleet.until_complaint("")
        assert rotated_fleet.fleet["a"].unreachable_seconds == 0.0
        await rotated_fleet.news.wait_until(lambda: "new" in bearers(rotated_fleet.one))
        assert len(rotated_fleet.one.requests_of("watch")) == 1
