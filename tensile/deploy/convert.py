"""Converts the topology file of a machine into one for a pod in the upper cluster, and describes each change.

A ConfigMap contains no files: kubeconfigs come from Secrets, the upper cluster is the one around the pod, and servers
listen on the pod's addresses instead of the machine's. A file that needs no change is kept as it is, with comments.
A setting without a counterpart in the cluster is an error: otherwise, for example, a certificate would silently be
ignored.

`edited` changes values in a YAML text and keeps its order, comments and blank lines. It makes one change at a time, at
the positions that the YAML parser reports. The caller compares the parsed result with the wanted data, since anchors or
unusual notations can make the edit mean something else.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import yaml

from tensile.topology import Lower, Topology, TopologyErrors, TopologyProblem, parse
from tensile.topology.validation import get, low, lowers
from tensile.yaml_document import Path, compose, document, flow, locate, plain, show_path

WEBHOOK = "tensile-webhook"
"""The default name of the webhook's Service."""
METRICS, EXTENDER = "tensile-metrics", "tensile-extender"
"""The names of the other Services."""
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - a pod's addresses, which no file can know: IPv4, both families
_IN_FILES: dict[Path, str] = {
    ("kubelet", "tlsCertFile"): "the upper cluster issues one for each node, once it is approved",
    ("kubelet", "tlsKeyFile"): "it goes with tlsCertFile",
    ("kubelet", "clientCAFile"): "the authority is that of the upper cluster then",
    ("webhook", "tlsCertFile"): "the engine makes and renews one, and tells the upper cluster to trust it",
    ("webhook", "tlsKeyFile"): "it goes with tlsCertFile",
}


class ConvertedTopology(NamedTuple):
    """A converted topology: its text for a ConfigMap, the parsed model, and a description of each change."""

    text: str
    topology: Topology
    words: tuple[str, ...]


class _Change(NamedTuple):
    """A change: the new value at a path (None: removed), the reason, and a new `key` ("": the last one of the path)."""

    path: Path
    value: Any
    why: str
    key: str = ""

    def said(self) -> str:
        """Return a description of the change in one line."""
        done = "left out" if self.value is None else f"{self.key or 'now'} {flow(self.value)}"
        return f"{show_path(self.path)}: {done}: {self.why}"


def turned(text: str, name: str, namespace: str, *, for_lower: bool = False) -> ConvertedTopology:
    """Convert the text of a topology file; `name` is the file's name, `namespace` the engine's namespace.

    With `for_lower` only a lower cluster's part is needed, so certificates of the engine's servers do not matter.
    Raises TopologyErrors for an invalid file, and for a setting that cannot be converted.
    """
    topology = parse(text, name=name)
    root, _ = compose(text)
    assert root is not None, "it was parsed"
    data = plain(root)
    found = [*(_shared if for_lower else _faults)(data, topology, namespace)]
    if found:
        problems = [TopologyProblem(locate(root, path), path, words) for path, words in found]
        raise TopologyErrors(name, tuple(sorted(problems, key=lambda one: one.position)))
    changes = [*_changes(data, topology, namespace)]
    words = [change.said() for change in changes if change.path[0] == "lowers" or not for_lower]
    words += [] if for_lower else _hints(data, topology)
    changes += [_Change(path, None, "") for path in _IN_FILES if get(data, path) is not None]
    if changes:
        text, whole = _written(text, data, changes)
        if not (whole or for_lower):
            words.append("comments are left out: the file is written in a way that could not be kept")
    return ConvertedTopology(text, parse(text, name=name, configmap_mode=True), tuple(words))


def _faults(data: Any, topology: Topology, namespace: str) -> Iterator[tuple[Path, str]]:
    """Yield each setting that has no counterpart in the cluster, with what to do."""
    for path, instead in _IN_FILES.items():
        if get(data, path) is not None:
            yield path, f"a file of this machine, which a pod does not have; leave it out: {instead}"
    service = topology.webhook.service
    if topology.webhook.enabled and service is not None and service.namespace != namespace:
        words = f"the Service is in {service.namespace}, and the engine would be in {namespace}; "
        yield ("webhook", "service", "namespace"), words + f"write {namespace}, or give --namespace {service.namespace}"
    if topology.webhook.enabled and service is not None and service.name in (METRICS, EXTENDER):
        words = f"{service.name} is a Service of the engine for something else; write {WEBHOOK}, or another name"
        yield ("webhook", "service", "name"), words
    yield from _shared(data, topology, namespace)


