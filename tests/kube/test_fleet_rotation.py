"""Tests of a fleet whose kubeconfigs and token files change on disk: used, rejected, reported, and corrected."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from filekit import heard
from papers import Papers, inline, kubeconfig
from scripted import UID, WAIT, Apiserver, News, Stream, listing, pod, refusal, running, told
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

    def __init__(self, home: Path, papers: Papers, servers: tuple[Apiserver, Apiserver]) -> None:
        self.path = home / "lower.kubeconfig"
        self.papers = papers
        self.one, self.other = servers
        self.news = News()
        self.cache = Cache()
        self.fleet = Fleet(
            chance=self.news.roll,
            pace=QUICK,
            probe=0.02,
            patience=5.0,
            again=0.05,
            sleep=self._wait,
        )

    def write(
        self, server: Apiserver, token: str = "t", user: Mapping[str, Any] | None = None, authority: str = ""
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

    async def until_complaint(self, words: str, name: str = "a") -> None:
        """Wait until the cluster's credential error contains these words; "" for no error."""
        await self.news.until(
            lambda: (words in self.fleet[name].credential_error) if words else not self.fleet[name].credential_error
        )

    async def _wait(self, seconds: float) -> None:
        """Wait at most briefly, and notify the waiting test."""
        await self.news.sleep(min(seconds, 0.01))


def bearers(server: Apiserver) -> set[str]:
    """Return the tokens in the requests to a server."""
    return {asked.headers["authorization"].removeprefix("Bearer ") for asked in server.asked}


@asynccontextmanager
async def ground(home: Path, papers: Papers, uid: str = UID) -> AsyncIterator[RotatedFleet]:
    """Yield such a fleet; the second apiserver belongs to the cluster with that UID."""
    one, other = Apiserver(), Apiserver(uid)
    tls = papers.server_context()
    async with running(one, tls), running(other, tls), asyncio.timeout(2 * WAIT):
        made = RotatedFleet(home, papers, (one, other))
        made.write(one)
        try:
            yield made
        finally:
            await made.fleet.close_all()


async def test_a_rotated_kubeconfig_is_used_without_a_401_before(home: Path, papers: Papers) -> None:
    """The TLS context and the open watch are kept, and the reload is logged once."""
    async with ground(home, papers) as here:
        await here.open()
        await here.one.until("watch")
        tls = here.fleet["a"].cluster.access.tls
        here.write(here.one, "new")
        with capture_logs() as logs:
            await here.news.until(lambda: "new" in bearers(here.one))
        assert [line["event"] for line in logs] == ["credential reloaded"]
        assert here.fleet["a"].cluster.access.tls is tls
        assert len(here.one.of("watch")) == 1
        assert here.cache.synced


async def test_a_rotated_token_file_is_used_without_a_change_of_the_kubeconfig(home: Path, papers: Papers) -> None:
    """The files that a kubeconfig names are watched too."""
    async with ground(home, papers) as here:
        (home / "token").write_text("first")
        here.write(here.one, user={"tokenFile": "token"})
        await here.open()
        (home / "token").write_text("second")
        await here.news.until(lambda: "second" in bearers(here.one))
        assert bearers(here.one) == {"first", "second"}


async def test_a_rotated_ca_file_is_used_for_new_connections(home: Path, papers: Papers) -> None:
    """A server with a certificate of another CA is not trusted until the CA file contains that CA."""
    certificate, key = papers.other.sign("server")
    chain = home / "other.pem"
    chain.write_bytes(certificate + key)
    async with ground(home, papers) as here:
        (home / "ca").write_bytes(papers.authority.pem)
        server = Apiserver()
        async with running(server, papers.server_context()):
            here.write(server, authority="ca")
            await here.open()
        tls = papers.server_context()
        tls.load_cert_chain(chain)
        async with running(server, tls):
            await here.until_complaint(
                "not trusted (unable to get local issuer certificate): "
                f"check that it is the apiserver of this cluster, and the CA in {here.path}"
            )
            count = len(server.asked)
            (home / "ca").write_bytes(papers.authority.pem + papers.other.pem)
            await here.news.until(lambda: here.fleet["a"].silent == 0.0)
            assert len(server.asked) > count
            await here.fleet.close("a")


async def test_a_kubeconfig_of_a_different_cluster_is_refused_until_it_is_corrected(home: Path, papers: Papers) -> None:
    """That cluster gets only identity checks; afterwards everything is listed again."""
    async with ground(home, papers, "another") as here:
        here.one.play("list", listing(20, pod("a", 5)))
        await here.open()
        here.write(here.other)
        await here.until_complaint("a different cluster responds")
        await here.news.until(lambda: not here.cache.synced)
        with pytest.raises(WrongCluster):
            await here.fleet["a"].cluster.create(REF, pod("web", 1))
        assert {asked.sort for asked in here.other.asked} == {"identity"}
        here.one.play("list", listing(30, pod("b", 6)))
        here.write(here.one)
        await told(here.cache, lambda: [entry.name for entry in here.cache] == ["b"])
        assert here.fleet["a"].credential_error == ""
        assert {asked.sort for asked in here.other.asked} == {"identity"}


