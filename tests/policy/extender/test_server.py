"""The extender's port as a kube-scheduler calls it, and as those do who may not."""

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
from extenderkit import extender, ground
from placekit import asking, node, pod
from preemptkit import Behind, There, wants
from preemptkit import extender as preempting

from tensile.errors import TensileError
from tensile.kube import tls as certificates
from tensile.kubelet.api.certificates import tls_context
from tensile.policy.extender.extender import seeking
from tensile.policy.extender.node_cache import kind_of
from tensile.policy.extender.server import SCHEDULER, ExtenderPort, listening
from tensile.policy.extender.victims import Budget
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


class Papers:
    """An authority with what it signed, and a stranger's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ours, self.theirs = authority("ours", NOW), authority("theirs", NOW)
        self.server = self.ours.issue("extender", addresses=[HOST])

    def serving(self, hears: Authority | None) -> ssl.SSLContext:
        """Make the TLS of a port that hears those of an authority; of nobody, where there is none."""
        heard = hears.pair.certificate.decode() if hears else ""
        return tls_context(certificates.KeyPair(self.server.certificate, self.server.key), heard)

    def client(self, signer: Authority | None, user: str = SCHEDULER) -> ssl.SSLContext:
        """Make the TLS of a caller; without a signer, of one that shows nothing."""
        context = ssl.create_default_context(cadata=self.ours.pair.certificate.decode())
        if signer is not None:
            context.load_cert_chain(*stored(self.directory, "client", signer.issue(user)))
        return context


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    """Make certificates."""
    return Papers(tmp_path)


@pytest.fixture
async def port(papers: Papers) -> AsyncIterator[ExtenderPort]:
    """Serve an extender for one lower of 4 cpu on a free port."""
    made = ExtenderPort(listening(HOST, 0), extender(a=ground(node("n"))), clock=lambda: 0.0)
    await made.show(papers.serving(papers.ours))
    yield made
    await made.close()


Ask = Callable[..., Any]


@pytest.fixture
async def ask(port: ExtenderPort, papers: Papers) -> Ask:
    """Return a way to ask: a path, a body, and by whom."""

    async def asked(path: str, body: Any, tls: ssl.SSLContext | None = None) -> tuple[int, Any]:
        """Post, and give the status with the answer."""
        context = tls or papers.client(papers.ours)
        async with aiohttp.ClientSession() as session:
            url = f"https://{HOST}:{port.port}{path}"
            given = {"data": BytesIO(body)} if isinstance(body, bytes) else {"json": body}
            async with session.post(url, ssl=context, **given) as answer:
                is_json = answer.content_type == "application/json"
                return answer.status, await (answer.json() if is_json else answer.text())

    return asked


def question(cpu: str, *names: str) -> dict[str, Any]:
    """Ask as the kube-scheduler does."""
    return {"Pod": pod(f"p{cpu}", asking(cpu=cpu), uid=cpu), "Nodes": None, "NodeNames": list(names)}


async def test_a_scheduler_is_answered(ask: Ask) -> None:
    """In the form of the kube-scheduler's extender API."""
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


async def test_a_real_question_is_answered(papers: Papers) -> None:
    """As kube-scheduler 1.36.3 sent it, byte for byte."""
    whole = RECORDED.read_bytes()
    names = orjson.loads(whole)["NodeNames"]
    made = ExtenderPort(listening(HOST, 0), extender(**{names[0]: ground(node("n", cpu="500m"))}), clock=lambda: 0.0)
    await made.show(papers.serving(papers.ours))
    async with aiohttp.ClientSession() as session:
        url = f"https://{HOST}:{made.port}/filter"
        kind = {"Content-Type": "application/json"}
        async with session.post(url, ssl=papers.client(papers.ours), data=whole, headers=kind) as answer:
            assert (await answer.json())["NodeNames"] == names[1:]
    await made.close()


