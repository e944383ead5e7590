"""The field types of a topology: their validation, and their JSON schema.

Types are strict: "500" is no number, 1 is no boolean, and a single value does not become a list. A coercion that helps
one user hides the mistake of another.

Kubernetes rejects an invalid name only when an object is written, during a run and far from the file. The same rules
are applied here when the file is read. Every check returns the value, or raises ValueError with a message that says
what would be right.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from tensile import resources
from tensile.names import PREFIX

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
ALIAS = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
QUALIFIED = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
DURATION = r"([0-9]+(\.[0-9]+)?(h|ms|m|s))+"
DATA_KEY = r"[-._a-zA-Z0-9]+"

_SUBDOMAIN_LONGEST = 253
_LABEL_LONGEST = 63
_PATH_LONGEST = 4096
_SHOWN = 40
_DAYS_LONGEST = 36500
_SECONDS = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEDULE_LONGEST, _SCHEDULE_FIELDS = 200, 5
_DAY_FIELDS = (2, 4)
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,2}")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_NODE_RESOURCES = frozenset(("cpu", "memory", "ephemeral-storage", "pods"))
_NODE_RESOURCE_PREFIXES = ("hugepages-", "attachable-volumes-")
_PORTS = range(1, 65536)

_MOST = 1_000_000


def show(value: Any) -> str:
    """Format a value for a message: its type, and the value itself if it is short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {str(value)[:_SHOWN]}"
    if isinstance(value, str):
        return json.dumps(value) if len(value) <= _SHOWN else "a long text"
    return "a mapping" if isinstance(value, dict) else "a list"


def _matching(pattern: str, rule: str, longest: int = _LABEL_LONGEST) -> Callable[[str], str]:
    """Return a check for a pattern and a length."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if len(text) > longest:
            raise ValueError(f"is {len(text)} characters long; must have at most {longest}: {rule}")
        if compiled.fullmatch(text) is None:
            raise ValueError(f"is {show(text)}; must be {rule}")
        return text

    return check


label_name = _matching(LABEL, "lower-case letters, digits and '-', starting and ending with a letter or digit")
"""A DNS-1123 label, as Kubernetes requires for namespaces."""

alias_name = _matching(ALIAS, "lower-case letters, digits and '-', starting with a letter and not ending with '-'")
"""A DNS-1035 label, as Kubernetes requires for Services."""

object_name = _matching(
    SUBDOMAIN,
    "lower-case letters, digits, '-' and '.', each part starting and ending with a letter or digit",
    _SUBDOMAIN_LONGEST,
)
"""A DNS-1123 subdomain, as Kubernetes requires for most objects."""

node_name = _matching(
    SUBDOMAIN,
    "lower-case letters, digits, '-' and '.', each part starting and ending with a letter or digit",
)
"""A node's name: an object's name that is also a label value (kubernetes.io/hostname), hence 63 characters."""

label_value = _matching(
    f"({QUALIFIED})?",
    "empty, or letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
)
"""A label value."""

data_key = _matching(DATA_KEY, "letters, digits, '-', '_' and '.'", _SUBDOMAIN_LONGEST)
"""A key of a Secret's data."""

_key_name = _matching(QUALIFIED, "letters, digits, '-', '_' and '.', starting and ending with a letter or digit")


def label_key(text: str) -> str:
    """Check a label key: a name of at most 63 characters, optionally after a DNS name and a slash."""
    prefix, slash, name = text.rpartition("/")
    if slash and not _is(object_name, prefix):
        raise ValueError("the part before the slash must be a DNS name such as example.com")
    _key_name(name)
    return text


def _is(check: Callable[[str], str], text: str) -> bool:
    """Report whether a check passes."""
    try:
        check(text)
    except ValueError:
        return False
    return True


def own_label_key(text: str) -> str:
    """Check a label or annotation key for a node: a label key that the engine does not write itself."""
    if text.startswith(PREFIX):
        raise ValueError(f"keys that start with {PREFIX} are reserved for the engine; use another key")
    return label_key(text)


def resource_name(text: str) -> str:
    """Check a node's resource: one of Kubernetes' own, or a qualified name with a domain such as nvidia.com/gpu."""
    if text in _NODE_RESOURCES or text.startswith(_NODE_RESOURCE_PREFIXES):
        return label_key(text)
    if "/" not in text:
        known = ", ".join(sorted(_NODE_RESOURCES))
        raise ValueError(f"is not a node resource; must be {known}, hugepages-SIZE or DOMAIN/NAME")
    return label_key(text)


def is_whole(resource: str) -> bool:
    """Report whether Kubernetes counts a resource in whole numbers only."""
    return "/" in resource or resource == "pods" or resource.startswith(_NODE_RESOURCE_PREFIXES)


def quantity(text: str) -> str:
    """Check a quantity that is not negative."""
    try:
        negative = resources.parse(text) < 0
    except ValueError as error:
        raise ValueError(f"is {show(text)}: {error}") from None
    if negative:
        raise ValueError(f"is {show(text)}; must not be negative")
    return text