@pytest.mark.parametrize("text", ["", "clusters: [", None], ids=["empty", "incomplete", "deleted"])
async def test_an_unusable_kubeconfig_is_reported_and_the_previous_access_is_kept(
    home: Path, papers: Papers, text: str | None
) -> None:
    """The problem is logged once, and its end is logged when the kubeconfig is corrected."""
    async with ground(home, papers) as here:
        await here.open()
        with capture_logs() as logs:
            if text is None:
                here.path.unlink()
            else:
                here.path.write_text(text)
            await here.until_complaint(str(here.path))
            await here.fleet["a"].cluster.create(REF, pod("web", 1))
            assert here.fleet["a"].silent == 0.0
            here.write(here.one, "mended")
            await here.news.until(lambda: "mended" in bearers(here.one))
        assert here.fleet["a"].credential_error == ""
        said = [line["event"] for line in logs]
        assert said.count("credential cannot be reloaded, the previous one stays in use") == 1
        assert said[-2:] == ["credential can be loaded again", "credential reloaded"]
        assert {line["cluster"] for line in logs} == {"a"}


async def test_a_token_file_that_is_created_after_its_kubeconfig_is_used(home: Path, papers: Papers) -> None:
    """The kubeconfig is read again when the missing file appears."""
    async with ground(home, papers) as here:
        await here.open()
        here.write(here.one, user={"tokenFile": "late"})
        await here.until_complaint("late: cannot be read")
        (home / "late").write_text("late-token")
        await here.news.until(lambda: "late-token" in bearers(here.one))
        assert here.fleet["a"].credential_error == ""


PLUGIN = """#!/bin/sh
test -e HOME/ready || { touch HOME/ready; exit 1; }
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "of-a-plugin"}}'
"""


async def test_a_failed_exec_plugin_is_run_again_after_a_while(home: Path, papers: Papers) -> None:
    """No change of a file shows when the plugin succeeds, unlike for a missing file, so it is retried."""
    async with ground(home, papers) as here:
        plugin = home / "plugin"
        plugin.write_text(PLUGIN.replace("HOME", str(home)))
        plugin.chmod(0o755)
        access = await from_kubeconfig(here.path, allow_exec_plugins=True)
        here.fleet.open("a", access)
        await here.fleet["a"].identified()
        user = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": str(plugin),
                "interactiveMode": "Never",
            }
        }
        here.write(here.one, user=user)
        await here.until_complaint("plugin")
        await here.news.until(lambda: "of-a-plugin" in bearers(here.one))
        assert here.fleet["a"].credential_error == ""


async def test_the_files_of_a_replaced_access_are_no_longer_watched(home: Path, papers: Papers) -> None:
    """Only changes of the new kubeconfig are used after the access is replaced."""
    async with ground(home, papers) as here:
        await here.open()
        moved = home / "moved"
        moved.write_text(here.path.read_text().replace("token: t", "token: handed"))
        await here.fleet["a"].replace(await from_kubeconfig(moved))
        async with heard(here.fleet.watcher, here.path, moved):
            here.write(here.one, "of-the-former-file")
            moved.write_text(moved.read_text().replace("handed", "rotated"))
        await here.news.until(lambda: "rotated" in bearers(here.one))
        assert "of-the-former-file" not in bearers(here.one)


async def test_a_kubeconfig_of_the_upper_cluster_with_another_server_is_not_used(home: Path, papers: Papers) -> None:
    """The error says that a restart is needed; a rotated token for the same server is used."""
    async with ground(home, papers) as here:
        await here.open(UPPER, anchored=True)
        here.write(here.other)
        await here.until_complaint("restart the engine to change the upper cluster", UPPER)
        await here.fleet[UPPER].cluster.create(REF, pod("web", 1))
        assert here.other.asked == []
        assert len(here.one.of("write")) == 1
        here.write(here.one, "rotated")
        await here.news.until(lambda: "rotated" in bearers(here.one))
        assert here.fleet[UPPER].credential_error == ""


async def test_a_rejected_credential_is_replaced_when_the_kubeconfig_changes(home: Path, papers: Papers) -> None:
    """While it is rejected, the cluster is unreachable with a credential error, and its open watch continues."""
    async with ground(home, papers) as here:
        stream = Stream()
        here.one.play("watch", stream)
        await here.open()
        await here.one.until("watch")
        here.one.play("identity", *[refusal(401, "Unauthorized")] * 10_000)
        await here.until_complaint("Unauthorized")
        assert here.fleet["a"].silent > 0
        here.one.forget("identity")
        here.write(here.one, "new")
        await here.until_complaint("")
        assert here.fleet["a"].silent == 0.0
        await here.news.until(lambda: "new" in bearers(here.one))
        assert len(here.one.of("watch")) == 1
