"""Tests of the extender's port: requests of a kube-scheduler, and requests of clients without permission."""

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from extenderkit import extender, node_cache
from placekit import node, pod, spec_requesting
from preemptkit import ExistingPod, VirtualNodeFixture, pending_pod
from preemptkit import extender as preempting

from tensile.errors import TensileError
from tensile.kube import tls as certificates
from tensile.kubelet.api.certificates import tls_context
from tensile.policy.extender.extender import unbound_pod
from tensile.policy.extender.node_cache import kind_of
from tensile.policy.extender.server import SCHEDULER, ExtenderPort, listening
from tensile.policy.extender.victim_selection import Budget
from tensile.sandbox.credentials import Authority, CertificatePair, authority

NOW = datetime.now(UTC)
HOST = "127.0.0.1"
RECORDED = Path(__file__).resolve().parent / "scheduler_question.json"
"""What a real scheduler asked about a pod of a Deployment."""


def stored(directory: Path, name: str, pair: CertificatePair) -> tuple[Path, Path]:
    """Write a certificate and its key."""
    files = (directory / f"{name}.crt", directory / f"{name}.key")
    for path, content in zip(files, (pair.certificate, pair.key), strict=True):
        path.write_bytes(content)
    return files


class ExtenderCertificates:
    """A CA with the certificates that it issued, and another CA."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours, self.theirs = authority("ours", NOW), authority("theirs", NOW)
        self.server = self.ours.issue("extender", addresses=[HOST])

    def serving(self, hears: Authority | None) -> ssl.SSLContext:
        """Return the TLS context of a port that accepts clients of a CA; without a CA it accepts no client."""
        client_ca = hears.pair.certificate.decode() if hears else ""
        return tls_context(certificates.KeyPair(self.server.certificate, self.server.key), client_ca)

    def client(self, signer: Authority | None, user: str = SCHEDULER) -> ssl.SSLContext:
        """Return the TLS context of a client; without a signer it has no certificate."""
        context = ssl.create_default_context(cadata=self.ours.pair.certificate.decode())
        if signer is not None:
            context.load_cert_chain(*stored(self.directory, "client", signer.issue(user)))
        return context


@pytest.fixture
def certificate_set(tmp_path: Path) -> ExtenderCertificates:
    """Create certificates."""
    return ExtenderCertificates(tmp_path)


@pytest.fixture
async def port(certificate_set: ExtenderCertificates) -> AsyncIterator[ExtenderPort]:
    """Serve an extender for one lower of 4 cpu on a free port."""
    made = ExtenderPort(listening(HOST, 0), extender(a=node_cache(node("n"))), clock=lambda: 0.0)
    await made.show(certificate_set.serving(certificate_set.ours))
    yield made
    await made.close()


Ask = Callable[..., Any]


@pytest.fixture
async def ask(port: ExtenderPort, certificate_set: ExtenderCertificates) -> Ask:
    """Return a function that sends a request with a path, a body and a client's TLS context."""

    async def asked(path: str, body: Any, tls: ssl.SSLContext | None = None) -> tuple[int, Any]:
        """Post a request, and return the status and the response."""
        context = tls or certificate_set.client(certificate_set.ours)
        async with aiohttp.ClientSession() as session:
            url = f"https://{HOST}:{port.port}{path}"
            given = {"data": BytesIO(body)} if isinstance(body, bytes) else {"json": body}
            async with session.post(url, ssl=context, **given) as answer:
                is_json = answer.content_type == "application/json"
                return answer.status, await (answer.json() if is_json else answer.text())

    return asked


def question(cpu: str, *names: str) -> dict[str, Any]:
    """Return a request in the form of the kube-scheduler."""
    return {"Pod": pod(f"p{cpu}", spec_requesting(cpu=cpu), uid=cpu), "Nodes": None, "NodeNames": list(names)}


