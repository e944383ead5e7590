"""Tests that errors about a kubeconfig repeat nothing of it.

A user who names a kubeconfig may name any Secret or file as one, and must not learn its content.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from copy import deepcopy
from typing import Any

import orjson
import pytest
import yaml
from scripted import HttpResponse, ScriptedApiserver

from tensile.errors import AccessError, ClusterError
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.credentials import from_text
from tensile.kube.exec_plugin import read_answer
from tensile.kube.kubeconfig import ExecPlugin, parse
from tensile.objects import POD

CANARY = "can4ry-7f3a9b2c"

TEXTS = {
    "plain": CANARY,
    "an alias": f"*{CANARY}",
    "an alias in a list": f"[*{CANARY}]",
    "an alias of itself": f"&{CANARY} [*{CANARY}]",
    "a tag": f"!{CANARY} x",
    "a tag's handle": f"!{CANARY}!x y",
    "a directive": f"%{CANARY} 1\n---\nx",
    "a directive of tags": f"%TAG !e! {CANARY}\n---\nx",
    "a version": f"%YAML 9.{CANARY}\n---\nx",
    "a key": f"{CANARY}: x",
    "a key twice": f"{CANARY}: x\n{CANARY}: y",
    "a key that is open": f"? {CANARY}",
    "a value that is open": f'x: "{CANARY}',
    "a bracket that is open": f"{{{CANARY}: [",
    "an escape": f'x: "{CANARY}\\q"',
    "a block": f"x: |\n  {CANARY}\n y: z",
    "a list": f"- {CANARY}\n- x",
    "two documents": f"{CANARY}\n---\n{CANARY}",
    "settings": f"[main]\npassword = {CANARY}\n",
    "assignments": f"PASSWORD={CANARY}\n",
    "PEM": f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n",
    "JSON": f'{{"auths": {{"{CANARY}": {{"auth": "{CANARY}"}}}}}}',
    "another kind": f"kind: {CANARY}",
    "another version of it": f"apiVersion: {CANARY}",
    "a current-context": f"current-context: {CANARY}",
    "a name of a context": f"current-context: x\ncontexts: [{{name: {CANARY}}}]",
    "a number as current-context": "current-context: 12345678901234",
}

WHOLE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "preferences": {"colors": True},
    "contexts": [
        {"name": "here", "context": {"cluster": "there", "user": "me", "namespace": "n"}},
        {"name": f"other-{CANARY}", "context": {"cluster": CANARY, "user": CANARY}},
    ],
    "clusters": [
        {
            "name": "there",
            "cluster": {
                "server": "https://127.0.0.1:6443",
                "tls-server-name": "kubernetes",
                "certificate-authority-data": "QUJD",
            },
        },
        {"name": f"other-{CANARY}", "cluster": {"server": CANARY}},
    ],
    "users": [
        {
            "name": "me",
            "user": {
                "client-certificate-data": "QUJD",
                "client-key-data": "QUJD",
                "token": "t",
            },
        },
        {"name": f"other-{CANARY}", "user": {"token": CANARY}},
    ],
}


def altered(value: Any) -> Iterator[Any]:
    """Yield every document that results if one part of it is replaced by the canary, renamed to it, or removed."""
    if isinstance(value, dict):
        for key in value:
            rest = {name: one for name, one in value.items() if name != key}
            yield rest
            yield {**rest, CANARY: value[key]}
            for one in altered(value[key]):
                yield {**value, key: one}
    elif isinstance(value, list):
        for place in range(len(value)):
            for one in altered(value[place]):
                yield [*value[:place], one, *value[place + 1 :]]
    else:
        yield CANARY
        yield {CANARY: CANARY}
        yield [CANARY]
    yield CANARY


DOCUMENTS = list(altered(deepcopy(WHOLE)))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_the_error_for_text_that_is_no_kubeconfig_does_not_quote_it(text: str) -> None:
    """The content of another file or Secret must not get into the error."""
    with pytest.raises(AccessError) as refused:
        parse(text, None, "f")
    assert CANARY not in str(refused.value)
    assert "12345678901234" not in str(refused.value)


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
async def test_the_error_for_an_invalid_part_of_a_kubeconfig_quotes_no_value_and_no_name(number: int) -> None:
    """Each part in turn is replaced, renamed or removed."""
    message = ""
    try:
        await from_text(yaml.safe_dump(DOCUMENTS[number]), "Secret a/b")
    except AccessError as error:
        message = str(error)
    assert not [part for part in (CANARY, "there", "here") if part in message.replace("where", "")]


EXEC = {
    "exec": {
        "command": "/x",
        "apiVersion": "client.authentication.k8s.io/v1",
        "args": ["a"],
        "env": [{"name": "N", "value": "v"}],
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
}
ANSWER: dict[str, Any] = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "t", "clientCertificateData": "c", "clientKeyData": "k", "expirationTimestamp": "2020-01-01"},
}


@pytest.mark.parametrize("section", list(altered(EXEC)))
def test_the_error_for_an_invalid_exec_section_does_not_quote_it(section: object) -> None:
    """Each part of the section in turn is replaced, renamed or removed."""
    text = yaml.safe_dump({**WHOLE, "users": [{"name": "me", "user": section}]})
    assert CANARY not in words_of(lambda: parse(text, None, "f"))


@pytest.mark.parametrize("answer", list(altered(ANSWER)))
def test_the_error_for_an_invalid_exec_credential_does_not_quote_it(answer: object) -> None:
    """Each part of the plugin's output in turn is replaced, renamed or removed."""
    output = orjson.dumps(answer)
    plugin = ExecPlugin(command="/p", api_version=ANSWER["apiVersion"])
    assert CANARY not in words_of(lambda: read_answer(output, plugin, "f"))


def words_of(reading: Callable[[], object]) -> str:
    """Return the message of the AccessError, "" for none."""
    try:
        reading()
    except AccessError as error:
        return str(error)
    return ""


def test_the_error_for_a_missing_context_names_only_that_context() -> None:
    """The contexts that exist are counted but not named."""
    with pytest.raises(AccessError) as refused:
        parse(yaml.safe_dump(WHOLE), "production", "f")
    assert str(refused.value).startswith("f: context 'production': no context has this name (2 defined)")
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("status", [200, 401, 403, 500])
@pytest.mark.parametrize("media", ["text/html", f"{CANARY}/{'x' * 100}", "application/json"])
async def test_the_error_for_a_response_of_another_server_does_not_quote_it(
    apiserver: ScriptedApiserver, cluster: HttpCluster, status: int, media: str
) -> None:
    """A kubeconfig may name an address that its author cannot reach, and the error must not reveal its content."""
    foreign = HttpResponse(status, f'{{"secret": "{CANARY}"}}'.encode(), {"Content-Type": media})
    apiserver.queue("list", *[foreign] * 20)
    apiserver.queue("watch", *[foreign] * 20)
    messages = []
    for request in (cluster.list(POD, Selection()), first(cluster.watch(POD, Selection(), "1", 60))):
        try:
            await request
        except ClusterError as error:
            messages.append(str(error))
    assert messages
    assert CANARY not in "".join(messages)
    assert status == 200 or all(f"HTTP status {status} with {len(foreign.body)} bytes" in one for one in messages)


async def first(events: AsyncIterator[WatchEvent]) -> list[WatchEvent]:
    """Return all events of a watch."""
    return [event async for event in events]
