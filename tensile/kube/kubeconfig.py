"""A kubeconfig as text -> the one cluster and user that a context names, or a refusal that says why.

A kubeconfig can start programs, switch certificate checks off and send everything through a proxy. What this engine
does not do is refused by name instead of passed over, because acting with other rights, or towards another server, than
the file says is worse than not acting. Nothing is opened here: files are only named.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import yaml

from tensile.errors import TensileError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_REFUSED_CLUSTER = {
    "insecure-skip-tls-verify": "give certificate-authority-data instead: without it anybody can pose as the cluster",
    "proxy-url": "proxies are not supported: give a server address that is reachable directly",
}
_REFUSED_USER = {
    "auth-provider": "Kubernetes removed auth providers in 1.26: use a token, tokenFile or client certificate",
    "username": "Kubernetes removed passwords in 1.19: use a token, tokenFile or client certificate",
    "password": "Kubernetes removed passwords in 1.19: use a token, tokenFile or client certificate",
    "as": "impersonation is not supported: give the credential of the account itself",
    "as-uid": "impersonation is not supported: give the credential of the account itself",
    "as-groups": "impersonation is not supported: give the credential of the account itself",
    "as-user-extra": "impersonation is not supported: give the credential of the account itself",
}


class AccessError(TensileError):
    """The way to a cluster cannot be used as it is written down; the message holds no secret."""


class Material(NamedTuple):
    """Something in PEM: the bytes themselves, or the file that holds them; neither when it was not given."""

    data: bytes = b""
    file: str = ""


_NOTHING = Material()


@dataclass(frozen=True, slots=True)
class Entry:
    """One way into one cluster. `token`, `token_file`, `plugin` and the certificate are alternatives."""

    server: str
    server_name: str = ""
    authority: Material = _NOTHING
    certificate: Material = _NOTHING
    key: Material = field(default=_NOTHING, repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    plugin: Mapping[str, Any] | None = field(default=None, repr=False)

    def files(self) -> list[str]:
        """List the files that the entry refers to."""
        named = (self.authority.file, self.certificate.file, self.key.file, self.token_file)
        return [file for file in named if file]


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
            raise AccessError(f"{self.where}: {key} must be text: put it in quotes")
        return value

    def refuse(self, refused: Mapping[str, str]) -> None:
        """Raise for the first key that is set and not supported."""
        for key, advice in refused.items():
            if self.values.get(key):
                raise AccessError(f"{self.where}: {key} is refused: {advice}")

    def material(self, key: str) -> Material:
        """Give what `key` names as a file or `key`-data holds as base64; data wins, as in Kubernetes."""
        encoded = self.text(f"{key}-data")
        if not encoded:
            return Material(file=self.text(key))
        try:
            return Material(data=base64.b64decode("".join(encoded.split()), validate=True))
        except (binascii.Error, ValueError):
            raise AccessError(f"{self.where}: {key}-data is not base64: encode the PEM file with base64") from None


def parse(text: str, context: str | None, origin: str) -> Entry:
    """Give what `context` (None: the file's current-context) names in the kubeconfig `text`.

    `origin` says in errors where the text is from. Raises AccessError.
    """
    config = _load(text, origin)
    name = context if context is not None else config.text("current-context")
    if not name:
        raise AccessError(f"{origin}: no current-context: set it in the file, or name a context in the topology")
    chosen = _named(config, "context", name)
    cluster = _named(config, "cluster", _referred(chosen, "cluster"))
    user = _named(config, "user", _referred(chosen, "user"))
    cluster.refuse(_REFUSED_CLUSTER)
    user.refuse(_REFUSED_USER)
    return _entry(cluster, user)


def split_server(server: str, where: str) -> SplitResult:
    """Take the server's address apart; raises AccessError unless it is https with a host and no query."""
    try:
        parts = urlsplit(server)
        port_fits = parts.port != 0
    except ValueError:
        raise AccessError(f"{where}: server {server!r} is no address: write https://HOST:PORT") from None
    if parts.scheme != "https":
        raise AccessError(f"{where}: server {server!r} is refused: it must begin with https://")
    if not parts.hostname or not port_fits or parts.username or parts.query or parts.fragment:
        raise AccessError(f"{where}: server is no plain address: write https://HOST:PORT")
    return parts


def _load(text: str, origin: str) -> _Section:
    """Read the text as YAML into a mapping."""
    if len(text) > MAX_BYTES:
        raise AccessError(f"{origin}: larger than 1 MiB: this is no kubeconfig")
    try:
        _measure(text, origin)
        loaded = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, in C where there is one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise AccessError(f"{origin}{place}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, TypeError):
        raise AccessError(f"{origin}: not YAML that can be read: write it anew, with kubectl for example") from None
    if not isinstance(loaded, dict):
        raise AccessError(f"{origin}: no kubeconfig: expected the keys clusters, users and contexts")
    return _Section(origin, loaded)


def _measure(text: str, origin: str) -> None:
    """Refuse what is nested so deep that a loader would not survive it, before one sees it."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise AccessError(f"{origin}: nested deeper than {MAX_DEPTH} levels: this is no kubeconfig")


def _referred(context: _Section, key: str) -> str:
    """Give the name that a context refers to under `key`."""
    name = context.text(key)
    if not name:
        raise AccessError(f"{context.where}: names no {key}: add one")
    return name


def _named(config: _Section, sort: str, name: str) -> _Section:
    """Find the entry called `name` in the list of contexts, clusters or users, and give its body."""
    listed = config.values.get(f"{sort}s") or []
    entries = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    found = [item for item in entries if item.get("name") == name]
    if len(found) != 1:
        names = [item["name"] for item in entries if isinstance(item.get("name"), str)]
        known = ", ".join(sorted(names)) or "none"
        problem = "more than once" if found else f"not (there are: {known})"
        raise AccessError(f"{config.where}: {sort} {name!r} is defined {problem}: define it once, or name another")
    body = found[0].get(sort)
    return _Section(f"{config.where}: {sort} {name!r}", body if isinstance(body, dict) else {})


def _entry(cluster: _Section, user: _Section) -> Entry:
    """Put together what cluster and user say."""
    split_server(cluster.text("server"), cluster.where)
    plugin = user.values.get("exec")
    if plugin is not None and not isinstance(plugin, dict):
        raise AccessError(f"{user.where}: exec must be a mapping with command and apiVersion")
    entry = Entry(
        server=cluster.text("server").rstrip("/"),
        server_name=cluster.text("tls-server-name"),
        authority=cluster.material("certificate-authority"),
        certificate=user.material("client-certificate"),
        key=user.material("client-key"),
        token=user.text("token").strip(),
        token_file="" if user.text("token") else user.text("tokenFile"),
        plugin=plugin,
    )
    _demand_credential(entry, user.where)
    return entry


def _demand_credential(entry: Entry, where: str) -> None:
    """Refuse an entry that shows nothing, half a pair, or a token that is none."""
    if any(entry.certificate) != any(entry.key):
        raise AccessError(f"{where}: client-certificate and client-key belong together: give both")
    if not (any(entry.certificate) or entry.token or entry.token_file or entry.plugin):
        raise AccessError(f"{where}: has no credential: give a token, tokenFile or client certificate")
    if any(sign in entry.token for sign in "\r\n\0"):
        raise AccessError(f"{where}: token has more than one line: give the bare token")
