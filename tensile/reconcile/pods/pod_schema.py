"""Check a pod from a file against the API's schema, without an apiserver.

Hand-written pods contain mistakes, and each is reported with its position. Unknown fields pass, as they do in an
apiserver by default.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path as File
from typing import Annotated, Any

import msgspec
import orjson

from tensile.errors import TensileError
from tensile.resources import SYNTAX, is_quantity
from tensile.topology.fields import show
from tensile.topology.messages import TopologyProblem
from tensile.yaml_document import MAX_DOCUMENTS, Path, YAMLNode, compose, documents, locate

_LIST, _MAP, _REQUIRED = "[]", "map[string]", "!"
_INTEGERS = range(-(2**63), 2**63)
_POD = {"metadata": "ObjectMeta", "spec": "PodSpec!", "status": "PodStatus"}
_KEYS = "write its fields as KEY: VALUE"
_LEAVES = {
    "string": ("string", "put it in quotes"),
    "Time": ("string", "put it in quotes"),
    "integer": ("64-bit whole number", "write one such as 3, without quotes"),
    "IntOrString": ("port", "write a number, or a name in quotes"),
    "Quantity": ("quantity", "write one such as 500m, 2 or 1Gi"),
}
"""What a value of a kind is, and what to do if it is not."""

_TYPES: Mapping[str, Any] = {
    "string": str,
    "Time": str,
    "boolean": bool,
    "integer": int,
    "IntOrString": int | str,
    "Quantity": int | float | Annotated[str, msgspec.Meta(pattern=rf"\A(?:{SYNTAX})\Z")],
}

Found = tuple[Path, str]


@cache
def forms() -> Mapping[str, Mapping[str, str]]:
    """Return the fields of each type and their kinds, such as "[]Container". A required field ends in "!"."""
    found: dict[str, dict[str, str]] = orjson.loads(File(__file__).with_name("pod_fields.json").read_bytes())
    return {**found, "Pod": _POD}


def composed(data: bytes, name: str) -> list[YAMLNode]:
    """Parse the documents of a file to trees, at least one.

    Raises TensileError, with positions in the file `name`, for invalid YAML and for too many documents.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise TensileError(f"{name}: a byte is not valid UTF-8; save the file as UTF-8") from None
    parts = documents(text)
    if len(parts) > MAX_DOCUMENTS:
        raise TensileError(f"{name}: more than {MAX_DOCUMENTS} documents; put fewer into one file")
    return [_composed(part, name) for part in parts]


def _composed(text: str, name: str) -> YAMLNode:
    root, found = compose(text, what="pod")
    if root is None or found:
        raise TensileError("\n".join(TopologyProblem(*flaw).line(name) for flaw in found))
    demand(root, _numbers(root, ()), name)
    return root


def stored(node: YAMLNode) -> Any:
    """Return data as an apiserver stores it, without null fields."""
    if isinstance(node.value, dict):
        return {key: stored(one) for key, one in node.value.items() if one.value is not None}
    return [stored(one) for one in node.value] if isinstance(node.value, list) else node.value


def demand(root: YAMLNode, found: Iterable[Found], name: str) -> None:
    """Raise TensileError for the errors found in a tree, each with its position in the file `name`."""
    problems = dict.fromkeys(TopologyProblem(locate(root, path), path, message) for path, message in found)
    if problems:
        ordered = sorted(problems, key=lambda one: one.position)
        raise TensileError("\n".join(problem.line(name) for problem in ordered))


def is_pod(found: Any) -> bool:
    """Report whether decoded data has the form of a stored pod, and can be encoded again."""
    try:
        orjson.dumps(found)
        msgspec.convert(found, _type_of("Pod"))
    except (orjson.JSONEncodeError, msgspec.ValidationError):
        return False
    return True


