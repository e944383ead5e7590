"""A kubeconfig as text -> the one cluster and user that a context names, or a refusal that says why.

A kubeconfig can start programs, switch certificate checks off and send everything through a proxy. What this engine
does not do is refused by name instead of passed over, because acting with other rights, or towards another server, than
the file says is worse than not acting. Nothing is opened here: files are only named.

Who names a kubeconfig may name any Secret or file that this program can read. So errors give places in it and the keys
that Kubernetes has there, and of its content only what the one who named it has named as well.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensile.errors import AccessError
from tensile.kube.address import Address, check_server_name, read_server
from tensile.kube.plugin import LONGEST_TOKEN, Plugin, is_token, read_plugin
from tensile.kube.wording import key_shown, shown
from tensile.yamltext import MAX_BYTES, compose
from tensile.yamltree import plain

__all__ = ["MAX_BYTES", "AccessError", "Entry", "Material", "decode", "parse"]

_CLUSTER_KEYS = frozenset(
    (
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority",
        "certificate-authority-data",
        "proxy-url",
        "disable-compression",
        "extensions",
    )
)
_USER_KEYS = frozenset(
    (
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "exec",
        "extensions",
    )
)
_REFUSED_CLUSTER = {
    "insecure-skip-tls-verify": "give certificate-authority-data instead: without it anybody can pose as the cluster",
    "proxy-url": "proxies are not supported: give a server address that is reachable directly",
}
_BASIC = "Kubernetes removed passwords in 1.19: use a token, tokenFile or client certificate"
_IMPERSONATION = "impersonation is not supported: give the credential of the account itself"
_REFUSED_USER = {
    "auth-provider": "Kubernetes removed auth providers in 1.26: use a token, tokenFile or client certificate",
    "username": _BASIC,
    "password": _BASIC,
    "as": _IMPERSONATION,
    "as-uid": _IMPERSONATION,
    "as-groups": _IMPERSONATION,
    "as-user-extra": _IMPERSONATION,
}


class Material(NamedTuple):
    """Something in PEM: the bytes themselves, or else the file that holds them; neither when it was not given."""

    data: bytes = b""
    file: str = ""


_NOTHING = Material()


@dataclass(frozen=True, slots=True)
class Entry:
    """One way into one cluster. `token`, `token_file`, `plugin` and the certificate are alternatives."""

    server: str
    address: Address
    server_name: str = ""
    authority: Material = _NOTHING
    certificate: Material = _NOTHING
    key: Material = field(default=_NOTHING, repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    plugin: Plugin | None = field(default=None, repr=False)

    def files(self) -> list[str]:
        """List the files that the entry refers to, also those in whose place it holds the content."""
        named = (self.authority.file, self.certificate.file, self.key.file, self.token_file)
        return [file for file in named if file]

    def needed(self) -> list[str]:
        """List the files that the entry cannot do without."""
        found = [one.file for one in (self.authority, self.certificate, self.key) if not one.data]
        return [file for file in (*found, self.token_file) if file]


class _Section(NamedTuple):
    """A mapping of the file and the words for where it stands."""

    where: str
    values: Mapping[str, Any]

    def text(self, key: str) -> str:
        """Give the text under `key`, "" when it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise AccessError(f"{self.where}: {key} must be text", "put it in quotes")
        return value

    def check(self, known: frozenset[str], refused: Mapping[str, str]) -> None:
        """Raise for the first key that is set and not supported, or not known."""
        for key, advice in refused.items():
            if self.values.get(key) not in (None, False, ""):
                raise AccessError(f"{self.where}: {key} is refused", advice)
        for key in sorted(self.values.keys() - known - refused.keys()):
            told = key_shown(key, known | refused.keys())
            raise AccessError(f"{self.where}: {told} is not known", "remove it, or correct its spelling")

    def material(self, key: str) -> Material:
        """Give what `key` names as a file or `key`-data holds as base64; data wins, as in Kubernetes."""
        try:
            data = base64.b64decode("".join(self.text(f"{key}-data").split()), validate=True)
        except (binascii.Error, ValueError):
            raise AccessError(f"{self.where}: {key}-data is not base64", "encode the PEM file with base64") from None
        return Material(data, self.text(key))


