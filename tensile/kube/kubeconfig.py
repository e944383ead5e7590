"""Parse a kubeconfig: the cluster and user that a context names, or an error that says why not.

A kubeconfig can start programs, disable certificate checks and route through a proxy. What this engine does not support
is refused instead of ignored: acting with other permissions or towards another server than the file says is worse than
not acting. Nothing is opened here: files are only named.

Whoever names a kubeconfig may name any Secret or file that this program can read. So the models are strict, and errors
contain positions and the keys that Kubernetes defines, and of the content only what the user named too. The output of
exec plugins is read by models of the same kind.
"""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tensile.errors import AccessError
from tensile.kube.dial import ServerAddress, check_server_name, read_server
from tensile.text import key_shown, shown
from tensile.topology.messages import fields_at
from tensile.topology.models import Section as Strict
from tensile.yaml_document import MAX_BYTES, compose, plain, show_path

LONGEST_TOKEN = 1 << 15
_FOR_PLUGINS = "client.authentication.k8s.io/exec"
"""The extension of a cluster that is passed to its exec plugin, as by kubectl."""
_TOKEN = re.compile(rf"[\x21-\x7e]{{0,{LONGEST_TOKEN}}}")
_MESSAGES = {
    "extra_forbidden": ("is not known", "remove it, or correct its spelling"),
    "missing": ("is missing", "add it"),
    "string_type": ("must be text", "put it in quotes"),
    "string_too_short": ("is empty", "write a name"),
    "bool_type": ("must be true or false", "write it without quotes"),
    "tuple_type": ("must be a list", "write one line with - for each"),
    "model_type": ("must be a mapping", "write its keys below it"),
    "literal_error": ("must be {expected}", "correct it"),
    "json_invalid": ("is not JSON", "correct it"),
    "wrong": ("{what}", "{advice}"),
}
_OTHER = ("is not valid", "correct it")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class KubeconfigSection(Strict):
    """A part of a kubeconfig, or of a plugin's output. It may contain a secret, so its repr() is empty."""

    def __repr_args__(self) -> list[tuple[str, Any]]:
        """Return nothing."""
        return []


_S = TypeVar("_S", bound=KubeconfigSection)


def wrong(what: str, advice: str) -> PydanticCustomError:
    """Return the error of a custom check."""
    return PydanticCustomError("wrong", "{what}", {"what": what, "advice": advice})


def requiring(holds: Callable[[Any], object], what: str, advice: str) -> Callable[[Any], Any]:
    """Return a validator that passes values for which `holds`, and raises the error for others."""

    def checked(value: Any) -> Any:
        if not holds(value):
            raise wrong(what, advice)
        return value

    return checked


def is_token(token: str) -> bool:
    """Report whether a text is safe in a request's header: a line break could begin another header."""
    return _TOKEN.fullmatch(token) is not None


_IS_TOKEN = requiring(
    is_token, f"is not one line of at most {LONGEST_TOKEN} visible characters", "write only the token"
)
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""A text. Null equals absent."""
Name = Annotated[str, StringConstraints(min_length=1)]
Token = Annotated[Text, AfterValidator(str.strip), AfterValidator(_IS_TOKEN)]


def read_section(section: type[_S], values: Any, where: str, context: object = None) -> _S:
    """Return the section with these values. `where` names its place in the AccessError."""
    try:
        return section.model_validate(values, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        what, advice = validation_message(section, error)
        raise AccessError(f"{where}: {what}", advice) from None


def validation_message(section: type[KubeconfigSection], error: ValidationError) -> tuple[str, str]:
    """Return what is wrong with a section, and what to do. Of several errors it is the first.

    A missing key is explained by the description of its field.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    path, place = first["loc"], show_path(first["loc"])
    known = fields_at(section, path[:-1])
    if first["type"] == "extra_forbidden":
        place = f"{show_path(path[:-1])}.{key_shown(path[-1], known)}"
    what, advice = (template.format_map(first.get("ctx", {})) for template in _MESSAGES.get(first["type"], _OTHER))
    if first["type"] == "missing":
        advice = known[str(path[-1])].description or advice
    return f"{place} {what}".removeprefix("(file)").lstrip(" ."), advice


def _is_absolute(command: str) -> bool:
    """Report whether a path is absolute, without dot segments, and printable."""
    return command.startswith("/") and not {".", ".."} & {*command.split("/")} and command.isprintable()


def _key(name: str) -> str:
    """Return the key of a field."""
    return name.rstrip("_").replace("_", "-")