def _shared(data: Any, topology: Topology, namespace: str) -> Iterator[tuple[Path, str]]:
    """Yield each lower that would use the Secret of another lower, and so the credentials of that one."""
    named = {_place(one): one.name for one in topology.lowers if one.kubeconfig_secret is not None}
    for place in lowers(data):
        path, secret = ("lowers", place, "kubeconfig"), (namespace, topology.lowers[place].name)
        if secret in named and get(data, path) is not None:
            words = f"it would be kubeconfigSecret {secret[0]}/{secret[1]}, which is that of {named[secret]}; "
            yield path, words + "write kubeconfigSecret with another name in one of the two"


def _changes(data: Any, topology: Topology, namespace: str) -> Iterator[_Change]:
    """Yield the changes that the file needs."""
    for key in ("kubeconfig", "context"):
        if key in (get(data, ("upper",)) or {}):
            yield _Change(("upper", key), None, "the engine runs in the upper cluster, as the account of its pod")
    for place in lowers(data):
        path = get(data, ("lowers", place, "kubeconfig"))
        if path is not None:
            secret = {"namespace": namespace, "name": topology.lowers[place].name}
            yield _Change(("lowers", place, "kubeconfig"), secret, f"a pod has no file {path}", "kubeconfigSecret")
    yield from _addresses(data, topology)
    webhook = topology.webhook
    if webhook.enabled and not webhook.is_reachable:
        service = {"namespace": namespace, "name": WEBHOOK}
        yield _Change(("webhook", "service"), service, "so the upper apiserver reaches it")


def _addresses(data: Any, topology: Topology) -> Iterator[_Change]:
    """Yield the changes that make every server listen on the pod's addresses."""
    for server in ("kubelet", "webhook", "extender"):
        bind = get(data, (server, "bind"))
        if bind is not None and bind not in _EVERYWHERE:
            why = f"a pod does not have the address {bind}, or is not reached there"
            yield _Change((server, "bind"), _everywhere(bind) if ":" in bind else None, why)
    if get(data, ("kubelet", "nodeAddress")) is not None:
        yield _Change(("kubelet", "nodeAddress"), None, "the nodes have the address of the pod that drives")
    if topology.telemetry.bind not in _EVERYWHERE:
        why = f"at {topology.telemetry.bind} nobody could ask for metrics; whoever reaches the pod can now"
        yield _Change(("telemetry", "bind"), _everywhere(topology.telemetry.bind), why)


def _everywhere(bind: str) -> str:
    """Return the unspecified address of the same family as `bind`: a pod may have addresses of one family only."""
    return _EVERYWHERE[":" in bind]


def _hints(data: Any, topology: Topology) -> Iterator[str]:
    """Yield notes on settings that stay unchanged but have a different effect in the cluster."""
    asks = "Service" in topology.enabled or any(one.service_accounts.identity == "upper" for one in topology.lowers)
    if asks and get(data, ("upper", "kubeconfig")) is not None and topology.upper.advertise_url is None:
        yield (
            "upper.advertiseURL: not given: it was the address in the kubeconfig; set it if pods below are to reach "
            "the upper cluster"
        )
    if topology.webhook.enabled and topology.webhook.url is not None:
        yield f"webhook.url: stays: it has to lead to Service {WEBHOOK} now; leave it out to have that called directly"
    for path in low(data):
        words = "a pod without rights listens below 1024 only where its runtime lets anybody; leave it out"
        anyway = ", its Service has 443 anyway" if path == ("webhook", "port") else ""
        yield f"{show_path(path)}: stays: {words}{anyway}"
    for place, lower in enumerate(topology.lowers):
        if others := sharing(topology, lower):
            yield (
                f"lowers[{place}].kubeconfigSecret: stays: that of {', '.join(others)} too: the commands that make a "
                "kubeconfig put one in place of the other; put all of them there yourself, or name another Secret"
            )


def sharing(topology: Topology, lower: Lower) -> list[str]:
    """Return the names of the other lowers whose kubeconfigs are in the same Secret, under another key or context."""
    return [
        one.name
        for one in topology.lowers
        if one.name != lower.name and lower.kubeconfig_secret is not None and _place(one) == _place(lower)
    ]


