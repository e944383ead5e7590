"""Faults of a cluster's credential, and of the cluster behind its address, that a test applies and repairs.

Each is a `Swap`: prepared once, then applied and repaired again and again. Files that the engine reads are changed as
people and their tools change them: whole files, renamed into place.
"""

import asyncio
import time
from base64 import b64encode
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import yaml
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from bench.kit import oracles
from bench.kit.sites import MERGE, PODS, Manifest, Refused, Site, patiently, until, until_gone
from bench.kit.trial import Trial
from bench.kit.workload import pod
from tensile.sandbox.credentials import ADMINISTRATORS, Authority, CertificatePair, authority

ACCOUNT = "bench-engine"
HOME = "kube-system"
"""The namespace of the engine's account: it is not mirrored, so it cannot be the one with the pods."""
ACCOUNTS = f"/api/v1/namespaces/{HOME}/serviceaccounts"
SECRETS = f"/api/v1/namespaces/{HOME}/secrets"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
APISERVER = "kube-apiserver"
NAME = "rotated.example"
PROBE = "swaps-probe"
RECOVERED_IN = 60.0
REFUSED = "credential rejected"


class Swap(Protocol):
    """A fault of one cluster's credential or address.

    `victim` is the cluster, `log_message` is the engine's message about the fault, `reason` is that of the node's
    LowerReachable during it ("" if it is not set at once), and the cluster in the next field must not be written to
    during it ("" for none). `repaired_at` is the time of the last repair, in seconds since 1970: when the file was
    changed, after everything else was done.
    """

    name: str
    victim: str
    log_message: str
    reason: str
    stranger: str
    repaired_at: float

    async def prepare(self) -> bool:
        """Do what is necessary once; return whether the engine has to read a file again because of it."""

    async def break_credential(self) -> None:
        """Apply the fault."""

    async def repair(self) -> None:
        """Repair what an administrator would repair; nothing else is done for the engine."""

    async def end(self) -> None:
        """Restore everything."""


class Kubeconfig:
    """The file with which the engine accesses a cluster; `text` is its original content."""

    def __init__(self, trial: Trial, cluster: str) -> None:
        self.path = trial.sandbox.directory / f"{cluster}.kubeconfig"
        self.text = self.path.read_text()

    def write(self, text: str = "") -> float:
        """Replace the file atomically by `text`, or by the original; return the time in seconds since 1970."""
        return put(self.path, (text or self.text).encode())

    def edited(self, user: dict[str, Any] | None = None, **cluster: str) -> str:
        """Return the original text with another user, or other fields of the cluster."""
        found = yaml.safe_load(self.text)
        entry = found["clusters"][0]["cluster"]
        if "certificate_authority" in cluster:
            entry.pop("certificate-authority-data")
        entry.update({key.replace("_", "-"): value for key, value in cluster.items()})
        found["users"][0]["user"] = user or found["users"][0]["user"]
        return str(yaml.safe_dump(found))


class TokenEnds:
    """The token in a file expires; later the file contains another one.

    A token is bound to a Secret, whose deletion invalidates it.
    """

    log_message, reason, stranger = REFUSED, "", ""
    repaired_at = 0.0

    def __init__(self, trial: Trial, victim: str) -> None:
        self.name, self.victim = f"token of {victim}", victim
        self._site: Site = trial.lowers.get(victim, trial.upper)
        self._kubeconfig = Kubeconfig(trial, victim)
        self._file = self._kubeconfig.path.with_suffix(".token")
        self._number = 0

    async def prepare(self) -> bool:
        """Create an account with all rights, and make the engine use it."""
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": HOME}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        await self._create(ACCOUNTS, {"metadata": {"name": ACCOUNT}})
        await self._create(BINDINGS, {"metadata": {"name": ACCOUNT}, "roleRef": role, "subjects": [subject]})
        put(self._file, await self._token())
        self._kubeconfig.write(self._kubeconfig.edited({"tokenFile": self._file.name}))
        return True

    async def break_credential(self) -> None:
        """Invalidate the token; the apiserver takes up to ten seconds to notice."""
        await self._site.delete(f"{SECRETS}/{ACCOUNT}-{self._number}")

    async def repair(self) -> None:
        """Issue another token."""
        self.repaired_at = put(self._file, await self._token())

    async def end(self) -> None:
        """Restore the kubeconfig with the certificate."""
        self._kubeconfig.write()

    async def _token(self) -> bytes:
        """Create a token that is valid as long as its own Secret exists."""
        self._number += 1
        name = f"{ACCOUNT}-{self._number}"
        secret = await self._create(SECRETS, {"metadata": {"name": name}})
        bound = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret["metadata"]["uid"]}
        token_request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        found = await self._site.call("POST", f"{ACCOUNTS}/{ACCOUNT}/token", token_request)
        return str(found["status"]["token"]).encode()

    async def _create(self, path: str, body: Manifest) -> Manifest:
        """Create an object, unless it exists from an earlier run."""
        with suppress(Refused):
            return await self._site.call("POST", path, body)
        return await self._site.call("GET", f"{path}/{body['metadata']['name']}")


