"""Converts the output of a command to lines that are equal in two clusters unless something that matters differs.

Values that must differ are replaced by their kind: times and ages, addresses, UIDs, random parts of names, the node's
own name. Text keeps its lines; a YAML or JSON document becomes one line for each value, so that a difference shows its
path. A table of events loses its order, which depends on the second of each event, and its transient events: a kubelet
that has not yet received a pod's volumes reports that for some pods, and retries.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from bench.conformance.kubectl.execution import Completed
from bench.conformance.kubectl.steps import EVENTS, LINES, TREE

_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
_AT_TIMES = (
    "tar: removing leading '/' from member names",
    r"E websocket\.go\] Unknown stream id 1, discarding message",
    r"E portforward\.go\] .*error copying from local connection to remote stream: EOF.*",
)
"""What kubectl reports, on any node, if one of its own threads was faster than another.

`kubectl cp` ends when it has the files, whether or not it has printed tar's messages. A WebSocket's first message,
which is empty, may arrive before kubectl can store it; the loss of another message would change the compared output.
"""
_REPLACED = (
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r"^([EWI])\d{4} \S+ +\d+ (\w+\.go):\d+\]", re.MULTILINE), r"\1 \2]"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"containerd://[0-9a-f]{64}"), "containerd://ID"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"), "MOMENT"),
    (re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}"), "MOMENT"),
    (re.compile(r"(?<=resourceVersion: )\d+"), "VERSION"),
    (re.compile(r"https://127\.0\.0\.1:\d+"), "SERVER"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d{5}\b(?! ->)"), "PORT"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+(?= -> \d)"), "PORT"),
    (re.compile(r"(?<=Handling connection for )\d+"), "PORT"),
    (re.compile(r"(?<=forwarding )\d+(?= -> )"), "PORT"),
    (re.compile(r"\b(?:10|172|192|198)(?:\.\d{1,3}){3}\b(?!/)"), "IP"),
    (re.compile(rf"\b(fleet)-{_RANDOM}{{6,10}}-{_RANDOM}{{5}}\b"), r"\1-HASH-RANDOM"),
    (re.compile(rf"\b(fleet)-{_RANDOM}{{6,10}}\b"), r"\1-HASH"),
    (re.compile(rf"\bnode-debugger-[a-z0-9-]+-{_RANDOM}{{5}}\b"), "node-debugger-NODE-RANDOM"),
    (re.compile(rf"\b(once|kube-api-access|debugger)-{_RANDOM}{{5}}\b"), r"\1-RANDOM"),
    (re.compile(r"(?<=pod-template-hash=)\w+"), "HASH"),
    (re.compile(r"\(x\d+ over [^)]*\)"), ""),
    *((re.compile(f"^{pattern}$", re.MULTILINE), "") for pattern in _AT_TIMES),
    (re.compile(r"(?<![=\w.])(?:\d{1,3}m)?\d+s\b(?! timeout)"), "AGE"),
    (re.compile(r"(?<![=\w.])\d{1,2}m(?=\s|$)", re.MULTILINE), "AGE"),
)
_SPACES = re.compile(r"(?<=\S)[ \t]+")
_PASSED = re.compile(r"\bFailedMount\b.* failed to sync (configmap|secret) cache: timed out waiting for the condition$")
_EVENTS = re.compile(r"^(Events:|LAST SEEN )")
_KEYS = ("name", "type", "key", "containerPort", "ip")


def normalized(completed: Completed, form: str, names: dict[str, str]) -> list[str]:
    """Return the lines of an answer; `names` are further words to replace, with their replacements."""
    is_tree = form == TREE and completed.code == 0
    out = "\n".join(_leaves(yaml.load(completed.out, Loader=yaml.BaseLoader))) if is_tree else completed.out
    lines = [*_lines(out, names), *(f"error: {line}" for line in _lines(completed.err, names))]
    if form == EVENTS:
        lines = _unordered(lines)
    if form in (TREE, LINES):
        lines.sort()
    return [*_once(lines), f"exit code {completed.code}"]


def _lines(text: str, names: dict[str, str]) -> Iterator[str]:
    for word, instead in names.items():
        text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", instead, text)
    for pattern, replaced in _REPLACED:
        text = pattern.sub(replaced, text)
    for line in text.replace("\r", "").split("\n"):
        if line.strip():
            yield _SPACES.sub(" ", line).rstrip()


def _once(lines: list[str]) -> list[str]:
    """Remove lines that repeat the one before: the number of repetitions depends on timing."""
    return [line for place, line in enumerate(lines) if place == 0 or line != lines[place - 1]]


def _unordered(lines: list[str]) -> list[str]:
    """Sort the table of events, and remove transient events."""
    begin = next((place for place, line in enumerate(lines) if _EVENTS.match(line)), len(lines))
    return [*lines[: begin + 1], *sorted({line for line in lines[begin + 1 :] if not _PASSED.search(line)})]


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each value of a document; an item of a list is identified by its name, if it has one."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for place, one in enumerate(value):
            yield from _leaves(one, f"{path}[{_called(one, place)}]")
    else:
        yield f"{path}: {value}"


def _called(one: Any, place: int) -> str:
    if isinstance(one, dict):
        named = one.get("metadata", one)
        return next((str(named[key]) for key in _KEYS if isinstance(named, dict) and key in named), str(place))
    return str(place)
