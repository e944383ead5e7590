"""The types of a topology's fields: what is accepted, and how the JSON schema says it.

Strict throughout: "500" is no number, 1 is no boolean, and a list is never made of one value, because a coercion that
helps one user hides the mistake of another.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from tensile.topology import syntax

Controller = Literal["PV", "Service", "RBAC", "ServiceAccount"]
"""What is mirrored beside pods, their ConfigMaps and their Secrets."""

OnConflict = Literal["fail", "adopt"]
Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]

_MOST = 1_000_000


def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Give a set one order, so that the order it was written in is no difference."""
    return tuple(sorted(names))


def _without_null(schema: dict[str, Any]) -> None:
    """Leave null out of a field's schema: there it only stands for a key that is not written."""
    schema.update(schema.pop("anyOf")[0])
    schema.pop("default")


def _given(value: Any) -> Any:
    """Refuse null where it would look like a choice: an empty `kubeconfig:` is a slip, not a wish."""
    if value is None:
        raise ValueError("is null, must have a value")
    return value


ABSENT: Any = Field(default=None, json_schema_extra=_without_null)
"""The default of a field that has none: None for the program, nothing in the schema."""

GIVEN = BeforeValidator(_given)
"""For such a field: it may be left out, and null is no value of it."""

LabelName = Annotated[
    str,
    AfterValidator(syntax.label_name),
    WithJsonSchema({"type": "string", "pattern": f"^{syntax.LABEL}$"}),
]
AliasName = Annotated[
    str,
    AfterValidator(syntax.alias_name),
    WithJsonSchema({"type": "string", "pattern": f"^{syntax.ALIAS}$"}),
]
ObjectName = Annotated[
    str,
    AfterValidator(syntax.object_name),
    WithJsonSchema({"type": "string", "pattern": f"^{syntax.SUBDOMAIN}$", "maxLength": 253}),
]
NodeName = Annotated[
    str,
    AfterValidator(syntax.node_name),
    WithJsonSchema({"type": "string", "pattern": f"^{syntax.SUBDOMAIN}$", "maxLength": 63}),
]
DataKey = Annotated[
    str,
    AfterValidator(syntax.data_key),
    WithJsonSchema({"type": "string", "pattern": f"^{syntax.DATA_KEY}$", "maxLength": 253}),
]
_KEY_SCHEMA = {"type": "string", "pattern": f"^({syntax.SUBDOMAIN}/)?{syntax.QUALIFIED}$"}
LabelKey = Annotated[str, AfterValidator(syntax.label_key), WithJsonSchema(_KEY_SCHEMA)]
OwnLabelKey = Annotated[str, AfterValidator(syntax.own_label_key), WithJsonSchema(_KEY_SCHEMA)]
LabelValue = Annotated[
    str,
    AfterValidator(syntax.label_value),
    WithJsonSchema({"type": "string", "pattern": f"^({syntax.QUALIFIED})?$"}),
]
ResourceName = Annotated[str, AfterValidator(syntax.resource_name), WithJsonSchema(_KEY_SCHEMA)]
Quantity = Annotated[
    str,
    AfterValidator(syntax.quantity),
    WithJsonSchema({"type": "string", "examples": ["2", "500m", "1.5Gi"]}),
]
FilePath = Annotated[str, AfterValidator(syntax.path), WithJsonSchema({"type": "string", "minLength": 1})]
Word = Annotated[str, AfterValidator(syntax.word), WithJsonSchema({"type": "string", "minLength": 1})]
Address = Annotated[
    str,
    AfterValidator(syntax.address),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
]
ReachableAddress = Annotated[
    str,
    AfterValidator(syntax.reachable_address),
    WithJsonSchema({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]}),
]
Url = Annotated[str, AfterValidator(syntax.url), WithJsonSchema({"type": "string", "pattern": "^https://[^/?#]+"})]
ServerUrl = Annotated[
    str,
    AfterValidator(syntax.server_url),
    WithJsonSchema({"type": "string", "pattern": "^https://[^/?#]+:[0-9]+/?$"}),
]
Duration = Annotated[
    timedelta,
    BeforeValidator(syntax.duration),
    PlainSerializer(syntax.write_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{syntax.DURATION}$"}),
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
