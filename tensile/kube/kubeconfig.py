"""Parse a kubeconfig: the cluster and user that a context names, or an error that says why not.

A kubeconfig can start programs, disable certificate checks and route through a proxy. What this engine does not support
is refused instead of ignored: acting with other permissions or towards another server than the file says is worse than
not acting. Nothing is opened here: files are only named.

Whoever names a kubeconfig may name any Secret or file that this program can read. So errors contain positions and the
keys that Kubernetes defines, and of the content only what the user named too.
"""

import base64
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from tensile.errors import AccessError
from tensile.kube.dial import ServerAddress, check_server_name, read_server
from tensile.kube.exec_plugin import ExecPlugin
from tensile.kube.strict_models import KubeconfigSection, Name, Text, Token, demanding, read, wrong
from tensile.text import shown
from tensile.yaml_document import MAX_BYTES, compose, plain

__all__ = ["MAX_BYTES", "AccessError", "KubeconfigEntry", "PEMSource", "decode", "parse"]


class PEMSource(NamedTuple):
    """PEM data: the bytes themselves, or else the file that holds them. Both are empty if none was given."""

    data: bytes = b""
    file: str = ""


_NOTHING = PEMSource()


@dataclass(frozen=True, slots=True)
class KubeconfigEntry:
    """The access to one cluster. `token`, `token_file`, `plugin` and the certificate are alternatives."""

    server: str
    address: ServerAddress
    server_name: str = ""
    authority: PEMSource = _NOTHING
    certificate: PEMSource = _NOTHING
    key: PEMSource = field(default=_NOTHING, repr=False)
    token: str = field(default="", repr=False)
    token_file: str = ""
    plugin: ExecPlugin | None = field(default=None, repr=False)
    namespace: str = ""

    def files(self) -> list[str]:
        """Return the files that the entry names, including those overridden by inline data."""
        named = (self.authority.file, self.certificate.file, self.key.file, self.token_file)
        return [file for file in named if file]

    def needed(self) -> list[str]:
        """Return the files that the entry requires."""
        found = [one.file for one in (self.authority, self.certificate, self.key) if not one.data]
        return [file for file in (*found, self.token_file) if file]


def _key(name: str) -> str:
    """Return the key of a field."""
    return name.rstrip("_").replace("_", "-")


def _refused(advice: str) -> BeforeValidator:
    """Return a validator that refuses any set value."""
    return BeforeValidator(demanding(lambda value: value in (None, False, ""), "is refused", advice))


def _decoded(value: Any) -> bytes:
    """Return decoded base64, which may contain line breaks. Null is b""."""
    try:
        return base64.b64decode("".join(value.split()), validate=True) if value is not None else b""
    except (AttributeError, ValueError):
        raise wrong("is not base64", "encode the PEM file with base64") from None


def _allowed(plugin: Any, info: ValidationInfo) -> Any:
    """Refuse every plugin if the validation context contains a reason."""
    if plugin is not None and info.context:
        why, _, advice = info.context.partition(": ")
        raise wrong(f"plugins are refused {why}", advice)
    return plugin


_Data = Annotated[bytes, BeforeValidator(_decoded)]
_UNCHECKED = _refused("give certificate-authority-data instead: without it any server can impersonate the cluster")
_PROXY = _refused("proxies are not supported: give a server address that is reachable directly")
_PROVIDER = _refused("Kubernetes removed auth providers in 1.26: use a token, tokenFile or client certificate")
_BASIC = _refused("Kubernetes removed passwords in 1.19: use a token, tokenFile or client certificate")
_IMPERSONATION = _refused("impersonation is not supported: use the credential of that account")


class _Context(KubeconfigSection, extra="ignore"):
    """The cluster and user of a context, and the default namespace, which no request of the engine depends on."""

    cluster: Name
    user: Name
    namespace: Any = ""


class _Cluster(KubeconfigSection, alias_generator=_key):
    """The address and CA of a cluster. Refused fields come first, so that they are reported first."""

    insecure_skip_tls_verify: Annotated[Any, _UNCHECKED] = None
    proxy_url: Annotated[Any, _PROXY] = None
    server: Text = ""
    tls_server_name: Text = ""
    certificate_authority: Text = ""
    certificate_authority_data: _Data = b""
    disable_compression: Any = None
    extensions: Any = None