class CertificateRotated:
    """The files with client certificate and key get a pair that the cluster rejects, and later one of another user."""

    log_message, reason, stranger = REFUSED, "", ""
    repaired_at = 0.0

    def __init__(self, trial: Trial, victim: str) -> None:
        self.name, self.victim = "client certificate", victim
        self._kubeconfig = Kubeconfig(trial, victim)
        self._files = [self._kubeconfig.path.with_suffix(suffix) for suffix in (".client-crt", ".client-key")]
        self._signers = Signers(trial, victim)

    async def prepare(self) -> bool:
        """Write the kubeconfig so that the engine reads certificate and key from files."""
        self._put(self._signers.good())
        certificate, key = (file.name for file in self._files)
        self._kubeconfig.write(self._kubeconfig.edited({"client-certificate": certificate, "client-key": key}))
        return True

    async def break_credential(self) -> None:
        """Write a certificate of an authority that the cluster does not know."""
        self._put(self._signers.bad())

    async def repair(self) -> None:
        """Write another valid certificate."""
        self.repaired_at = self._put(self._signers.good())

    async def end(self) -> None:
        """Restore the original kubeconfig."""
        self._kubeconfig.write()

    def _put(self, pair: CertificatePair) -> float:
        put(self._files[0], pair.certificate)
        return put(self._files[1], pair.key)


class SecretRotated:
    """The Secret with the kubeconfig gets a user that the cluster rejects, and later another valid one."""

    log_message, reason, stranger = REFUSED, "", ""
    repaired_at = 0.0

    def __init__(self, trial: Trial, victim: str) -> None:
        self.name, self.victim = "Secret", victim
        self._trial = trial
        self._kubeconfig = Kubeconfig(trial, victim)
        self._topology = trial.sandbox.directory / "topology.yaml"
        self._before = self._topology.read_bytes()
        self._signers = Signers(trial, victim)

    async def prepare(self) -> bool:
        """Edit the topology to name the Secret; return once the engine uses it."""
        body = {"metadata": {"name": ACCOUNT}, "data": self._data(self._signers.good())}
        await self._trial.upper.call("POST", SECRETS, body)
        found = yaml.safe_load(self._before)
        for lower in found["lowers"]:
            if lower["name"] == self.victim:
                del lower["kubeconfig"]
                lower["kubeconfigSecret"] = {"namespace": HOME, "name": ACCOUNT}
        log_position = self._trial.log.stat().st_size
        put(self._topology, yaml.safe_dump(found).encode())
        await self._said(log_position)
        return False

    async def break_credential(self) -> None:
        """Write a kubeconfig whose user the cluster rejects."""
        await self._write(self._signers.bad())

    async def repair(self) -> None:
        """Write a valid kubeconfig of another user."""
        self.repaired_at = await self._write(self._signers.good())

    async def end(self) -> None:
        """Restore the topology with the kubeconfig file."""
        log_position = self._trial.log.stat().st_size
        put(self._topology, self._before)
        await self._said(log_position)
        await self._trial.upper.delete(f"{SECRETS}/{ACCOUNT}")

    async def _said(self, since: int) -> None:
        """Wait until the engine has applied the edit and the cluster has answered again."""

        async def is_open() -> bool:
            """Report whether the engine has logged since then that the cluster is reachable."""
            return b"cluster reachable" in self._trial.log.read_bytes()[since:]

        await until(is_open, "the engine has gone over", RECOVERED_IN)

    async def _write(self, pair: CertificatePair) -> float:
        data, begin = self._data(pair), time.time()
        await self._trial.upper.call("PATCH", f"{SECRETS}/{ACCOUNT}", {"data": data}, media=MERGE)
        return begin

    def _data(self, pair: CertificatePair) -> dict[str, str]:
        inline = (b64encode(one).decode() for one in (pair.certificate, pair.key))
        user = dict(zip(("client-certificate-data", "client-key-data"), inline, strict=True))
        return {"kubeconfig": b64encode(self._kubeconfig.edited(user).encode()).decode()}