def decode(data: bytes, origin: str) -> str:
    """Give a kubeconfig's bytes as text; raises AccessError for what is none, or too much of it."""
    if len(data) > MAX_BYTES:
        raise AccessError(f"{origin}: larger than 1 MiB, which no kubeconfig is", "look whether it is the right file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AccessError(f"{origin}: byte {error.start} is not UTF-8", "save it as UTF-8") from None


def parse(text: str, context: str | None, origin: str, *, no_plugins: str = "") -> Entry:
    """Give what `context` (None: the file's current-context) names in the kubeconfig `text`.

    `origin` says in errors where the text is from. With `no_plugins`, which says why, a user with an exec plugin is
    refused, whatever the plugin is. Raises AccessError.
    """
    config = _load(text, origin)
    name = context if context is not None else config.text("current-context")
    if not name:
        raise AccessError(f"{origin}: no current-context", "set it in the file, or name a context in the topology")
    asked = f"context '{shown(name)}'" if context is not None else "current-context"
    chosen = _named(config, "context", name, f"{origin}: {asked}")
    cluster = _named(config, "cluster", *_referred(chosen, "cluster"))
    user = _named(config, "user", *_referred(chosen, "user"))
    cluster.check(_CLUSTER_KEYS, _REFUSED_CLUSTER)
    user.check(_USER_KEYS, _REFUSED_USER)
    if no_plugins and user.values.get("exec") is not None:
        why, _, advice = no_plugins.partition(": ")
        raise AccessError(f"{user.where}: exec plugins are refused {why}", advice)
    return _entry(cluster, user)


def _load(text: str, origin: str) -> _Section:
    """Read the text, within the limits of every configuration, into a mapping."""
    document = compose(text, what="kubeconfig")
    for flaw in document.flaws:
        raise AccessError(f"{origin}:{flaw.position.line}:{flaw.position.column}: {flaw.text}")
    loaded = plain(document.root) if document.root else None
    if not isinstance(loaded, dict):
        raise AccessError(f"{origin}: no kubeconfig", "expected the keys clusters, users and contexts")
    if loaded.get("kind") not in (None, "Config") or loaded.get("apiVersion") not in (None, "v1"):
        raise AccessError(f"{origin}: no kubeconfig", "expected kind Config and apiVersion v1")
    return _Section(origin, loaded)


def _referred(context: _Section, key: str) -> tuple[str, str]:
    """Give the name that a context refers to under `key`, and where it does."""
    name = context.text(key)
    if not name:
        raise AccessError(f"{context.where}: names no {key}", "add one")
    return name, f"{context.where}.{key}"


def _named(config: _Section, sort: str, name: str, asker: str) -> _Section:
    """Find the entry called `name` in the list of contexts, clusters or users, and give its body.

    `asker` says in errors where the name stands.
    """
    given = config.values.get(f"{sort}s")
    entries = given if isinstance(given, tuple) else ()
    found = [place for place, one in enumerate(entries) if isinstance(one, dict) and one.get("name") == name]
    if not found:
        raise AccessError(
            f"{asker}: no {sort} of that name is defined (of {len(entries)})", "define it, or name another"
        )
    where = [f"{sort}s[{place}]" for place in found]
    if len(found) > 1:
        raise AccessError(f"{config.where}: {' and '.join(where[:2])} have one name", "remove one, or rename it")
    body = entries[found[0]].get(sort)
    if not isinstance(body, dict):
        raise AccessError(
            f"{config.where}: {where[0]} has no {sort} in it", f"write the mapping {sort} beside its name"
        )
    return _Section(f"{config.where}: {where[0]}.{sort}", body)


def _entry(cluster: _Section, user: _Section) -> Entry:
    """Put together what cluster and user say."""
    server, server_name = cluster.text("server"), cluster.text("tls-server-name")
    address = read_server(server, cluster.where)
    check_server_name(server_name, cluster.where)
    token_file = user.text("tokenFile")
    plugin = user.values.get("exec")
    entry = Entry(
        server=server.rstrip("/"),
        address=address,
        server_name=server_name,
        authority=cluster.material("certificate-authority"),
        certificate=user.material("client-certificate"),
        key=user.material("client-key"),
        token="" if token_file else user.text("token").strip(),
        token_file=token_file,
        plugin=None if plugin is None else read_plugin(plugin, user.where),
    )
    _demand_credential(entry, user.where)
    return entry


def _demand_credential(entry: Entry, where: str) -> None:
    """Refuse an entry that shows nothing, half a pair, or a token that is none."""
    if any(entry.certificate) != any(entry.key):
        raise AccessError(f"{where}: client-certificate and client-key belong together", "give both")
    if not (any(entry.certificate) or entry.token or entry.token_file or entry.plugin):
        raise AccessError(f"{where}: has no credential", "give a token, tokenFile or client certificate")
    if not is_token(entry.token):
        raise AccessError(
            f"{where}: token is not one line of at most {LONGEST_TOKEN} visible characters", "give the bare token"
        )