def _place(lower: Lower) -> tuple[str, str] | None:
    secret = lower.kubeconfig_secret
    return None if secret is None else (secret.namespace, secret.name)


def _written(text: str, data: Any, changes: list[_Change]) -> tuple[str, bool]:
    """Return the text with the changes, and whether the original text was kept, with its comments."""
    wanted = _listed(data)
    for change in changes:
        _set(wanted, change.path, change.value, change.key)
    kept = _kept(text, changes)
    root, flaws = compose(kept)
    if root is not None and not flaws and _listed(plain(root)) == wanted:
        return kept, True
    return document(wanted), False


def _kept(text: str, changes: list[_Change]) -> str:
    """Return the text with the changes edited in, "" if that breaks it.

    It breaks, for example, where a YAML anchor uses one value in two places.
    """
    with suppress(yaml.YAMLError):
        for change in changes:
            text = edited(text, change.path, change.value, change.key)
        return text
    return ""


def _set(data: Any, path: Path, value: Any, key: str = "") -> None:
    """Change data in place, as `edited` changes a text."""
    inside = data
    for step in path[:-1]:
        inside = inside.get(step) if isinstance(inside, dict) else inside[step]
    if not isinstance(inside, dict):
        _set(data, path[:-1], None if value is None else {path[-1]: value})
    elif value is not None:
        renamed = {key or one if one == path[-1] else one: what for one, what in {**inside, path[-1]: value}.items()}
        inside.clear()
        inside.update(renamed)
    elif len(inside) == 1 < len(path):
        _set(data, path[:-1], None)
    else:
        inside.pop(path[-1], None)


def _listed(data: Any) -> Any:
    """Return a mutable copy of data."""
    if isinstance(data, dict):
        return {key: _listed(value) for key, value in data.items()}
    return [_listed(value) for value in data] if isinstance(data, tuple) else data


def edited(text: str, path: Path, value: Any, key: str = "") -> str:
    """Return a text in which a path has another value, or none for None; missing parents are added.

    A mapping that becomes empty is removed as well. `key` replaces the last key of the path.
    """
    parent = _at(text, path[:-1])
    if not isinstance(parent, yaml.MappingNode):
        return text if value is None else edited(text, path[:-1], {path[-1]: value})
    known = next((pair for pair in parent.value if pair[0].value == path[-1]), None)
    if known is None:
        return text if value is None else _added(text, parent, f"{path[-1]}: {flow(value)}")
    if value is not None:
        return text[: known[0].start_mark.index] + f"{key or path[-1]}: {flow(value)}" + text[_end(known[1]) :]
    if len(parent.value) == 1 and len(path) > 1:
        return edited(text, path[:-1], None)
    return _removed(text, parent, known)


def _at(text: str, path: Path) -> yaml.Node | None:
    """Return the YAML node at a path, None if there is none."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            return None
    return node


def _added(text: str, parent: yaml.MappingNode, entry: str) -> str:
    """Return the text with one more entry in a mapping: the first one in braces, else after the last one."""
    start = parent.start_mark
    if parent.flow_style:
        more = ", " if parent.value else ""
        return text[: start.index + 1] + entry + more + text[start.index + 1 :]
    if start.column == 0:
        return text.rstrip("\n") + f"\n{entry}\n"
    end = text.find("\n", _end(parent))
    end = len(text) if end < 0 else end
    return text[:end] + f"\n{' ' * start.column}{entry}" + text[end:]


def _removed(text: str, parent: yaml.MappingNode, known: tuple[yaml.Node, yaml.Node]) -> str:
    """Return the text without one of a mapping's entries; in block style its whole lines are removed."""
    place = parent.value.index(known)
    start, end = known[0].start_mark.index, _end(known[1])
    if parent.flow_style and place:
        return text[: _end(parent.value[place - 1][1])] + text[end:]
    if parent.flow_style or _is_first_of_item(text, start):
        return text[:start] + text[parent.value[place + 1][0].start_mark.index :]
    return text[: text.rfind("\n", 0, start) + 1] + text[(text.find("\n", end) + 1) or len(text) :]


def _is_first_of_item(text: str, start: int) -> bool:
    """Report whether something else, such as the dash of a list item, precedes a key in its line."""
    return bool(text[text.rfind("\n", 0, start) + 1 : start].strip())


def _end(node: yaml.Node) -> int:
    """Return the index after a value: a block ends after its last value, not where the next token begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