class Signers:
    """Issues administrator certificates for a cluster: valid ones, each for another user, and invalid ones."""

    def __init__(self, trial: Trial, cluster: str) -> None:
        pki, now = trial.sandbox.clusters[cluster].audit_log.parent / "pki", datetime.now(UTC)
        pair = CertificatePair((pki / "ca.crt").read_bytes(), (pki / "ca.key").read_bytes())
        key = load_pem_private_key(pair.key, None)
        assert isinstance(key, EllipticCurvePrivateKey)
        self._signer = Authority(pair, load_pem_x509_certificate(pair.certificate).subject, key, now)
        self._stranger = authority(f"{cluster}-ca", now)
        self._number = 0

    def good(self) -> CertificatePair:
        """Return a certificate that the cluster accepts."""
        self._number += 1
        return self._signer.issue(f"{ACCOUNT}-{self._number}", (ADMINISTRATORS,))

    def bad(self) -> CertificatePair:
        """Return a certificate of another CA with the same name."""
        return self._stranger.issue(ACCOUNT, (ADMINISTRATORS,))


class FileSwapped:
    """The kubeconfig of one cluster is replaced by that of another one, with all rights there."""

    log_message, reason = "a different cluster responds", "WrongCluster"
    repaired_at = 0.0

    def __init__(self, trial: Trial, victim: str, stranger: str) -> None:
        self.name, self.victim, self.stranger = "kubeconfig", victim, stranger
        self._kubeconfig = Kubeconfig(trial, victim)
        self._other = Kubeconfig(trial, stranger)

    async def prepare(self) -> bool:
        """Change nothing."""
        return False

    async def break_credential(self) -> None:
        """Write the other cluster's kubeconfig."""
        self._kubeconfig.write(self._other.text)

    async def repair(self) -> None:
        """Write the cluster's own kubeconfig."""
        self.repaired_at = self._kubeconfig.write()

    async def end(self) -> None:
        """Write the cluster's own kubeconfig again."""
        self._kubeconfig.write()


class AuthorityRotated:
    """The apiserver restarts with a certificate of another CA; later the CA file contains that CA.

    It uses the certificate only for clients that request it by server name, so that only the engine is affected.
    """

    log_message, reason, stranger = "not trusted", "", ""
    repaired_at = 0.0

    def __init__(self, trial: Trial, victim: str) -> None:
        self.name, self.victim = "authority", victim
        self._trial = trial
        self._kubeconfig = Kubeconfig(trial, victim)
        self._file = self._kubeconfig.path.with_suffix(".ca")
        pki = trial.sandbox.clusters[victim].audit_log.parent / "pki"
        self._pair = pki / "rotated.crt", pki / "rotated.key"
        self._pem = b""

    async def prepare(self) -> bool:
        """Make the apiserver serve another certificate under another name, and the engine expect it."""
        self._issue()
        put(self._file, self._pem)
        certificate, key = self._pair
        await restart(self._trial, self.victim, f"--tls-sni-cert-key={certificate},{key}:{NAME}")
        fields = {"certificate_authority": self._file.name, "tls_server_name": NAME}
        self._kubeconfig.write(self._kubeconfig.edited(**fields))
        return True

    async def break_credential(self) -> None:
        """Rotate the CA."""
        self._issue()
        await restart(self._trial, self.victim)

    async def repair(self) -> None:
        """Write the CA that is in force now."""
        self.repaired_at = put(self._file, self._pem)

    async def end(self) -> None:
        """Restore the kubeconfig with the certificate that all other clients use."""
        self._kubeconfig.write()

    def _issue(self) -> None:
        """Sign a certificate with a new authority."""
        signer = authority("rotated-ca", datetime.now(UTC))
        pair = signer.issue("kube-apiserver", hosts=(NAME,))
        put(self._pair[0], pair.certificate)
        put(self._pair[1], pair.key)
        self._pem = signer.pair.certificate


