"""Parse a topology file: return a valid topology, or raise every error in it.

Three stages check a file: the YAML parser, the models for each field, and the checks across fields. All run as far as
possible, so that a user can correct the file in one round.

For an invalid file, `salvaged` reads where the engine can be queried: `tensile status` is most useful during an edit.
The engine still uses the last valid topology. If the edit changed the telemetry address, no engine responds at the new
one.
"""

import codecs
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tensile.text import shown
from tensile.topology.messages import MOST_SHOWN, TopologyErrors, TopologyProblem, explain
from tensile.topology.models import Telemetry, Topology, TopologyFile, Upper, resolve
from tensile.topology.validation import check
from tensile.yaml_document import MAX_BYTES, Path, Position, YAMLNode, compose, find, locate, plain

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_KEY_ERRORS = frozenset(("extra_forbidden", "missing"))

_TOP = re.compile(r"^(?=[^\s#-])", re.MULTILINE)
"""The beginning of a top-level key."""


def _refuse(name: str, position: Position, text: str) -> TopologyErrors:
    """Return the error of a file that is no text."""
    return TopologyErrors(name, (TopologyProblem(position, (), text),))


def decode(data: bytes, *, name: str = "topology.yaml") -> str:
    """Return a file's bytes as text. Raises TopologyErrors if it is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        message = f"the file is larger than {MAX_BYTES} bytes; check that it is a topology"
        raise _refuse(name, Position(1, 1), message)
    if data.startswith(_WIDE):
        raise _refuse(name, Position(1, 1), "the file is UTF-16 text; save it as UTF-8")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before[before.rfind(b"\n") + 1 :].decode()
        position = Position(before.count(b"\n") + 1, len(line) + 1)
        raise _refuse(name, position, "this byte is not valid UTF-8; save the file as UTF-8") from None


def _where(root: YAMLNode, error: ErrorDetails) -> tuple[Path, Position]:
    """Return the path and position of a model's error. Pydantic reports errors of mapping keys one level too deep."""
    path = error["loc"]
    is_key = path[-1:] == ("[key]",) and find(root, path) is None
    path = path[:-1] if is_key else path
    return path, locate(root, path, key=is_key or error["type"] in _KEY_ERRORS)


def _model_problems(root: YAMLNode, error: ValidationError) -> Iterator[TopologyProblem]:
    """Yield the model's errors in the order of the file. Only errors that are shown get a message."""
    errors = error.errors(include_url=False)
    located = sorted(((*_where(root, one), one) for one in errors), key=lambda item: item[1])
    for index, (path, position, one) in enumerate(located):
        yield TopologyProblem(position, path, explain(one, path) if index < MOST_SHOWN else "wrong")


def _validated(root: YAMLNode, data: Any) -> tuple[TopologyFile | None, list[TopologyProblem]]:
    """Validate the data against the models."""
    try:
        return TopologyFile.model_validate(data, by_alias=True, by_name=False), []
    except ValidationError as error:
        return None, list(_model_problems(root, error))


def _root_problem(root: YAMLNode) -> TopologyProblem:
    """Return the error for a document that is no mapping."""
    starts = "a topology starts with apiVersion: tensile-kube.io/v1alpha1"
    if root.value is None:
        return TopologyProblem(Position(1, 1), (), f"the file is empty; {starts}")
    return TopologyProblem(root.start, (), f"the file is not a YAML mapping; {starts}")


def _other_kind(root: YAMLNode, data: dict[str, Any]) -> TopologyProblem | None:
    """Return the one error for a file that is plainly another object: the keys that it lacks or has are no help."""
    kind, version = data.get("kind"), data.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return None
    if "tensile" in version.lower() or kind.lower() == "topology":
        return None
    if kind == "Config" and version == "v1":
        message = "this is a kubeconfig: write its path under lowers[].kubeconfig or upper.kubeconfig of a topology"
    else:
        message = f"this is a {shown(kind)}, and no topology: apply it with kubectl, and name a topology with -f"
    return TopologyProblem(locate(root, ("kind",)), ("kind",), message)


def parse(text: str, *, name: str = "topology.yaml", configmap_mode: bool = False) -> Topology:
    """Parse a topology. `name` is the file's, for messages.

    `configmap_mode`: the text comes from a ConfigMap, where paths are invalid. Raises TopologyErrors with every error
    in the order of the file, and nothing else, whatever the text is.
    """
    root, flaws = compose(text)
    problems = [TopologyProblem(*flaw) for flaw in flaws]
    if root is None:
        raise TopologyErrors(name, tuple(problems))
    if not isinstance(root.value, dict):
        raise TopologyErrors(name, (*problems, _root_problem(root)))
    data = plain(root)
    other = _other_kind(root, data)
    if other is not None:
        raise TopologyErrors(name, (*problems, other))
    file, invalid = _validated(root, data)
    faults = check(data, configmap_mode=configmap_mode)
    problems += invalid
    problems += [TopologyProblem(locate(root, path), path, message) for path, message in faults]
    if file is None or problems:
        raise TopologyErrors(name, tuple(sorted(dict.fromkeys(problems), key=lambda one: one.position)))
    return resolve(file)


def salvaged(text: str) -> tuple[str, Telemetry]:
    """Return name and telemetry of an invalid file as far as they can be read, else "" and the defaults."""
    found = _salvaged(text, ("name", "telemetry"))
    return _salvaged_name(found), _telemetry(found.get("telemetry"))


def salvaged_upper(text: str) -> tuple[str, Upper]:
    """Return name and upper cluster of an invalid file as far as they can be read, else "" and the default."""
    found = _salvaged(text, ("name", "upper"))
    try:
        return _salvaged_name(found), Upper.model_validate(found.get("upper", {}), by_alias=True, by_name=False)
    except ValidationError:
        return "", Upper()


def _salvaged(text: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return some top-level values; what the whole lacks is parsed alone, so that other errors do not matter."""
    whole = compose(text)[0]
    data = plain(whole) if whole is not None else None
    found: dict[str, Any] = {key: data[key] for key in keys if key in data} if isinstance(data, dict) else {}
    for block in _TOP.split(text):
        key = block.partition(":")[0]
        root = compose(block)[0] if key in keys and key not in found else None
        data = plain(root) if root is not None else None
        if isinstance(data, dict):
            found[key] = data.get(key)
    return found


def _salvaged_name(found: dict[str, Any]) -> str:
    name = found.get("name")
    return name if isinstance(name, str) else ""


def _telemetry(data: Any) -> Telemetry:
    try:
        return Telemetry.model_validate(data, by_alias=True, by_name=False)
    except ValidationError:
        return Telemetry()