def test_replicas_are_alike_whatever_their_tokens_are_called() -> None:
    """The apiserver gives the volume of each pod's token a name of its own: that makes no other kind of pod."""
    recorded = RECORDED.read_bytes()
    first = orjson.loads(recorded)["Pod"]
    second = orjson.loads(recorded.replace(b"kube-api-access-", b"kube-api-access-x"))["Pod"]
    second["metadata"] |= {"name": "other", "uid": "other"}
    assert kind_of(seeking(first)) == kind_of(seeking(second))
    second["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    assert kind_of(seeking(first)) != kind_of(seeking(second))


async def test_a_scheduler_is_told_who_has_to_go(papers: Papers) -> None:
    """In the form of the kube-scheduler's extender API; by one that has no names of victims nothing is answered."""
    heard: list[str] = []

    async def budgets() -> list[Budget]:
        """Return no budgets."""
        return []

    made = ExtenderPort(
        listening(HOST, 0),
        preempting(Behind({"n": "4"}, There("a", "n", "4"))),
        clock=lambda: 0.0,
        budgets=budgets,
        answered=lambda: heard.append("filter"),
    )
    await made.show(papers.serving(papers.ours))
    victims = {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}
    asked = {"Pod": wants(), "NodeNameToVictims": None, "NodeNameToMetaVictims": {"v": victims, "w": victims}}
    async with aiohttp.ClientSession() as session:
        for path, body, status in (
            ("filter", {"Pod": wants(), "NodeNames": ["v"]}, 200),
            ("preempt", {**asked, "NodeNameToMetaVictims": None}, 400),
            ("preempt", asked, 200),
        ):
            url = f"https://{HOST}:{made.port}/{path}"
            async with session.post(url, ssl=papers.client(papers.ours), json=body) as answer:
                assert answer.status == status
                told = await answer.read()
    assert orjson.loads(told) == {"NodeNameToMetaVictims": {"w": victims, "v": victims}}
    assert heard == ["filter"]
    await made.close()


async def test_what_was_answered_is_promised(ask: Ask) -> None:
    """From one connection to the next."""
    assert (await ask("/filter", question("3", "a")))[1]["NodeNames"] == ["a"]
    assert (await ask("/filter", question("2", "a")))[1]["NodeNames"] == []


async def test_who_shows_nothing_is_not_heard(ask: Ask, papers: Papers) -> None:
    """Nor who shows a certificate of another authority: the connection ends before there is a question."""
    for signer in (None, papers.theirs):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask("/filter", question("1", "a"), papers.client(signer))


async def test_who_is_no_scheduler_is_turned_away(ask: Ask, papers: Papers) -> None:
    """By name, and nothing is promised to them."""
    status, words = await ask("/filter", question("3", "a"), papers.client(papers.ours, "mallory"))
    assert (status, words) == (403, "mallory must not call the extender; allowed: system:kube-scheduler\n")
    assert (await ask("/filter", question("2", "a")))[1]["NodeNames"] == ["a"]


async def test_what_is_too_large_is_refused(ask: Ask, papers: Papers) -> None:
    """Of whoever may not ask, none of it is read."""
    large = b" " * (9 << 20)
    assert (await ask("/filter", large[: 8 << 20]))[0] == 400
    assert (await ask("/filter", large))[0] == 413
    assert (await ask("/filter", large[: 8 << 20], papers.client(papers.ours, "mallory")))[0] == 403
    assert (await ask("/filter", question("1", "a")))[0] == 200


WHOLE = b'{"Pod":{"metadata":{},"spec":{}},"Nodes":{"items":[{"metadata":{"name":"a"}}]},"NodeNames":null}'
"""What a scheduler asks whose configuration has no `nodeCacheCapable: true`: it takes names for no node at all."""


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"{}", b'{"Pod":null}', b'{"Pod":{"metadata":{}}}', WHOLE])
async def test_what_is_no_question_is_refused(ask: Ask, body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """With words, and once in the log; a scheduler to which the extender is ignorable goes on without it."""
    for path in ("/filter", "/prioritize"):
        status, words = await ask(path, body)
        assert (status, "set nodeCacheCapable: true" in str(words)) == (400, True)
    assert "".join(capsys.readouterr()).count("requests of the upper scheduler are rejected") == 1


async def test_a_defect_costs_one_answer(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    """It is logged, it is never said that nothing fits, and the next question is answered."""
    broken = {"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["a"]}
    assert await ask("/filter", broken) == (500, "internal error (bug in tensile)\n")
    assert "bug, please report" in "".join(capsys.readouterr())
    assert (await ask("/filter", question("1", "a")))[0] == 200


async def test_other_paths_and_methods_are_none_of_it(ask: Ask, port: ExtenderPort, papers: Papers) -> None:
    """There is nothing to bind, and nothing to read."""
    assert (await ask("/bind", question("1", "a")))[0] == 404
    async with aiohttp.ClientSession() as session:
        url = f"https://{HOST}:{port.port}/filter"
        async with session.get(url, ssl=papers.client(papers.ours)) as answer:
            assert answer.status == 405


async def test_whom_it_hears_may_change(ask: Ask, port: ExtenderPort, papers: Papers) -> None:
    """On the same port: the authority of before counts no more, and what was promised stands."""
    assert (await ask("/filter", question("3", "a")))[0] == 200
    await port.show(papers.serving(papers.theirs))
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
        await ask("/filter", question("2", "a"))
    status, answer = await ask("/filter", question("2", "a"), papers.client(papers.theirs))
    assert (status, answer["NodeNames"]) == (200, [])


async def test_nobody_is_heard_while_no_authority_is_known(ask: Ask, port: ExtenderPort, papers: Papers) -> None:
    """Neither with a certificate nor without."""
    await port.show(papers.serving(None))
    for signer in (papers.ours, papers.theirs, None):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
            await ask("/filter", question("1", "a"), papers.client(signer))


async def test_another_extender_answers_on_the_same_connection(papers: Papers, port: ExtenderPort) -> None:
    """As after a reload of the strategy."""
    async with aiohttp.ClientSession() as session:
        scores = []
        for strategy in ("spread", "binpack"):
            port.extender = extender(strategy, a=ground(node("n")))
            url = f"https://{HOST}:{port.port}/prioritize"
            async with session.post(url, ssl=papers.client(papers.ours), json=question("1", "a")) as answer:
                scores += [one["Score"] for one in await answer.json()]
    assert scores == [10, 0]


async def test_a_port_that_is_taken() -> None:
    """What to change is said."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(TensileError, match=f"cannot listen on {HOST}:{number}: another program .* extender.port"):
            listening(HOST, number)


@pytest.mark.parametrize("bind", ["127.0.0.1", "::1"])
async def test_a_port_that_was_closed_is_free(papers: Papers, bind: str) -> None:
    """Of either family, also when nothing was ever shown on it."""
    made = ExtenderPort(listening(bind, 0), extender(), clock=lambda: 0.0)
    number = made.port
    await made.show(papers.serving(papers.ours))
    await made.close()
    again = ExtenderPort(listening(bind, number), extender(), clock=lambda: 0.0)
    assert again.port == number
    await again.close()