def path(text: str) -> str:
    """Check a file path. The file is not accessed, and the value is not repeated in the message."""
    if not text or len(text) > _PATH_LONGEST or _CONTROL.search(text):
        raise ValueError("must be a file path on one line, not the content of a file")
    return text


def word(text: str) -> str:
    """Check a name that other programs choose, such as a kubeconfig's context: not empty, no control characters."""
    if not text or len(text) > _SUBDOMAIN_LONGEST or _CONTROL.search(text):
        raise ValueError(f"must be 1 to {_SUBDOMAIN_LONGEST} characters on one line")
    return text


def address(text: str) -> str:
    """Check an IP address to listen on. A zone, as in fe80::1%eth0, is only valid on one machine."""
    try:
        ipaddress.ip_address(text.replace("%", " "))
    except ValueError:
        raise ValueError(f"is {show(text)}; must be an IP address such as 0.0.0.0, 127.0.0.1 or ::") from None
    return text


def reachable_address(text: str) -> str:
    """Check an IP address that clients call."""
    if ipaddress.ip_address(address(text)).is_unspecified:
        raise ValueError(f"is {show(text)}, which clients cannot call; must be an address of this machine")
    return text


def _host(host: str | None) -> bool:
    """Report whether a URL's host is a DNS name or an IP address."""
    return bool(host) and (_is(object_name, str(host).lower()) or _is(address, str(host)))


def _split(text: str) -> tuple[str, str | None, int | None, str]:
    """Split a URL: scheme, host, port, and the parts that Kubernetes requires to be empty (user, query, fragment)."""
    if _CONTROL.search(text) or " " in text:
        raise ValueError
    parts = urlsplit(text)
    user = parts.username or parts.password or ("@" if "@" in parts.netloc else "")
    return parts.scheme, parts.hostname, parts.port, f"{user}{parts.query}{parts.fragment}"


def url(text: str) -> str:
    """Check the URL of a webhook by Kubernetes' rules. The value is not repeated, as it may contain a password."""
    try:
        scheme, host, port, rest = _split(text)
    except ValueError:
        scheme, host, port, rest = "", None, None, ""
    if scheme != "https" or not _host(host) or port == 0 or rest:
        raise ValueError("must be https://HOST[:PORT][/PATH], without user, query and fragment")
    return text


def server_url(text: str) -> str:
    """Check the URL of an apiserver: only scheme, host and port. The value is not repeated."""
    try:
        scheme, host, port, rest = _split(text)
        url_path = urlsplit(text).path
    except ValueError:
        scheme, host, port, rest, url_path = "", None, None, "", ""
    if scheme != "https" or not _host(host) or port not in _PORTS or rest or url_path not in {"", "/"}:
        raise ValueError("must be https://HOST:PORT without user, path, query or fragment")
    return text