async def test_a_schedulers_request_is_answered(ask: Ask) -> None:
    """The response has the form of the kube-scheduler's extender API."""
    status, answer = await ask("/filter", question("8", "a", "worker"))
    assert status == 200
    assert answer == {
        "NodeNames": ["worker"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {
            "a": "no lower node of virtual node a fits (0/1 nodes are available: 1 Insufficient cpu)"
        },
        "Error": "",
    }
    assert await ask("/prioritize", question("1", "a")) == (200, [{"Host": "a", "Score": 10}])


async def test_a_recorded_scheduler_request_is_answered(certificate_set: ExtenderCertificates) -> None:
    """The request is byte for byte from kube-scheduler 1.36.3."""
    whole = RECORDED.read_bytes()
    names = orjson.loads(whole)["NodeNames"]
    made = ExtenderPort(
        listening(HOST, 0), extender(**{names[0]: node_cache(node("n", cpu="500m"))}), clock=lambda: 0.0
    )
    await made.show(certificate_set.serving(certificate_set.ours))
    async with aiohttp.ClientSession() as session:
        url = f"https://{HOST}:{made.port}/filter"
        kind = {"Content-Type": "application/json"}
        async with session.post(
            url, ssl=certificate_set.client(certificate_set.ours), data=whole, headers=kind
        ) as answer:
            assert (await answer.json())["NodeNames"] == names[1:]
    await made.close()


def test_replicas_are_of_one_kind_regardless_of_their_token_volumes() -> None:
    """The apiserver gives each pod's token volume a different name."""
    recorded = RECORDED.read_bytes()
    first = orjson.loads(recorded)["Pod"]
    second = orjson.loads(recorded.replace(b"kube-api-access-", b"kube-api-access-x"))["Pod"]
    second["metadata"] |= {"name": "other", "uid": "other"}
    assert kind_of(unbound_pod(first)) == kind_of(unbound_pod(second))
    second["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    assert kind_of(unbound_pod(first)) != kind_of(unbound_pod(second))


async def test_a_preempt_request_is_answered_with_victims(certificate_set: ExtenderCertificates) -> None:
    """The response has the form of the extender API; a request without victims by UID is refused."""
    received: list[str] = []

    async def budgets() -> list[Budget]:
        """Return no budgets."""
        return []

    made = ExtenderPort(
        listening(HOST, 0),
        preempting(VirtualNodeFixture({"n": "4"}, ExistingPod("a", "n", "4"))),
        clock=lambda: 0.0,
        budgets=budgets,
        answered=lambda: received.append("filter"),
    )
    await made.show(certificate_set.serving(certificate_set.ours))
    victims = {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}
    arguments = {"Pod": pending_pod(), "NodeNameToVictims": None, "NodeNameToMetaVictims": {"v": victims, "w": victims}}
    async with aiohttp.ClientSession() as session:
        for path, body, status in (
            ("filter", {"Pod": pending_pod(), "NodeNames": ["v"]}, 200),
            ("preempt", {**arguments, "NodeNameToMetaVictims": None}, 400),
            ("preempt", arguments, 200),
        ):
            url = f"https://{HOST}:{made.port}/{path}"
            async with session.post(url, ssl=certificate_set.client(certificate_set.ours), json=body) as answer:
                assert answer.status == status
                answer_body = await answer.read()
    assert orjson.loads(answer_body) == {"NodeNameToMetaVictims": {"w": victims, "v": victims}}
    assert received == ["filter"]
    await made.close()


async def test_a_reservation_is_kept_between_two_connections(ask: Ask) -> None:
    """The second request is refused because of the first one's reservation."""
    assert (await ask("/filter", question("3", "a")))[1]["NodeNames"] == ["a"]
    assert (await ask("/filter", question("2", "a")))[1]["NodeNames"] == []


async def test_a_client_without_a_certificate_of_the_ca_is_disconnected(
    ask: Ask, certificate_set: ExtenderCertificates
) -> None:
    """The TLS handshake fails before a request is read."""
    for signer in (None, certificate_set.theirs):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask("/filter", question("1", "a"), certificate_set.client(signer))


async def test_a_client_with_another_user_name_is_forbidden(ask: Ask, certificate_set: ExtenderCertificates) -> None:
    """No room is reserved for its request."""
    status, message = await ask("/filter", question("3", "a"), certificate_set.client(certificate_set.ours, "mallory"))
    assert (status, message) == (403, "mallory must not call the extender; allowed: system:kube-scheduler\n")
    assert (await ask("/filter", question("2", "a")))[1]["NodeNames"] == ["a"]


async def test_a_request_above_8_mib_is_refused(ask: Ask, certificate_set: ExtenderCertificates) -> None:
    """A client without permission is forbidden instead."""
    large = b" " * (9 << 20)
    assert (await ask("/filter", large[: 8 << 20]))[0] == 400
    assert (await ask("/filter", large))[0] == 413
    assert (await ask("/filter", large[: 8 << 20], certificate_set.client(certificate_set.ours, "mallory")))[0] == 403
    assert (await ask("/filter", question("1", "a")))[0] == 200


WHOLE = b'{"Pod":{"metadata":{},"spec":{}},"Nodes":{"items":[{"metadata":{"name":"a"}}]},"NodeNames":null}'
"""What a scheduler asks whose configuration has no `nodeCacheCapable: true`: it takes names for no node at all."""


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'{"Pod":null}', b'{"Pod":{"metadata":{}}}', WHOLE])
async def test_a_malformed_request_is_refused_and_logged_once(
    ask: Ask, body: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message helps, because a scheduler silently continues without an ignorable extender."""
    for path in ("/filter", "/prioritize"):
        status, message = await ask(path, body)
        assert (status, "set nodeCacheCapable: true" in str(message)) == (400, True)
    assert "".join(capsys.readouterr()).count("requests of the upper scheduler are rejected") == 1


async def test_a_defect_fails_one_response_only(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    """It is logged and reported as an internal error instead of a refusal, and the next request is answered."""
    broken = {"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["a"]}
    assert await ask("/filter", broken) == (500, "internal error (bug in tensile)\n")
    assert "bug, please report" in "".join(capsys.readouterr())
    assert (await ask("/filter", question("1", "a")))[0] == 200


async def test_other_paths_and_methods_are_refused(
    ask: Ask, port: ExtenderPort, certificate_set: ExtenderCertificates
) -> None:
    """The extender does not bind pods, and GET is not allowed."""
    assert (await ask("/bind", question("1", "a")))[0] == 404
    async with aiohttp.ClientSession() as session:
        url = f"https://{HOST}:{port.port}/filter"
        async with session.get(url, ssl=certificate_set.client(certificate_set.ours)) as answer:
            assert answer.status == 405


async def test_the_accepted_ca_can_change_on_the_same_port(
    ask: Ask, port: ExtenderPort, certificate_set: ExtenderCertificates
) -> None:
    """The former CA does not count any more, and reservations are kept."""
    assert (await ask("/filter", question("3", "a")))[0] == 200
    await port.show(certificate_set.serving(certificate_set.theirs))
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await ask("/filter", question("2", "a"))
    status, answer = await ask("/filter", question("2", "a"), certificate_set.client(certificate_set.theirs))
    assert (status, answer["NodeNames"]) == (200, [])


async def test_no_client_is_accepted_without_a_ca(
    ask: Ask, port: ExtenderPort, certificate_set: ExtenderCertificates
) -> None:
    """That applies to clients with and without a certificate."""
    await port.show(certificate_set.serving(None))
    for signer in (certificate_set.ours, certificate_set.theirs, None):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask("/filter", question("1", "a"), certificate_set.client(signer))


async def test_a_new_extender_answers_on_the_same_connection(
    certificate_set: ExtenderCertificates, port: ExtenderPort
) -> None:
    """The extender is replaced when the topology's strategy changes."""
    async with aiohttp.ClientSession() as session:
        scores = []
        for strategy in ("spread", "binpack"):
            port.extender = extender(strategy, a=node_cache(node("n")))
            url = f"https://{HOST}:{port.port}/prioritize"
            async with session.post(
                url, ssl=certificate_set.client(certificate_set.ours), json=question("1", "a")
            ) as answer:
                scores += [one["Score"] for one in await answer.json()]
    assert scores == [10, 0]


async def test_a_port_of_another_program_raises_an_error() -> None:
    """The error names the field to change."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(TensileError, match=f"cannot listen on {HOST}:{number}: another program .* extender.port"):
            listening(HOST, number)


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1"])
async def test_a_closed_port_can_be_opened_again(certificate_set: ExtenderCertificates, bind: str) -> None:
    """That holds for IPv4 and IPv6."""
    made = ExtenderPort(listening(bind, 0), extender(), clock=lambda: 0.0)
    number = made.port
    await made.show(certificate_set.serving(certificate_set.ours))
    await made.close()
    again = ExtenderPort(listening(bind, number), extender(), clock=lambda: 0.0)
    assert again.port == number
    await again.close()