def _refused(advice: str) -> BeforeValidator:
    """Return a validator that refuses any set value."""
    return BeforeValidator(requiring(lambda value: value in (None, False, ""), "is refused", advice))


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
_NOT_INTERACTIVE = requiring(
    lambda mode: mode != "Always", "Always is refused: the plugin cannot prompt a user", "remove it"
)
_LISTED = BeforeValidator(lambda value: () if value is None else value)
_Path = Annotated[Text, AfterValidator(requiring(_is_absolute, "is not an absolute path", "write one"))]
_Passed = Annotated[str, AfterValidator(requiring(lambda text: "\0" not in text, "contains a zero byte", "remove it"))]
_Called = Annotated[
    str, AfterValidator(requiring(_VARIABLE.fullmatch, "is not a variable name", "use letters, digits, _"))
]

_Version = Literal["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"]


class _Variable(KubeconfigSection):
    """An environment variable of the program."""

    name: _Called
    value: _Passed


class ExecPlugin(KubeconfigSection):
    """The exec section of a user: the program, its arguments and variables, and the version of its output.

    `provide_cluster_info`: the plugin receives the cluster for which the credential is.
    """

    command: _Path = Field(default="", validate_default=True)
    args: Annotated[tuple[_Passed, ...], _LISTED] = ()
    env: Annotated[tuple[_Variable, ...], _LISTED] = ()
    api_version: _Version = Field(description=f"write {' or '.join(get_args(_Version))}")
    install_hint: Any = None
    provide_cluster_info: bool | None = None
    interactive_mode: Annotated[Literal["Never", "IfAvailable"] | None, BeforeValidator(_NOT_INTERACTIVE)] = None


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
    def _has_credential(self) -> "_User":
        """Refuse a user without a credential, or with half a key pair."""
        certificate = self.client_certificate or self.client_certificate_data
        key = self.client_key or self.client_key_data
        if bool(certificate) != bool(key):
            raise wrong("client-certificate and client-key belong together", "give both")
        if not (certificate or self.token or self.token_file or self.exec):
            raise wrong("has no credential", "give a token, tokenFile or client certificate")
        return self


class _Config(NamedTuple):
    """The whole file and its source."""

    origin: str
    values: dict[str, Any]


class PEMSource(NamedTuple):
    """PEM data: the bytes themselves, or else the file that holds them. Both are empty if none was given."""

    data: bytes = b""
    file: str = ""


_NOTHING = PEMSource()


def _plugin_config(extensions: Any) -> Any:
    """Return what the extensions of a cluster have for exec plugins, None for nothing."""
    named = (one for one in extensions if isinstance(one, dict)) if isinstance(extensions, tuple) else ()
    return next((one.get("extension") for one in named if one.get("name") == _FOR_PLUGINS), None)


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
    plugin_config: Any = field(default=None, repr=False)
    namespace: str = ""

    def files(self) -> list[str]:
        """Return the files that the entry names, including those overridden by inline data."""
        named = (self.authority.file, self.certificate.file, self.key.file, self.token_file)
        return [file for file in named if file]

    def needed(self) -> list[str]:
        """Return the files that the entry requires."""
        found = [one.file for one in (self.authority, self.certificate, self.key) if not one.data]
        return [file for file in (*found, self.token_file) if file]


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
    source = "current-context" if context is None else f"context '{shown(name)}'"
    chosen, where = _named(config, "context", _Context, name, f"{origin}: {source}")
    cluster, cluster_place = _named(config, "cluster", _Cluster, chosen.cluster, f"{where}.cluster")
    user, _ = _named(config, "user", _User, chosen.user, f"{where}.user", no_plugins=no_plugins)
    address = read_server(cluster.server, cluster_place)
    check_server_name(cluster.tls_server_name, cluster_place)
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
        plugin_config=_plugin_config(cluster.extensions),
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
    config: _Config, kind: str, section: type[_S], name: str, source: str, *, no_plugins: str = ""
) -> tuple[_S, str]:
    """Return the entry called `name` in the list of contexts, clusters or users, and the position of its body.

    `source` is the place of the name, for errors.
    """
    given = config.values.get(f"{kind}s")
    entries = given if isinstance(given, tuple) else ()
    found = [index for index, one in enumerate(entries) if isinstance(one, dict) and one.get("name") == name]
    if not found:
        raise AccessError(
            f"{source}: no {kind} has this name ({len(entries)} defined)",
            "`kubectl config view --kubeconfig FILE` shows the names: define it, or use one of them",
        )
    where = [f"{kind}s[{index}]" for index in found]
    if len(found) > 1:
        raise AccessError(f"{config.origin}: {' and '.join(where[:2])} have the same name", "remove or rename one")
    index = f"{config.origin}: {where[0]}.{kind}"
    return read_section(section, entries[found[0]].get(kind), index, no_plugins), index