def duration(value: Any) -> timedelta:
    """Parse a positive duration such as 30s, 5m or 1h30m: hours, minutes, seconds and ms."""
    if not isinstance(value, str) or re.fullmatch(DURATION, value) is None or len(value) > _SHOWN:
        raise ValueError(f"is {show(value)}; must be a duration with its unit, such as 30s, 5m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(value))
    if seconds > _DAYS_LONGEST * 86400:
        raise ValueError(f"is {show(value)}; must be at most 100 years")
    if timedelta(seconds=seconds) <= timedelta(0):
        raise ValueError(f"is {show(value)}; must be longer than 0, such as 30s")
    return timedelta(seconds=seconds)


def schedule(text: str) -> str:
    """Check a cron schedule of five fields, of which some date is the start.

    A `?` for the day of the month or of the week means `*`, as in a CronJob, and is returned as that.
    """
    parts = text.split()
    found = " ".join(part.replace("?", "*") if place in _DAY_FIELDS else part for place, part in enumerate(parts))
    try:
        is_valid = len(text) <= _SCHEDULE_LONGEST and len(parts) == _SCHEDULE_FIELDS
        is_valid = is_valid and next(CronSim(found, _EPOCH), None) is not None
    except CronSimError:
        is_valid = False
    if not is_valid:
        expected = 'must be a cron schedule, minute hour day-of-month month day-of-week, such as "0 2 * * 1-5"'
        raise ValueError(f"is {show(text)}; {expected}")
    return found if "?" in text else text


def time_zone(text: str) -> str:
    """Check the name of a time zone of the IANA database."""
    try:
        is_known = _ZONE.fullmatch(text) is not None and bool(ZoneInfo(text))
    except (KeyError, ValueError, OSError):
        is_known = False
    if not is_known:
        raise ValueError(f"is {show(text)}; must be a time zone such as UTC or Europe/Berlin")
    return text


def write_duration(value: timedelta) -> str:
    """Format a duration as in a topology file."""
    seconds = value.total_seconds()
    for unit in ("h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


Controller = Literal["PV", "Service", "RBAC", "ServiceAccount"]
"""What is mirrored besides pods, their ConfigMaps and their Secrets."""

OnConflict = Literal["fail", "adopt"]
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Sort a set, so that the order in the file makes no difference."""
    return tuple(sorted(names))


def _without_null(schema: dict[str, Any]) -> None:
    """Remove null from a field's schema, where null only represents a missing key."""
    schema.update(schema.pop("anyOf")[0])
    schema.pop("default")


def _given(value: Any) -> Any:
    """Refuse null for a field where it looks like a choice: an empty `kubeconfig:` is a mistake."""
    if value is None:
        raise ValueError("is null; must have a value")
    return value


def at_most(count: int) -> BeforeValidator:
    """Return a check of a list's length. It is made before those of the members, which may take long."""

    def check(value: Any) -> Any:
        if isinstance(value, tuple) and len(value) > count:
            raise ValueError(f"has {len(value)} entries; must have at most {count}")
        return value

    return BeforeValidator(check)


ABSENT: Any = Field(default=None, json_schema_extra=_without_null)
"""The default of a field without a default: None in the program, nothing in the schema."""

GIVEN = BeforeValidator(_given)
"""For such a field: the key may be omitted, but null is invalid."""

LabelName = Annotated[
    str,
    AfterValidator(label_name),
    WithJsonSchema({"type": "string", "pattern": f"^{LABEL}$"}),
]
AliasName = Annotated[
    str,
    AfterValidator(alias_name),
    WithJsonSchema({"type": "string", "pattern": f"^{ALIAS}$"}),
]
ObjectName = Annotated[
    str,
    AfterValidator(object_name),
    WithJsonSchema({"type": "string", "pattern": f"^{SUBDOMAIN}$", "maxLength": 253}),
]
NodeName = Annotated[
    str,
    AfterValidator(node_name),
    WithJsonSchema({"type": "string", "pattern": f"^{SUBDOMAIN}$", "maxLength": 63}),
]
DataKey = Annotated[
    str,
    AfterValidator(data_key),
    WithJsonSchema({"type": "string", "pattern": f"^{DATA_KEY}$", "maxLength": 253}),
]
_KEY_SCHEMA = {"type": "string", "pattern": f"^({SUBDOMAIN}/)?{QUALIFIED}$"}
LabelKey = Annotated[str, AfterValidator(label_key), WithJsonSchema(_KEY_SCHEMA)]
OwnLabelKey = Annotated[str, AfterValidator(own_label_key), WithJsonSchema(_KEY_SCHEMA)]
LabelValue = Annotated[
    str,
    AfterValidator(label_value),
    WithJsonSchema({"type": "string", "pattern": f"^({QUALIFIED})?$"}),
]
ResourceName = Annotated[str, AfterValidator(resource_name), WithJsonSchema(_KEY_SCHEMA)]
Quantity = Annotated[
    str,
    AfterValidator(quantity),
    WithJsonSchema({"type": "string", "examples": ["2", "500m", "1.5Gi"]}),
]
FilePath = Annotated[str, AfterValidator(path), WithJsonSchema({"type": "string", "minLength": 1})]
Schedule = Annotated[
    str,
    AfterValidator(schedule),
    WithJsonSchema({"type": "string", "examples": ["0 2 * * *", "30 22 * * 1-5"]}),
]
TimeZone = Annotated[
    str,
    AfterValidator(time_zone),
    WithJsonSchema({"type": "string", "examples": ["UTC", "Europe/Berlin"]}),
]
Word = Annotated[str, AfterValidator(word), WithJsonSchema({"type": "string", "minLength": 1})]
Address = Annotated[
    str,
    AfterValidator(address),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
]
ReachableAddress = Annotated[
    str,
    AfterValidator(reachable_address),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
]
Url = Annotated[str, AfterValidator(url), WithJsonSchema({"type": "string", "pattern": "^https://[^/?#]+"})]
ServerUrl = Annotated[
    str,
    AfterValidator(server_url),
    WithJsonSchema({"type": "string", "pattern": "^https://[^/?#]+:[0-9]+/?$"}),
]
Duration = Annotated[
    timedelta,
    BeforeValidator(duration),
    PlainSerializer(write_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{DURATION}$"}),
]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
Percent = Annotated[int, Field(ge=0, le=100)]

_UNIQUE = Field(json_schema_extra={"uniqueItems": True})
Controllers = Annotated[tuple[Controller, ...], AfterValidator(_in_order), _UNIQUE]
LabelKeys = Annotated[tuple[LabelKey, ...], AfterValidator(_in_order), _UNIQUE]
NamespaceNames = Annotated[tuple[LabelName, ...], AfterValidator(_in_order), _UNIQUE]
NodeLabels = Mapping[OwnLabelKey, LabelValue]
NodeAnnotations = Mapping[OwnLabelKey, str]
Resources = Mapping[ResourceName, Quantity]
StorageClasses = Mapping[ObjectName, ObjectName]
