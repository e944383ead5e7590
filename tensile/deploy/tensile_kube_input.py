"""Reads an installation of tensile-kube from manifests and command lines: which programs run, how, and their files.

Manifests are YAML or JSON with any number of documents, such as `kubectl get -o yaml` prints; a `List` is taken apart.
Anything else is read as a shell script or a systemd unit. Paths that a flag names are followed to the volume that is
mounted there, since that is the Secret or ConfigMap to use. Values of Secrets are never read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from tensile.deploy.tensile_kube_commands import (
    DESCHEDULER,
    FLAGS,
    OF_WEBHOOK_ONLY,
    PROGRAMS,
    WEBHOOK,
    Invocation,
    MountedFile,
    Variable,
    of_script,
    of_words,
    parse,
    program_of,
    runs,
    simple_commands,
)
from tensile.errors import TensileError
from tensile.text import shown
from tensile.yaml_document import MAX_BYTES, Path, Position, YAMLNode, compose, find, locate, show_path

_MANIFEST = re.compile(r"""\A\s*\{|^[-\s]*["']?(apiVersion|kind)["']?\s*:""", re.MULTILINE)
_DOCUMENT = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
_POD: Path = ("spec",)
_TEMPLATE: Path = ("spec", "template", "spec")
_WORKLOADS = {
    "Pod": _POD,
    **dict.fromkeys(("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet", "ReplicationController"), _TEMPLATE),
}
"""The kinds that run programs, and where their pod spec is."""
_PLUGINS = ("multi-scheduler", "MultiClusterScheduling")
"""Names of the scheduler plugin: that of tensile-kube, and that of the repository to which it moved."""
_MUTATOR = "vk-mutator"
_UPSTREAM = "descheduler/descheduler"

_SHELLS = frozenset(("sh", "bash", "ash", "dash"))
_CONTAINER_VARIABLE = re.compile(r"\$(\$|\(([^()]+)\))")
_TAG = re.compile(r":[^/:]*$")


class Source(NamedTuple):
    """An input: its name for messages, and its content."""

    name: str
    data: bytes


class Document(NamedTuple):
    """An object in a file: the file's name, the number of the document in it from 1, its root, the object's path."""

    file: str
    number: int
    root: YAMLNode
    base: Path = ()

    def node(self, path: Path) -> YAMLNode | None:
        """Return the node at a path of the object; None if it is missing or null."""
        found = find(self.root, (*self.base, *path))
        return None if found is None or found.value is None else found

    def error(self, path: Path, message: str) -> TensileError:
        """Return the error about a path of the object."""
        path_in_file, line = (*self.base, *path), locate(self.root, (*self.base, *path))
        location = f"{self.file}:{line.line}:{line.column}: document {self.number}"
        return TensileError(f"{location}: {show_path(path_in_file)}: {message}")

    def keys(self, path: Path) -> tuple[str, ...]:
        """Return the keys of a mapping; none if it is missing. Raises TensileError if it is no mapping."""
        found = self.node(path)
        if found is not None and not isinstance(found.value, dict):
            raise self.error(path, f"is {_kind(found.value)}, must be a mapping")
        return tuple(found.value) if found else ()

    def items(self, path: Path) -> list[Path]:
        """Return the paths of a list's items; none if it is missing. Raises TensileError if it is no list."""
        found = self.node(path)
        if found is not None and not isinstance(found.value, list):
            raise self.error(path, f"is {_kind(found.value)}, must be a list")
        return [(*path, index) for index in range(len(found.value))] if found else []

    def entries(self, path: Path) -> list[Path]:
        """Return the paths of the mappings in a list. Raises TensileError if it is no list of mappings."""
        found = self.items(path)
        for item in found:
            self.keys(item)
        return found

    def text(self, path: Path) -> str:
        """Return a scalar as text; "" if it is missing. Raises TensileError if it is a mapping or a list."""
        found = self.node(path)
        if found is None:
            return ""
        if isinstance(found.value, dict | list):
            raise self.error(path, f"is {_kind(found.value)}, must be text")
        return str(found.value).lower() if isinstance(found.value, bool) else str(found.value)

    def texts(self, path: Path) -> list[str]:
        """Return a list of scalars as texts."""
        return [self.text(item) for item in self.items(path)]

    @property
    def kind(self) -> str:
        """The kind of the object, "" for none."""
        found = self.node(("kind",))
        return found.value if found and isinstance(found.value, str) else ""

    @property
    def namespace(self) -> str:
        """The namespace of the object."""
        return self.text(("metadata", "namespace")) or "default"

    @property
    def name(self) -> str:
        """The name of the object."""
        return self.text(("metadata", "name"))

    @property
    def title(self) -> str:
        """The object and its place, for people."""
        named = "/".join(filter(None, (self.text(("metadata", "namespace")), self.name)))
        return f"{shown(f'{self.kind} {named}'.strip())} ({self.file}, document {self.number})"


def _kind(value: object) -> str:
    """Describe a value without its content."""
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a single value"


class Container(NamedTuple):
    """The container of a program: the object that contains it, the path of its pod spec there, and its own path."""

    document: Document
    pod: Path
    path: Path

    def file(self, path: str) -> MountedFile:
        """Return what a path in the container leads to."""
        inner = PurePosixPath(path)
        found: tuple[PurePosixPath, Path] | None = None
        for mount in self.document.entries((*self.path, "volumeMounts")):
            mount_path = PurePosixPath(self.document.text((*mount, "mountPath")) or "/")
            if inner.is_relative_to(mount_path) and (found is None or mount_path.is_relative_to(found[0])):
                found = mount_path, mount
        if found is None:
            return MountedFile("image", "", path)
        relative = inner.relative_to(found[0])
        if sub_path := self.document.text((*found[1], "subPath")):
            relative = PurePosixPath(sub_path) / relative
        return self._volume(self.document.text((*found[1], "name")), str(relative)) or MountedFile("image", "", path)

    def _volume(self, name: str, relative_path: str) -> MountedFile | None:
        """Return the file `relative_path` in the volume of that name, None for one of another type."""
        document = self.document
        for volume in document.entries((*self.pod, "volumes")):
            if document.text((*volume, "name")) != name:
                continue
            if host := document.text((*volume, "hostPath", "path")):
                return MountedFile("host", "", str(PurePosixPath(host) / relative_path))
            projected = document.entries((*volume, "projected", "sources"))
            for source in (volume, *projected):
                if found := self._entry(source, relative_path):
                    return found
        return None

    def _entry(self, source: Path, relative_path: str) -> MountedFile | None:
        for kind, field_name in (("secret", "secretName"), ("secret", "name"), ("configMap", "name")):
            name = self.document.text((*source, kind, field_name))
            items = self.document.entries((*source, kind, "items"))
            keys = {self.document.text((*item, "path")): self.document.text((*item, "key")) for item in items}
            key = keys.get(relative_path) if items else relative_path
            if name and key:
                return MountedFile(kind.lower(), self.document.namespace, name, key)
        return None


@dataclass(slots=True)
class Installation:
    """Everything of tensile-kube in the input; `others` are the titles of the other objects."""

    processes: list[Invocation] = field(default_factory=list)
    policies: list[Document] = field(default_factory=list)
    schedulers: list[Document] = field(default_factory=list)
    hooks: list[Document] = field(default_factory=list)
    placements: list[Document] = field(default_factory=list)
    repeated: list[Invocation] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    configmaps: dict[tuple[str, str], Document] = field(default_factory=dict)

    def nested(self, file: MountedFile) -> Document | None:
        """Return the document in a ConfigMap of the input, None if the input does not have it.

        Raises TensileError if it is no valid YAML.
        """
        document = self.configmaps.get((file.namespace, file.name)) if file.kind == "configmap" else None
        path: Path = ("data", file.key)
        if document is None or document.node(path) is None:
            return None
        found = compose(document.text(path), what="document")
        if found.root is None or found.flaws:
            flaw = found.flaws[0]
            raise document.error(path, f"in its line {flaw.position.line}: {flaw.text}")
        return Document(f"{document.file}, {show_path(path)} of {document.name}", document.number, found.root)

    def add(self, process: Invocation) -> None:
        """Add a program that runs; the same one again, such as a Pod beside its Deployment, is only recorded."""
        known = [one for one in self.processes if one[:2] == process[:2] and one.variables == process.variables]
        (self.repeated if known else self.processes).append(process)


def installation(sources: Iterable[Source], words: Sequence[str] = ()) -> Installation:
    """Return what is in the inputs and in a command line that is split into words already.

    Raises TensileError, with file, document and path, for an input that cannot be read or has nothing of tensile-kube.
    """
    found, documents = Installation(), list[Document]()
    inputs = list(sources)
    for source in inputs:
        text = _decoded(source)
        if _MANIFEST.search(text):
            documents += _documents(source.name, text)
        else:
            for process in of_script(source.name, text):
                found.add(process)
    _sort(documents, found)
    if words:
        invocation = of_words(list(words), {}, "command line")
        if invocation is None:
            raise TensileError(
                f"command line: runs none of {', '.join(FLAGS)}: write the program first, then its flags"
            )
        found.add(invocation)
    if not (found.processes or found.policies or found.schedulers or found.hooks):
        names = ", ".join(source.name for source in inputs) or "no input"
        raise TensileError(
            f"{names}: nothing of tensile-kube: give workloads or command lines of {', '.join(FLAGS)}, "
            f"a DeschedulerPolicy, a KubeSchedulerConfiguration with plugin {_PLUGINS[0]}, "
            f"or MutatingWebhookConfiguration {_MUTATOR}"
        )
    return found


def _decoded(source: Source) -> str:
    if len(source.data) > MAX_BYTES:
        raise TensileError(f"{source.name}: larger than {MAX_BYTES} bytes; give only the objects of tensile-kube")
    try:
        return source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.data.count(b"\n", 0, error.start) + 1
        raise TensileError(f"{source.name}:{line}: a byte that is not UTF-8; save the file as UTF-8") from None


def _documents(name: str, text: str) -> Iterator[Document]:
    """Yield the objects in a stream of YAML documents. A line of `---` ends a document wherever it is."""
    line, number = 0, 0
    for part in _DOCUMENT.split(text):
        found = compose(part, what="document")
        number += bool(found.flaws) or (found.root is not None and found.root.value is not None)
        if found.root is None or found.flaws:
            flaw = found.flaws[0]
            location = f"{name}:{flaw.position.line + line}:{flaw.position.column}: document {number}"
            raise TensileError(f"{location}: {show_path(flaw.path)}: {flaw.text}")
        _shift(found.root, line)
        if found.root.value is not None:
            yield from _objects(Document(name, number, found.root))
        line += part.count("\n")


def _shift(root: YAMLNode, lines: int) -> None:
    """Move positions in a document by the lines before it. Nodes with aliases are moved once."""
    pending, seen = [root], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        node.start = Position(node.start.line + lines, node.start.column)
        node.keys = {key: Position(position.line + lines, position.column) for key, position in node.keys.items()}
        pending += node.value.values() if isinstance(node.value, dict) else ()
        pending += node.value if isinstance(node.value, list) else ()


def _objects(document: Document) -> Iterator[Document]:
    """Yield the object of a document, or those in its List."""
    document.keys(())
    if not document.kind.endswith("List") or document.node(("items",)) is None:
        yield document
        return
    for item in document.entries(("items",)):
        inner = document._replace(base=item)
        inner.keys(())
        yield inner


def _sort(documents: list[Document], found: Installation) -> None:
    """Sort objects into an installation."""
    present = {
        (document.kind, document.namespace, document.name) for document in documents if document.kind in _WORKLOADS
    }
    found.configmaps.update(
        {(document.namespace, document.name): document for document in documents if document.kind == "ConfigMap"}
    )
    services = [document for document in documents if document.kind == "Service"]
    selected = set[tuple[str, str]]()
    for document in documents:
        if document.kind in _WORKLOADS and not _owners(document) & present:
            invocations = list(_processes(document, found))
            for process in invocations:
                found.add(process)
            if any(process.program == WEBHOOK for process in invocations):
                selected |= {(service.namespace, service.name) for service in services if _selects(service, document)}
            found.others += [] if invocations else [document.title]
    for document in documents:
        _sort_other(document, found, selected)


def _sort_other(document: Document, found: Installation, services: set[tuple[str, str]]) -> None:
    """Sort an object that runs nothing; `services` are those of webhooks."""
    if document.kind == "DeschedulerPolicy":
        found.policies.append(document)
    elif document.kind == "KubeSchedulerConfiguration" and scheduler_arguments(document) is not None:
        found.schedulers.append(document)
    elif document.kind == "MutatingWebhookConfiguration" and (document.name == _MUTATOR or _calls(document, services)):
        found.hooks.append(document)
    elif document.kind == "TopologySchedulingPolicy":
        found.placements.append(document)
    elif document.kind not in _WORKLOADS and document.kind not in ("ConfigMap", "Secret"):
        found.others.append(document.title)


def _calls(hook: Document, services: set[tuple[str, str]]) -> bool:
    """Report whether a webhook configuration leads to one of some Services, or to one with tensile-kube's name."""
    paths = [(*entry, "clientConfig", "service") for entry in hook.entries(("webhooks",))]
    called = {(hook.text((*path, "namespace")), hook.text((*path, "name"))) for path in paths}
    return bool(called & services) or any(name == _MUTATOR for _, name in called)


def _selects(service: Document, workload: Document) -> bool:
    """Report whether a Service selects the pods of a workload."""
    base: Path = ("metadata", "labels") if workload.kind == "Pod" else ("spec", "template", "metadata", "labels")
    keys = service.keys(("spec", "selector"))
    same = all(service.text(("spec", "selector", key)) == workload.text((*base, key)) for key in keys)
    return bool(keys) and same and service.namespace == workload.namespace


def _owners(document: Document) -> set[tuple[str, str, str]]:
    """Return the workloads that own an object; for a ReplicaSet also its Deployment, whose name it begins with."""
    found = set()
    for owner in document.entries(("metadata", "ownerReferences")):
        kind, name = document.text((*owner, "kind")), document.text((*owner, "name"))
        found.add((kind, document.namespace, name))
        if kind == "ReplicaSet":
            found.add(("Deployment", document.namespace, name.rpartition("-")[0]))
    return found


def scheduler_arguments(document: Document) -> Path | None:
    """Return the path of the plugin's arguments in a KubeSchedulerConfiguration, None if it does not configure it."""
    for profile in ((), *document.entries(("profiles",))):
        for entry in document.entries((*profile, "pluginConfig")):
            if document.text((*entry, "name")) in _PLUGINS:
                return (*entry, "args")
    return None


def _processes(document: Document, found: Installation) -> Iterator[Invocation]:
    """Yield the programs of tensile-kube that an object runs."""
    pod = _WORKLOADS[document.kind]
    containers = document.entries((*pod, "containers"))
    for path in containers:
        variables = tuple(_variables(document, path, found))
        known = {one.name: one.value for one in variables if one.value is not None}
        words = [_expanded(word, known) for name in ("command", "args") for word in document.texts((*path, name))]
        container = Container(document, pod, path)
        origin = document.title
        if len(containers) > 1:
            origin += f", container {shown(document.text((*path, 'name')))}"
        process = _of_container(document, path, words, known)
        if process is not None:
            container_variables = {one.name for one in variables}
            script_variables = (
                one for one in process.variables if one.name not in container_variables
            )  # those of a shell's script
            yield process._replace(variables=(*variables, *script_variables), origin=origin, file=container.file)


def _of_container(document: Document, path: Path, words: list[str], known: dict[str, str]) -> Invocation | None:
    """Return the program of a container, by its command or else by its image."""
    has_command = bool(document.items((*path, "command")))
    image = document.text((*path, "image")).partition("@")[0]
    if has_command and PurePosixPath(words[0]).name in _SHELLS:
        scripts = [word for word in words[1:] if not word.startswith("-")]
        segments = [one for line in scripts[:1] for one in _segments(line, document, path)]
        process = next(filter(None, (of_words(one, known, "") for one in segments)), None)
    elif has_command:
        process = of_words(words, {}, "")
    else:
        program = PROGRAMS.get(program_of(image))
        process = Invocation(program, tuple(words), (), "") if program else None
    return process if process and _is_ours(process, image) else None


def _is_ours(process: Invocation, image: str) -> bool:
    """Report whether a program in a container is that of tensile-kube, as others have the same names."""
    line = parse(process.program, process.words)
    if not runs(line):
        return False
    if process.program == DESCHEDULER:
        return not _TAG.sub("", image).endswith(_UPSTREAM)
    if process.program == WEBHOOK:
        return program_of(image) == "virtual-webhook" or bool(OF_WEBHOOK_ONLY & {given.name for given in line.flags})
    return True


def _segments(text: str, document: Document, path: Path) -> list[list[str]]:
    try:
        return [segment for line in text.replace("\\\n", " ").splitlines() for segment in simple_commands(line)]
    except ValueError:
        raise document.error(path, "a shell command with quotes that are not closed") from None


def _variables(document: Document, path: Path, found: Installation) -> Iterator[Variable]:
    """Yield the environment variables of a container. References to earlier ones are resolved, as the kubelet does."""
    known: dict[str, str] = {}
    for entry in document.entries((*path, "envFrom")):
        for variable in _from(document, entry, found):
            known |= {variable.name: variable.value} if variable.value is not None else {}
            yield variable
    for entry in document.entries((*path, "env")):
        variable = _variable(document, entry, found)
        if variable.value is not None:
            variable = variable._replace(value=_expanded(variable.value, known))
            known[variable.name] = variable.value or ""
        yield variable


def _from(document: Document, entry: Path, found: Installation) -> Iterator[Variable]:
    """Yield the variables of an envFrom entry. Those of a Secret are not read."""
    if secret := document.text((*entry, "secretRef", "name")):
        yield Variable(f"envFrom Secret {shown(secret)}", None, "in a Secret, which is not read")
    name = document.text((*entry, "configMapRef", "name"))
    data = found.configmaps.get((document.namespace, name))
    if name and data is None:
        yield Variable(f"envFrom ConfigMap {shown(name)}", None, "in a ConfigMap that is not in the input")
    for key in data.keys(("data",)) if data else ():
        value = data.text(("data", key)) if data else None
        yield Variable(document.text((*entry, "prefix")) + key, value)


def _variable(document: Document, entry: Path, found: Installation) -> Variable:
    name, origin = document.text((*entry, "name")), (*entry, "valueFrom")
    if not document.keys(origin):
        return Variable(name, document.text((*entry, "value")))
    if field_path := document.text((*origin, "fieldRef", "fieldPath")):
        is_fixed = document.kind == "Pod" or field_path == "metadata.namespace"
        fixed = field_path in ("metadata.name", "metadata.namespace", "spec.nodeName") and is_fixed
        value = document.text(tuple(field_path.split("."))) if fixed else ""
        return Variable(name, value or None, f"{shown(field_path)} of each pod")
    map_name, key = (document.text((*origin, "configMapKeyRef", part)) for part in ("name", "key"))
    if map_name:
        data = found.configmaps.get((document.namespace, map_name))
        known = data.node(("data", key)) if data else None
        found_value = data.text(("data", key)) if data and known else None
        return Variable(
            name, found_value, f"key {shown(key)} of ConfigMap {shown(map_name)}, which is not in the input"
        )
    return Variable(name, None, "in a Secret, which is not read" if document.node((*origin, "secretKeyRef")) else "")


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value, as the kubelet does. An unknown one stays; $$ is a $."""
    return _CONTAINER_VARIABLE.sub(lambda found: "$" if found[1] == "$" else known.get(found[2], found[0]), text)