class AddressTurned:
    """Another cluster answers at the address; it accepts the credential, and its certificate is trusted."""

    log_message, reason = "a different cluster responds", "WrongCluster"
    repaired_at = 0.0

    def __init__(self, trial: Trial, victim: str, stranger: str) -> None:
        self.name, self.victim, self.stranger = "address", victim, stranger
        self._trial = trial
        self._kubeconfig = Kubeconfig(trial, victim)
        self._pki = {name: trial.sandbox.clusters[name].audit_log.parent / "pki" for name in (victim, stranger)}
        self._ports = {name: trial.sandbox.clusters[name].ports.apiserver for name in (victim, stranger)}
        self._switch = Switch(self._ports[victim])
        self._open = AsyncExitStack()

    async def prepare(self) -> bool:
        """Make the other cluster accept the victim's users, and the engine use an address that can be redirected."""
        both = b"".join((pki / "ca.crt").read_bytes() for pki in self._pki.values())
        bundle = self._pki[self.stranger] / "both.crt"
        put(bundle, both)
        await restart(self._trial, self.stranger, f"--client-ca-file={bundle}")
        port = await self._open.enter_async_context(self._switch)
        self._kubeconfig.write(
            self._kubeconfig.edited(
                server=f"https://127.0.0.1:{port}", certificate_authority_data=b64encode(both).decode()
            )
        )
        return True

    async def break_credential(self) -> None:
        """Redirect the address to the other cluster, and close all connections."""
        self._switch.turn(self._ports[self.stranger])

    async def repair(self) -> None:
        """Redirect the address to the victim."""
        self.repaired_at = time.time()
        self._switch.turn(self._ports[self.victim])

    async def end(self) -> None:
        """Restore the victim's own address."""
        self._kubeconfig.write()
        await until(self._left, "the engine has left the address", 30.0)
        await self._open.aclose()

    async def _left(self) -> bool:
        """Report whether the engine has no connection to the address left a second after they were cut."""
        self._switch.turn(self._ports[self.victim])
        await asyncio.sleep(1.0)
        return not self._switch.connections


class Switch:
    """A loopback address whose target server can be changed; `async with` returns its port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.turn(self._target)
        await asyncio.gather(*self.connections, return_exceptions=True)

    def turn(self, target: int) -> None:
        """Change the target server, and close every connection."""
        self._target = target
        for task in tuple(self.connections):
            task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self.connections.add(task)
        task.add_done_callback(self.connections.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward bytes in both directions until one side ends, or the target changes."""
        onward: asyncio.StreamWriter | None = None
        try:
            back, onward = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pour(reader, onward))
                both.create_task(_pour(back, writer))
        except* (OSError, _Ended):
            pass
        finally:
            for end in (writer, onward):
                if end is not None:
                    end.transport.abort()


class _Ended(Exception):
    """One side has closed the connection."""


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes in one direction; raises _Ended at their end."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    raise _Ended


async def restart(trial: Trial, cluster: str, *extra: str) -> None:
    """Restart an apiserver, and the components that back off for up to a minute after that; return when pods run.

    kwok is not restarted: otherwise it would wait until the leases that it holds itself have expired.
    """
    await asyncio.to_thread(trial.sandbox.restart, cluster, APISERVER, extra=extra)
    for component in ("kube-controller-manager", "kube-scheduler"):
        await asyncio.to_thread(trial.sandbox.restart, cluster, component)
    await works(trial.lowers[cluster])


async def works(site: Site) -> None:
    """Return when a pod that is created in a cluster itself became Ready there, and is deleted."""
    pods = PODS.format("default")
    path = f"{pods}/{PROBE}"

    async def is_ready() -> bool:
        """Report whether the pod is Ready."""
        return oracles.is_ready(await site.call("GET", path))

    await patiently(lambda: site.call("POST", pods, pod(PROBE, PROBE)), RECOVERED_IN)
    await until(is_ready, f"{site.name} runs pods", RECOVERED_IN)
    await site.delete(path)
    await until_gone(site, pods, f"fieldSelector=metadata.name%3D{PROBE}", RECOVERED_IN)


def put(path: Path, content: bytes) -> float:
    """Write a file atomically; return the time in seconds since 1970."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.touch(mode=0o600)
    scratch.write_bytes(content)
    scratch.rename(path)
    return time.time()