class _User(KubeconfigSection, alias_generator=_key):
    """The credential for the cluster."""

    auth_provider: Annotated[Any, _PROVIDER] = None
    username: Annotated[Any, _BASIC] = None
    password: Annotated[Any, _BASIC] = None
    as_: Annotated[Any, _IMPERSONATION] = None
    as_uid: Annotated[Any, _IMPERSONATION] = None
    as_groups: Annotated[Any, _IMPERSONATION] = None
    as_user_extra: Annotated[Any, _IMPERSONATION] = None
    client_certificate: Text = ""
    client_certificate_data: _Data = b""
    client_key: Text = ""
    client_key_data: _Data = b""
    token: Token = ""
    token_file: Text = Field(default="", alias="tokenFile")
    exec: Annotated[ExecPlugin | None, BeforeValidator(_allowed)] = None
    extensions: Any = None

    @model_validator(mode="after")
    def _shows_something(self) -> "_User":
        """Refuse a user without a credential, or with half a key pair."""
        certificate = self.client_certificate or self.client_certificate_data
        key = self.client_key or self.client_key_data
        if bool(certificate) != bool(key):
            raise wrong("client-certificate and client-key belong together", "give both")
        if not (certificate or self.token or self.token_file or self.exec):
            raise wrong("has no credential", "give a token, tokenFile or client certificate")
        return self


_S = TypeVar("_S", bound=KubeconfigSection)


class _Config(NamedTuple):
    """The whole file and its source."""

    origin: str
    values: dict[str, Any]


def decode(data: bytes, origin: str) -> str:
    """Return a kubeconfig's bytes as text. Raises AccessError if it is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise AccessError(f"{origin}: larger than 1 MiB", "check that it is a kubeconfig")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AccessError(f"{origin}: byte {error.start} is not UTF-8", "save it as UTF-8") from None


def parse(text: str, context: str | None, origin: str, *, no_plugins: str = "") -> KubeconfigEntry:
    """Return the entry of `context` (None: the file's current-context) in the kubeconfig `text`.

    `origin` names the source in errors. If `no_plugins`, a reason, is given, a user with any exec plugin is refused.
    Raises AccessError.
    """
    config = _load(text, origin)
    name = config.values.get("current-context") if context is None else context
    if not name or not isinstance(name, str):
        raise AccessError(f"{origin}: no current-context", "set it in the file, or name a context in the topology")
    asked = "current-context" if context is None else f"context '{shown(name)}'"
    chosen, where = _named(config, "context", _Context, name, f"{origin}: {asked}")
    cluster, there = _named(config, "cluster", _Cluster, chosen.cluster, f"{where}.cluster")
    user, _ = _named(config, "user", _User, chosen.user, f"{where}.user", no_plugins=no_plugins)
    address = read_server(cluster.server, there)
    check_server_name(cluster.tls_server_name, there)
    return KubeconfigEntry(
        server=cluster.server.rstrip("/"),
        address=address,
        server_name=cluster.tls_server_name,
        authority=PEMSource(cluster.certificate_authority_data, cluster.certificate_authority),
        certificate=PEMSource(user.client_certificate_data, user.client_certificate),
        key=PEMSource(user.client_key_data, user.client_key),
        token="" if user.token_file else user.token,
        token_file=user.token_file,
        plugin=user.exec,
        namespace=chosen.namespace if isinstance(chosen.namespace, str) else "",
    )


def _load(text: str, origin: str) -> _Config:
    """Parse the text, within the limits for all configuration, into a mapping."""
    document = compose(text, what="kubeconfig")
    for flaw in document.flaws:
        raise AccessError(f"{origin}:{flaw.position.line}:{flaw.position.column}: {flaw.text}")
    loaded = plain(document.root) if document.root else None
    if not isinstance(loaded, dict):
        raise AccessError(f"{origin}: not a kubeconfig", "expected the keys clusters, users and contexts")
    if loaded.get("kind") not in (None, "Config") or loaded.get("apiVersion") not in (None, "v1"):
        raise AccessError(f"{origin}: not a kubeconfig", "expected kind Config and apiVersion v1")
    return _Config(origin, loaded)


def _named(
    config: _Config, sort: str, section: type[_S], name: str, asker: str, *, no_plugins: str = ""
) -> tuple[_S, str]:
    """Return the entry called `name` in the list of contexts, clusters or users, and the position of its body.

    `asker` is the place of the name, for errors.
    """
    given = config.values.get(f"{sort}s")
    entries = given if isinstance(given, tuple) else ()
    found = [place for place, one in enumerate(entries) if isinstance(one, dict) and one.get("name") == name]
    if not found:
        raise AccessError(
            f"{asker}: no {sort} has this name ({len(entries)} are defined)", "define it, or use another name"
        )
    where = [f"{sort}s[{place}]" for place in found]
    if len(found) > 1:
        raise AccessError(f"{config.origin}: {' and '.join(where[:2])} have the same name", "remove or rename one")
    place = f"{config.origin}: {where[0]}.{sort}"
    return read(section, entries[found[0]].get(sort), place, no_plugins), place
