"""Write pod_fields.json: every field that a pod can have, by type, from an apiserver's own OpenAPI description.

The kinds of required fields end in "!".

`kubectl get --raw /openapi/v3/api/v1 | python tests/kit/regenerate_fields.py > tensile/reconcile/pods/pod_fields.json`.

Run it with an apiserver of the newest release that is supported; the tests then show which field has no verdict yet.
"""

import json
import sys
from typing import Any

ROOTS = ("ObjectMeta", "PodSpec", "PodStatus")
PREFIX = "#/components/schemas/"


def short(reference: str) -> str:
    """Return the last part of a schema's name: io.k8s.api.core.v1.PodSpec is PodSpec."""
    return reference.removeprefix(PREFIX).rsplit(".", 1)[-1]


def kind_of(schema: dict[str, Any]) -> str:
    """Return a field's type in a word: "[]Container", "map[string]Quantity", "integer"."""
    if "allOf" in schema:
        return kind_of(schema["allOf"][0])
    if "$ref" in schema:
        return short(schema["$ref"])
    if schema.get("type") == "array":
        return "[]" + kind_of(schema["items"])
    if isinstance(schema.get("additionalProperties"), dict):
        return "map[string]" + kind_of(schema["additionalProperties"])
    return schema.get("type", "any")


def fields_by_type(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the fields of every type that a pod's metadata, spec and status reach."""
    schemas = {short(name): schema for name, schema in document["components"]["schemas"].items()}
    reached: dict[str, dict[str, str]] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        properties = schemas.get(name, {}).get("properties")
        if properties and name not in reached:
            kinds = {field: kind_of(schema) for field, schema in sorted(properties.items())}
            waiting += [kind.removeprefix("[]").removeprefix("map[string]") for kind in kinds.values()]
            required = schemas[name].get("required", ())
            reached[name] = {field: kind + "!" * (field in required) for field, kind in kinds.items()}
    return dict(sorted(reached.items()))


if __name__ == "__main__":
    json.dump(fields_by_type(json.load(sys.stdin)), sys.stdout, indent=1)
    sys.stdout.write("\n")