@cache
def _type_of(kind: str) -> Any:
    """Return the type of a kind for a decoder, which checks fast what `flaws` explains."""
    if kind.startswith(_LIST):
        return list[_type_of(kind.removeprefix(_LIST))]  # type: ignore[misc]
    if kind.startswith(_MAP):
        return dict[str, _type_of(kind.removeprefix(_MAP))]  # type: ignore[misc]
    if kind in forms():
        fields = sorted(forms()[kind].items(), key=lambda field: not field[1].endswith(_REQUIRED))
        return msgspec.defstruct(kind, [_field(name, of) for name, of in fields], gc=False)
    return _TYPES.get(kind, Any)


def _field(name: str, kind: str) -> Any:
    """Return a field of a type. An optional field may be omitted, but not be null."""
    if kind.endswith(_REQUIRED):
        return name, _type_of(kind.removesuffix(_REQUIRED))
    return name, _type_of(kind) | msgspec.UnsetType, msgspec.UNSET


def flaws(node: YAMLNode, kind: str, path: Path = ()) -> Iterator[Found]:
    """Yield the errors in a value of a kind at a path. Null is no value, as in Kubernetes."""
    value = node.value
    if value is None:
        return
    if kind.startswith(_LIST):
        yield from _in_list(node, kind.removeprefix(_LIST), path)
    elif kind.startswith(_MAP):
        yield from _in_map(node, kind.removeprefix(_MAP), path)
    elif kind in forms():
        yield from _in_mapping(node, forms()[kind], path)
    elif not _is_leaf(value, kind):
        yield path, _mismatch(value, kind)


def _in_list(node: YAMLNode, kind: str, path: Path) -> Iterator[Found]:
    if not isinstance(node.value, list):
        yield path, f"{show(node.value)} is not a list; write each item after a dash"
        return
    for index, one in enumerate(node.value):
        yield from _present(one, kind, (*path, index))


def _in_map(node: YAMLNode, kind: str, path: Path) -> Iterator[Found]:
    if not isinstance(node.value, dict):
        yield path, f"{show(node.value)} is not a mapping; {_KEYS}"
        return
    for key, one in node.value.items():
        yield from _present(one, kind, (*path, key))


def _in_mapping(node: YAMLNode, fields: Mapping[str, str], path: Path) -> Iterator[Found]:
    if not isinstance(node.value, dict):
        yield path, f"{show(node.value)} is not a mapping; {_KEYS}"
        return
    for field, kind in fields.items():
        found = node.value.get(field)
        if found is not None and found.value is not None:
            yield from flaws(found, kind.removesuffix(_REQUIRED), (*path, field))
        elif kind.endswith(_REQUIRED):
            yield path, f"{field} is missing; add it"


def _present(node: YAMLNode, kind: str, path: Path) -> Iterator[Found]:
    """Check a value that must not be null."""
    if node.value is None:
        yield path, "the value is empty; write a value, or remove it"
    else:
        yield from flaws(node, kind, path)


def _is_leaf(value: Any, kind: str) -> bool:
    """Report whether a value matches a scalar kind. Every value matches an unknown kind."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "string" | "Time":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and is_number
        case "IntOrString":
            return isinstance(value, str) or (isinstance(value, int) and is_number)
        case "Quantity":
            return is_number or (isinstance(value, str) and is_quantity(value))
    return True


def _mismatch(value: Any, kind: str) -> str:
    """Return what is wrong with a value, and what would be right."""
    if kind == "boolean":
        return f"{show(value)} is neither true nor false; write one of them, without quotes"
    noun, advice = _LEAVES[kind]
    return f"{show(value)} is not a {noun}; {advice}"


def _numbers(node: YAMLNode, path: Path) -> Iterator[Found]:
    """Yield the numbers that JSON, or an apiserver, cannot represent."""
    if isinstance(node.value, dict):
        for key, one in node.value.items():
            yield from _numbers(one, (*path, key))
    elif isinstance(node.value, list):
        for index, one in enumerate(node.value):
            yield from _numbers(one, (*path, index))
    elif isinstance(node.value, int) and node.value not in _INTEGERS:
        yield path, f"{node.value} is not a 64-bit number; write a smaller one, or a string in quotes"
    elif isinstance(node.value, float) and not math.isfinite(node.value):
        yield path, "the number is not finite; write a finite one, or a string in quotes"
