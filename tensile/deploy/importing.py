"""`tensile import`: from an installation of tensile-kube to a topology file, with a note for everything in the input.

Every virtual node becomes a lower cluster, and the settings that its processes share become those of the topology. A
value is written only if the input has it and it is not the default; what a topology needs and the input does not have
is a placeholder with a comment. Notes and comments contain flags, names and paths, never the content of kubeconfigs or
Secrets, nor the value of a flag or variable that is not known.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple

from tensile.deploy.manifests import NAMESPACE
from tensile.deploy.setup import WEBHOOK as SERVICE
from tensile.deploy.setup import commented
from tensile.deploy.tensile_kube_commands import (
    DESCHEDULER,
    LONGEST_SECONDS,
    SCHEDULER,
    VIRTUAL_NODE,
    WEBHOOK,
    MountedFile,
    Program,
    duration,
    file_path,
    go_seconds,
    is_valid,
    label_keys,
    line_of,
    port,
    truth,
    verdict_of,
    whole,
)
from tensile.deploy.tensile_kube_input import Document, Installation, Source, installation, scheduler_arguments
from tensile.errors import TensileError
from tensile.names import CLUSTER_ID
from tensile.text import listed, shown
from tensile.topology import Taint, Telemetry, TopologyFile, Upper, Webhook, fields
from tensile.topology import parse as parse_topology
from tensile.topology.models import PROVIDER_TAINT, Descheduler, LowerDefaults, SecretEntry
from tensile.yaml_document import Path, flow, show_path

PLACEHOLDER = "tensile-kube"
"""The name of the topology, unless another is given."""
_HEAD = """\
# Written by `tensile import`. A comment with "placeholder" or "decide" needs your answer.
# To check the file: tensile validate -f FILE, then tensile doctor -f FILE
"""
_ACCOUNT = "ServiceAccount"
_ORDER = (
    "apiVersion",
    "kind",
    "name",
    "upper",
    "lowerDefaults",
    "lowers",
    "controllers",
    "ignoreLabels",
    "kubelet",
    "webhook",
    "extender",
    "descheduler",
)
_OF_PLUGIN = frozenset(("apiVersion", "kind", "metadata", "plugins", "pluginConfig", "profiles"))
_OF_CLUSTER = {
    "name": "not needed: the clusterID names the cluster",
    "kubemaster": "no equivalent: the server is that of the kubeconfig",
}
_UNKNOWN = "not known; it was left out"
_CONTROLLERS = {"PVControllers": "PV", "ServiceControllers": "Service"}
_UPPER_RATES = (("kube-api-qps", "qps"), ("kube-api-burst", "burst"))
_PORT_OF_WEBHOOK = 8080
"""The port of tensile-kube's webhook without --port."""
_MOST = 1_000_000
_MOST_OTHERS = 20
_LEAST_INTERVAL = 2.0
_FILES_OF_WEBHOOK = {"tlsCertFile": "tlscert", "tlsKeyFile": "tlskey"}


class Note(NamedTuple):
    """What became of one part of the input: the program or object that it belongs to, and one line."""

    subject: str
    text: str


class Imported(NamedTuple):
    """The text of a topology file, which is valid, and the notes in the order of the input."""

    text: str
    notes: tuple[Note, ...]

    def lines(self) -> Iterator[str]:
        """Yield the notes as lines: each program or object once, and its notes below."""
        subject = None
        for note in self.notes:
            if note.subject != subject:
                subject = note.subject
                yield f"{subject}:"
            yield f"  {note.text}"


def imported(sources: Iterable[Source], words: Sequence[str] = (), name: str | None = None) -> Imported:
    """Return the topology of an installation.

    Args:
        sources: files with manifests or scripts.
        words: a command line beside them, split into words.
        name: the name of the topology; None: a placeholder.

    Raises TensileError, with file, document and path, for an input that cannot be read or has nothing of tensile-kube.
    """
    if name is not None and not is_valid(fields.label_name, name):
        raise TensileError(f"--name {shown(name)}: must be lower-case letters, digits and '-', such as {PLACEHOLDER}")
    draft = _TopologyDraft(installation(sources, words))
    draft.convert(name)
    text = "".join(f"{line}\n" for line in commented(draft.data, draft.comments, _ORDER))
    parse_topology(_HEAD + text, name="the imported topology")
    return Imported(_HEAD + text, tuple(draft.all_notes()))


@dataclass(slots=True)
class _TopologyDraft:
    """The topology in the making: its data, the comments by path, and the notes."""

    installation: Installation
    data: dict[str, Any] = field(default_factory=dict)
    comments: dict[Path, str] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    programs: list[Program] = field(init=False)
    names: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.programs = [Program(process) for process in self.installation.processes]

    def of(self, program: str) -> list[Program]:
        """Return the processes of a program."""
        return [one for one in self.programs if one.process.program == program]

    def note(self, subject: str, text: str) -> None:
        """Add a note."""
        self.notes.append(Note(subject, text))

    def comment(self, path: Path, text: str) -> None:
        """Add a comment to the line of a path; to an earlier one of the same line it is appended."""
        self.comments[path] = f"{self.comments[path]}; {text}" if path in self.comments else text

    def convert(self, name: str | None) -> None:
        """Fill in data, comments and notes."""
        self.data |= {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": name or PLACEHOLDER}
        if name is None:
            self.comment(("name",), "placeholder: marks every created object; a changed name is a new owner")
        nodes = self.of(VIRTUAL_NODE)
        self.data["lowers"] = _lowers(self, nodes, list(_clusters(self)))
        if self.data["lowers"]:
            self.data["lowerDefaults"] = {"onConflict": "adopt"}
            text = "decide: when to remove it; until then, the engine takes over what tensile-kube made"
            self.comment(("lowerDefaults", "onConflict"), text)
        _shared(self, nodes)
        _upper(self)
        _kubelet(self, nodes)
        _webhook(self)
        _descheduler(self)
        _ports(self, nodes)

    def all_notes(self) -> Iterator[Note]:
        """Yield the notes about programs, about objects, about what was not read, and about every comment."""
        for program in self.programs:
            subject = f"{program.process.program} of {program.process.origin}"
            yield from (Note(subject, line) for line in program.notes())
        for process in self.installation.repeated:
            yield Note(f"{process.program} of {process.origin}", "the same as one above, and counted once")
        for subject in dict.fromkeys(note.subject for note in self.notes):
            yield from (note for note in self.notes if note.subject == subject)
        for placement in self.installation.placements:
            yield Note(
                placement.title, f"no equivalent: use topologySpreadConstraints on {CLUSTER_ID} in the pod template"
            )
        if others := self.installation.others:
            yield Note("Not of tensile-kube, or not needed any more", listed(others, _MOST_OTHERS))
        for path in sorted(self.comments, key=lambda path: _ORDER.index(str(path[0]))):
            yield Note("To decide in the topology", f"{show_path(path)}: {self.comments[path]}")


class _Cluster(NamedTuple):
    """A lower cluster in the multi-scheduler's configuration: its ID, and the kubeconfig as written and as mounted."""

    name: str
    path: str
    file: MountedFile | None
    subject: str
    field: str


def _clusters(draft: _TopologyDraft) -> Iterator[_Cluster]:
    """Yield the clusters of all configurations of the multi-scheduler, and enable the extender if there is any."""
    pairs: list[tuple[Document, Program | None]] = [(one, None) for one in draft.installation.schedulers]
    for program in draft.of(SCHEDULER):
        file = program.file(program.flags.get("config") or "")
        document = draft.installation.nested(file) if file else None
        if document is not None and scheduler_arguments(document) is not None:
            pairs.append((document, program))
        program.set_verdict(
            "--config", "read: see its notes below" if pairs else "not read: give the file too, with -f"
        )
        program.set_verdict("--kubeconfig", "not needed here: keep it for the stock kube-scheduler")
    if pairs or draft.of(SCHEDULER):
        draft.data["extender"] = {"enabled": True}
        text = "decide: kube-scheduler has to call it; scheduler-extender.yaml of `tensile manifests --dir` shows how"
        draft.comment(("extender", "enabled"), text)
    for document, owner in pairs:
        yield from _configured(draft, document, owner)


def _configured(draft: _TopologyDraft, document: Document, program: Program | None) -> Iterator[_Cluster]:
    """Yield the clusters of a configuration, in any of the spellings of its versions."""
    base, subject = scheduler_arguments(document) or (), document.title
    text = "-> extender.enabled: true; keep the names of profiles that pods ask for in the stock kube-scheduler"
    draft.note(subject, f"{show_path(base)} {text}")
    for key in sorted({*document.keys(())} - _OF_PLUGIN):
        draft.note(subject, f"{shown(key)}: not needed here: keep it in the configuration of the stock kube-scheduler")
    for key in document.keys(base):
        if key.replace("_", "").lower() != "clusterconfiguration":
            continue
        for name in document.keys((*base, key)):
            cluster_path = (*base, key, name)
            spellings = {one.replace("_", "").lower(): one for one in document.keys(cluster_path)}
            path = document.text((*cluster_path, spellings.get("kubeconfig", "kube_config")))
            file = program.file(path) if program else None
            yield _Cluster(name, path, file, subject, show_path((key, name)))
            for other in sorted(spellings.keys() - {"kubeconfig"}):
                draft.note(
                    subject, f"{shown(show_path((key, name, spellings[other])))}: {_OF_CLUSTER.get(other, _UNKNOWN)}"
                )


def _lowers(draft: _TopologyDraft, nodes: list[Program], clusters: list[_Cluster]) -> list[dict[str, Any]]:
    """Return the lowers: one for each virtual node; without any, one for each cluster of the multi-scheduler."""
    if not nodes:
        return [_of_cluster(draft, index, one) for index, one in enumerate(clusters)]
    known = [next((one for one in clusters if _is_same(node, one)), None) for node in nodes]
    lowers = [_of_node(draft, ("lowers", index), *pair) for index, pair in enumerate(zip(nodes, known, strict=True))]
    for cluster in clusters:
        if cluster not in known:
            text = "its kubeconfig is that of no virtual node here; if it is that of a lower, its ID is the clusterID"
            draft.note(cluster.subject, f"{shown(cluster.field)}: {text}")
    access = [flow([lower.get("kubeconfig"), lower.get("kubeconfigSecret")]) for lower in lowers]
    for index, kubeconfig in enumerate(access):
        if access.index(kubeconfig) < index:
            first = access.index(kubeconfig)
            text = f"decide: lowers[{first}] has the same kubeconfig, and one cluster cannot be two lowers"
            draft.comment(("lowers", index, next(key for key in lowers[index] if key.startswith("kubeconfig"))), text)
    return lowers


def _is_same(node: Program, cluster: _Cluster) -> bool:
    """Report whether a cluster of the multi-scheduler has the kubeconfig of a virtual node."""
    path = node.flags.get("client-kubeconfig") or ""
    file = node.file(path)
    if file is not None or cluster.file is not None:
        return file == cluster.file and file is not None and file.kind != "image"
    return bool(path) and path == cluster.path


def _of_cluster(draft: _TopologyDraft, index: int, cluster: _Cluster) -> dict[str, Any]:
    """Return the lower of a cluster whose virtual node is not in the input."""
    base: Path = ("lowers", index)
    name = _free(_label(cluster.name) or f"lower-{index + 1}", draft.names)
    draft.note(cluster.subject, f"{shown(cluster.field)} -> {show_path((*base, 'name'))}: {name}")
    text = "placeholder: the input does not have the name of the node; write the one that it has now"
    draft.comment((*base, "node", "name"), text)
    node: dict[str, Any] = {"name": name}
    if name != cluster.name and is_valid(fields.label_value, cluster.name):
        node["labels"] = {CLUSTER_ID: cluster.name}
    return {"name": name, **_access(draft, base, name, cluster.path, cluster.file), "node": node}


def _of_node(draft: _TopologyDraft, base: Path, program: Program, cluster: _Cluster | None) -> dict[str, Any]:
    """Return the lower of a virtual node; `cluster` is that of the multi-scheduler with the same kubeconfig."""
    labels = _labels(program, base)
    own_id = labels.pop(CLUSTER_ID, "") or (cluster.name if cluster else "")
    key, known = _node_name(program)
    name = _free(_label(own_id) or _label(known) or f"lower-{len(draft.names) + 1}", draft.names)
    if cluster:
        draft.note(cluster.subject, f"{shown(cluster.field)} -> {show_path((*base, 'name'))}: {name}")
    if not own_id:
        text = f"decide: also becomes label {CLUSTER_ID} of the node; keep the value that the node has now"
        draft.comment((*base, "name"), text)
    elif own_id != name and is_valid(fields.label_value, own_id):
        labels[CLUSTER_ID] = own_id
    path = program.flags.get("client-kubeconfig") or ""
    access = _access(draft, base, name, path, program.file(path))
    program.set_verdict("--client-kubeconfig", f"-> {show_path(base)}.{flow(access)[1:-1]}")
    lower = {"name": name, **access}
    for flag, target in (("client-qps", "qps"), ("client-burst", "burst")):
        lower |= _rate(program, flag, (*base, target), _default(LowerDefaults, target))
    node = _named(draft, base, program, (key, known, name)) | ({"labels": labels} if labels else {})
    node |= _taints(program, (*base, "node", "taints")) | _kubelet_port(program, base)
    return lower | ({"node": node} if node else {})


def _node_name(program: Program) -> tuple[str, str]:
    """Return the flag or variable with the node's name, and the name, "" if it is not known or invalid."""
    key, value = program.setting("nodename", "DEFAULTNODE_NAME")
    if not key:
        return "", "virtual-kubelet"
    return key, value if value and is_valid(fields.node_name, value) else ""


def _named(draft: _TopologyDraft, base: Path, program: Program, names: tuple[str, str, str]) -> dict[str, Any]:
    """Return the entry of the node's name: {} if it is that of its lower.

    `names` are the flag or variable with the name, the name ("" if it is not known), and the name of the lower.
    """
    path = (*base, "node", "name")
    key, known, lower = names
    name = _free(known or lower, draft.nodes)
    if not known:
        draft.comment(path, "placeholder: the input does not have the name of the node; write the one that it has now")
    elif name != known:
        draft.comment(path, f"placeholder: {known} is the node of another lower too")
    verdict = "-> {}: {}" if name == known else "not written as it is; {}: {} is a placeholder"
    program.set_verdict(key, verdict.format(show_path(path), name))
    return {} if name == lower and path not in draft.comments else {"name": name}


def _label(text: str) -> str:
    """Return a text as a DNS label, "" if nothing of it is left or it is not known."""
    if "$" in text:
        return ""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-")


def _free(name: str, used: set[str]) -> str:
    """Return a name that is not taken, and take it: itself, else with the first free number."""
    names = chain((name,), (f"{name[:58].rstrip('-.')}-{number}" for number in count(2)))
    free = next(one for one in names if one not in used)
    used.add(free)
    return free


def _default(section: Any, key: str) -> Any:
    """Return the default of a field."""
    return section.model_fields[key].default


def _labels(program: Program, base: Path) -> dict[str, str]:
    """Return the label of VKUBELET_NODE_LABEL, which tensile-kube reads only if it has one colon."""
    text = program.variables.get("VKUBELET_NODE_LABEL") or ""
    key, _, value = (part.strip() for part in text.partition(":"))
    is_label = text.count(":") == 1 and is_valid(fields.own_label_key, key) and is_valid(fields.label_value, value)
    if not text or not is_label:
        program.set_verdict("VKUBELET_NODE_LABEL", "no label in the form KEY:VALUE; it was left out")
        return {}
    program.set_verdict("VKUBELET_NODE_LABEL", f"-> {show_path((*base, 'node', 'labels', key))}: {value}")
    return {key: value}


def _taints(program: Program, path: Path) -> dict[str, Any]:
    """Return the entry of the taints, {} for the default."""
    is_off = truth(program.flags.get("disable-taint") or "false")
    program.set_verdict(
        "--disable-taint", f"-> {show_path(path)}: []" if is_off else "the default: the node has its taint"
    )
    program.set_verdict("--provider", "not needed: lower clusters are the only provider")
    key_of, key = program.setting("taint", "VKUBELET_TAINT_KEY")
    usual, provider = PROVIDER_TAINT.model_dump(), program.flags.get("provider")
    own_value = program.variables.get("VKUBELET_TAINT_VALUE")
    effect = program.variables.get("VKUBELET_TAINT_EFFECT") or usual["effect"]
    taint = {"key": key or usual["key"], "value": own_value or provider or usual["value"], "effect": effect}
    value = [taint] if is_valid(Taint.model_validate, taint) else None
    reason = "no valid taint, with which tensile-kube does not start"
    is_of_provider = not own_value and taint["value"] != usual["value"]
    for source in (
        key_of,
        "VKUBELET_TAINT_VALUE",
        "VKUBELET_TAINT_EFFECT",
        *(["--provider"] if is_of_provider else []),
    ):
        entry = program.entry(source, path, value, [usual], reason)
        if is_off:
            program.set_verdict(source, "not needed: --disable-taint")
    return {str(path[-1]): []} if is_off else entry


def _kubelet_port(program: Program, base: Path) -> dict[str, Any]:
    """Return the entry of the node's port."""
    text = program.variables.get("KUBELET_PORT")
    return program.entry("KUBELET_PORT", (*base, "node", "kubeletPort"), port(text), None, "no port") if text else {}


def _rate(program: Program, flag: str, path: Path, default: int) -> dict[str, Any]:
    """Return the entry of a rate, {} for the default."""
    text = program.flags.get(flag)
    if text is None:
        return {}
    rate, reason = whole(text), "no whole number, with which tensile-kube does not start"
    if rate == 0 or (rate is not None and rate < 0 and path[-1] == "burst"):
        rate, reason = None, "stands for the small default of client-go"
    elif rate is not None:
        rate = min(max(rate, 0), _MOST)  # negative: no limit, which is 0 here
    return program.entry(f"--{flag}", path, rate, default, reason)


def _access(draft: _TopologyDraft, base: Path, name: str, text: str, file: MountedFile | None) -> dict[str, Any]:
    """Return `kubeconfig` or `kubeconfigSecret` of a lower, with a comment unless it can be used as it is."""
    path, comment_path = file_path(text), (*base, "kubeconfig")
    if path is None:
        draft.comment(comment_path, "placeholder: the input does not have the path of this kubeconfig")
        return {"kubeconfig": f"kubeconfigs/{name}"}
    if file is not None and file.kind in ("secret", "configmap"):
        return _secret(draft, base, name, file)
    if file is not None and file.kind == "host":
        draft.comment(
            comment_path, "decide: a path on the node of the old pod; in a pod, the engine needs kubeconfigSecret"
        )
        return {"kubeconfig": file.name}
    if file is not None:
        draft.comment(comment_path, f"placeholder: {path} of the container is in no Secret, ConfigMap or hostPath")
        return {"kubeconfig": f"kubeconfigs/{name}"}
    if path.startswith("~"):
        draft.comment(comment_path, "decide: write out the home directory")
    elif not path.startswith("/"):
        draft.comment(comment_path, "decide: relative to this file now, and no longer to the working directory")
    return {"kubeconfig": path}


def _secret(draft: _TopologyDraft, base: Path, name: str, file: MountedFile) -> dict[str, Any]:
    """Return the Secret of a mounted kubeconfig; for that in a ConfigMap, a Secret that has yet to be created."""
    is_secret = file.kind == "secret"
    usual = _default(SecretEntry, "key")
    secret = {"namespace": file.namespace, "name": file.name if is_secret else f"{name}-kubeconfig"}
    if is_secret and file.key != usual:
        secret["key"] = file.key
    checks = zip((fields.label_name, fields.object_name, fields.data_key), secret.values(), strict=False)
    if not all(is_valid(check, value) for check, value in checks):
        draft.comment((*base, "kubeconfig"), "placeholder: the Secret in the input has an invalid name")
        return {"kubeconfig": f"kubeconfigs/{name}"}
    if not is_secret:
        text = f"placeholder: create this Secret from key {shown(file.key)} of ConfigMap {shown(file.name)}"
        draft.comment((*base, "kubeconfigSecret"), text)
    return {"kubeconfigSecret": secret}


def _shared(draft: _TopologyDraft, nodes: list[Program]) -> None:
    """Set controllers and ignoreLabels: of the topology if all lowers have the same, else of each lower."""
    rows: tuple[tuple[str, Callable[[Program], list[str]], Any], ...] = (
        ("controllers", _controllers, _default(TopologyFile, "controllers")),
        ("ignoreLabels", _ignored, _default(TopologyFile, "ignore_labels")),
    )
    for key, read, default in rows:
        values = [read(node) for node in nodes]
        is_common = len({frozenset(value) for value in values}) <= 1
        for index, (node, value) in enumerate(zip(nodes, values, strict=True)):
            is_default = set(value) == set(default)
            target = key if is_common else f"lowers[{index}].{key}"
            if not is_default:
                (draft.data if is_common else draft.data["lowers"][index])[key] = value
            _set_shared_verdicts(node, key, target, value, is_default=is_default)


def _set_shared_verdicts(node: Program, key: str, target: str, value: list[str], *, is_default: bool) -> None:
    """Set the verdicts about the flags of controllers and ignoreLabels."""
    ending = ": in all the default, not written" if is_default else ""
    if key == "ignoreLabels":
        node.set_verdict(
            "--ignore-labels", f"-> {target}: {flow(value)}{_left_out(node, 'ignore-labels', value)}{ending}"
        )
        return
    controllers = [one for one in value if one != _ACCOUNT]
    account = ", and ServiceAccount by --enable-serviceaccount" if _ACCOUNT in value else ""
    invalid = _left_out(node, "enable-controllers", _CONTROLLERS)
    node.set_verdict("--enable-controllers", f"-> {target}: {flow(controllers)}{account}{invalid}{ending}")
    without = "" if account else "without "
    node.set_verdict("--enable-serviceaccount", f"-> {target}: {without}{_ACCOUNT}{ending}")


def _left_out(program: Program, flag: str, known: Collection[str]) -> str:
    """Return the part of a verdict about names in the list of a flag that are not known."""
    names = {one.strip() for one in (program.flags.get(flag) or "").split(",")}
    invalid = names - {"", *known}
    return f" ({len(invalid)} invalid left out)" if invalid else ""


def _controllers(program: Program) -> list[str]:
    """Return the controllers of a virtual node. tensile-kube ignores unknown names too."""
    text = program.flags.get("enable-controllers")
    names = _CONTROLLERS if text is None else dict.fromkeys(one.strip() for one in text.split(","))
    has_account = truth(program.flags.get("enable-serviceaccount") or "true") is not False
    return [_CONTROLLERS[one] for one in names if one in _CONTROLLERS] + ([_ACCOUNT] if has_account else [])


def _ignored(program: Program) -> list[str]:
    """Return the labels that a virtual node ignores."""
    text = program.flags.get("ignore-labels")
    return list(_default(TopologyFile, "ignore_labels")) if text is None else label_keys(text)


def _upper(draft: _TopologyDraft) -> None:
    """Set the upper cluster: that of the virtual nodes, else that of the other programs."""
    upper = _upper_access(draft, next(iter((*draft.of(VIRTUAL_NODE), *draft.programs)), None))
    for flag, target in _UPPER_RATES:
        rate = _largest_rate(draft, flag, target)
        upper |= {} if rate is None else {target: rate}
    if upper:
        draft.data["upper"] = upper
    for program in draft.programs:
        key, value = _kubeconfig(program)
        if key and key not in program.verdicts:
            program.set_verdict(key, _verdict_of_upper(program, value, upper.get("kubeconfig")))


def _upper_access(draft: _TopologyDraft, program: Program | None) -> dict[str, Any]:
    """Return `kubeconfig` of the upper cluster, as a program has it; {} for an engine in that cluster."""
    if program is None:
        draft.comment(("upper",), "decide: an engine outside of the upper cluster needs upper.kubeconfig")
        return {}
    path_text = _kubeconfig(program)[1]
    if program.is_in_pod:
        if path_text:
            draft.comment(("upper",), "decide: left out, as an engine in the upper cluster uses its ServiceAccount")
        return {}
    path = file_path(path_text)
    if path is None:
        text = "placeholder: the input does not have the path of this kubeconfig; the default was ~/.kube/config"
        draft.comment(("upper", "kubeconfig"), text)
    elif path.startswith("~"):
        draft.comment(("upper", "kubeconfig"), "decide: write out the home directory")
    return {"kubeconfig": path or "kubeconfigs/upper"}


def _kubeconfig(program: Program) -> tuple[str, str | None]:
    """Return where a program has its kubeconfig of the upper cluster from, and its path."""
    if program.process.program == VIRTUAL_NODE:
        return program.setting("kubeconfig", "KUBECONFIG")
    return ("--kubeconfig", program.flags["kubeconfig"]) if "kubeconfig" in program.flags else ("", None)


def _verdict_of_upper(program: Program, value: str | None, upper: str | None) -> str:
    if program.is_in_pod:
        return "not needed: an engine in the upper cluster uses its ServiceAccount"
    if value == upper:
        return f"-> upper.kubeconfig: {upper}"
    if file_path(value) is None:
        return "no path of a file; it was left out"
    if program.process.program != VIRTUAL_NODE:
        return "not needed: the engine reaches the upper cluster once for all of its parts"
    return "not written: a topology has one upper cluster; if this is another one, import its programs on their own"


def _largest_rate(draft: _TopologyDraft, flag: str, target: str) -> int | None:
    """Return the largest rate of all virtual nodes, None for the default."""
    path, default = ("upper", target), _default(Upper, target)
    nodes = [node for node in draft.of(VIRTUAL_NODE) if flag in node.flags]
    rates = [_rate(node, flag, path, default).get(target, default) for node in nodes]
    largest = max(rates, default=default)
    for node, rate in zip(nodes, rates, strict=True):
        if rate < largest and rate != default:
            node.set_verdict(f"--{flag}", f"not written: upper.{target} is the largest of all virtual nodes, {largest}")
    return None if largest == default else largest


_OF_KUBELET: tuple[tuple[str, str, str], ...] = (
    ("nodeAddress", "", "VKUBELET_POD_IP"),
    ("tlsCertFile", "", "APISERVER_CERT_LOCATION"),
    ("tlsKeyFile", "", "APISERVER_KEY_LOCATION"),
    ("clientCAFile", "client-verify-ca", "APISERVER_CA_CERT_LOCATION"),
)
"""Fields of the kubelet API, and the flag and the variable of virtual-node for each."""


def _kubelet(draft: _TopologyDraft, nodes: list[Program]) -> None:
    """Set the kubelet API: files and address, if they can be the same for all virtual nodes."""
    kubelet: dict[str, str] = {}
    for target, flag, variable in _OF_KUBELET:
        check = _address if target == "nodeAddress" else file_path
        values = {check(node.setting(flag, variable)[1]) for node in nodes if not node.is_in_pod}
        if len(values) == 1 and None not in values:
            kubelet[target] = str(values.pop())
    if not {"tlsCertFile", "tlsKeyFile"} <= set(kubelet):
        kubelet = {target: value for target, value in kubelet.items() if not target.startswith("tls")}
    for node in nodes:
        for target, flag, variable in _OF_KUBELET:
            key, _ = node.setting(flag, variable)
            if key:
                node.set_verdict(key, _verdict_of_kubelet(node, target, kubelet.get(target)))
    if kubelet:
        draft.data["kubelet"] = kubelet


def _address(text: str | None) -> str | None:
    return text if text and is_valid(fields.reachable_address, text) else None


def _verdict_of_kubelet(node: Program, target: str, value: str | None) -> str:
    if node.is_in_pod and target == "nodeAddress":
        return "not needed: `tensile manifests` sets POD_IP, which the engine reads too"
    if node.is_in_pod:
        return "not needed: for an engine in a pod, the upper cluster issues certificates and has the CA of clients"
    reason = "the engine has one for all virtual nodes, and theirs differ, are incomplete or cannot be read"
    return verdict_of(f"kubelet.{target}", value, None, reason)


def _webhook(draft: _TopologyDraft) -> None:
    """Set the webhook: its settings from its process, how it is reached from its configuration in the upper cluster."""
    programs, hooks = draft.of(WEBHOOK), draft.installation.hooks
    if not programs and not hooks:
        return
    webhook: dict[str, Any] = {"enabled": True}
    for program in programs[:1]:
        webhook |= _of_webhook(program)
    for program in programs[1:]:
        for key in program.flags:
            program.set_verdict(f"--{key}", "not written: the engine has one webhook, and another one is above")
    address = _webhook_address(draft, programs[0] if programs else None)
    first_keys = {key: webhook[key] for key in ("enabled", "bind", "port") if key in webhook}
    draft.data["webhook"] = {**first_keys, **address, **webhook}
    for hook in hooks:
        for path, verdict in _of_hook(hook, address):
            draft.note(hook.title, line_of(show_path(path), None, verdict))
        draft.note(hook.title, "delete it before its server stops: with failurePolicy Fail, no pod could be created")


def _of_webhook(program: Program) -> dict[str, Any]:
    """Return the settings of a webhook's process."""
    found: dict[str, Any] = {}
    if program.is_in_pod:
        for flag in ("address", "port"):
            program.set_verdict(
                f"--{flag}", "not needed: the Service of `tensile manifests` forwards to webhook.port, 8443"
            )
        for flag in ("tlscert", "tlskey"):
            program.set_verdict(
                f"--{flag}", "not needed: the engine makes and renews a certificate, and registers its CA"
            )
    else:
        found |= _webhook_listener(program)
    if (text := program.flags.get("ignore-selector-keys")) is not None:
        default = list(_default(Webhook, "ignore_selector_keys"))
        found |= program.entry("--ignore-selector-keys", ("webhook", "ignoreSelectorKeys"), label_keys(text), default)
        program.verdicts["--ignore-selector-keys"] += _left_out(program, "ignore-selector-keys", label_keys(text))
    return found


def _webhook_listener(program: Program) -> dict[str, Any]:
    """Return where a webhook on a machine listens, and its certificate."""
    found: dict[str, Any] = {}
    address = program.flags.get("address")
    if address is not None:
        value = address if is_valid(fields.address, address) else None
        found |= program.entry("--address", ("webhook", "bind"), value, _default(Webhook, "bind"), "no IP address")
    port_number = port(program.flags.get("port") or str(_PORT_OF_WEBHOOK))
    found |= program.entry("--port", ("webhook", "port"), port_number, _default(Webhook, "port"), "no port")
    files = {target: file_path(program.flags.get(flag)) for target, flag in _FILES_OF_WEBHOOK.items()}
    for target, flag in _FILES_OF_WEBHOOK.items():
        value = files[target] if all(files.values()) else None
        reason = "only one of certificate and key, so that the engine makes its own"
        found |= program.entry(f"--{flag}", ("webhook", target), value, None, reason)
    return found


def _webhook_address(draft: _TopologyDraft, program: Program | None) -> dict[str, Any]:
    """Return `service` or `url` of the webhook, with a comment."""
    entries = [(hook, entry) for hook in draft.installation.hooks for entry in hook.entries(("webhooks",))]
    urls = [hook.text((*entry, "clientConfig", "url")) for hook, entry in entries]
    services = [
        {key: hook.text((*entry, "clientConfig", "service", key)) for key in ("namespace", "name")}
        for hook, entry in entries
        if hook.keys((*entry, "clientConfig", "service"))
    ]
    url = next((one for one in urls if one and is_valid(fields.url, one)), None)
    is_outside = program is not None and not program.is_in_pod
    if (is_outside or program is None) and url and not services:
        draft.comment(("webhook", "url"), "decide: has to lead to the engine, on webhook.port")
        return {"url": url}
    if is_outside and services and _is_service(services[0]):
        draft.comment(("webhook", "service"), "decide: has to lead to the engine, on webhook.port")
        return {"service": services[0]}
    if is_outside:
        text = "decide: how does the upper apiserver reach it? without service or url, it never calls it"
        draft.comment(("webhook", "enabled"), text)
        return {}
    draft.comment(("webhook", "service"), "placeholder: the Service that `tensile manifests` makes, in its namespace")
    return {"service": {"namespace": NAMESPACE, "name": SERVICE}}


def _is_service(service: Mapping[str, str]) -> bool:
    return is_valid(fields.label_name, service["namespace"]) and is_valid(fields.alias_name, service["name"])


_OWN_HOOK = "not needed: the engine registers its own configuration, tensile-TOPOLOGY"
_OF_HOOK = {
    "failurePolicy": "not written: the engine registers Ignore, and prepares a pod later if it was not called",
    "namespaceSelector": "no equivalent: list the namespaces to leave out in excludeNamespaces",
    "objectSelector": 'not needed: only pods with label virtual-pod: "true" are sent to the webhook',
}


def _of_hook(hook: Document, address: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield each field of a webhook configuration, and what became of it."""
    written = f"-> webhook.{flow(dict(address))[1:-1]}" if address else "cannot be used; write webhook.service or url"
    for entry in hook.entries(("webhooks",)):
        for key in hook.keys(entry):
            if key != "clientConfig":
                yield (*entry, key), _OF_HOOK.get(key, _OWN_HOOK)
        for key in hook.keys((*entry, "clientConfig")):
            is_address = key in ("service", "url")
            yield (
                (*entry, "clientConfig", key),
                written if is_address else "not needed: the engine registers its own CA",
            )


def _descheduler(draft: _TopologyDraft) -> None:
    """Set the descheduler: its flags, and the policy that it has or that is given beside."""
    programs, policies = draft.of(DESCHEDULER), list(draft.installation.policies)
    section: dict[str, Any] = {"enabled": True}
    for program in programs[:1]:
        file = program.file(program.flags.get("policy-config-file") or "")
        nested = draft.installation.nested(file) if file else None
        policies = [nested, *policies] if nested is not None and nested.kind == "DeschedulerPolicy" else policies
        is_read = "read: see its notes below" if policies else "not read: give the file too, with -f"
        program.set_verdict("--policy-config-file", is_read)
        section |= _of_descheduler(program)
    for program in programs[1:]:
        for key in program.flags:
            program.set_verdict(f"--{key}", "not written: the engine has one descheduler, and another one is above")
    if not programs and not policies:
        return
    for policy in policies[:1]:
        section |= _of_policy(draft, policy)
    for policy in policies[1:]:
        draft.note(policy.title, "not written: the engine has one policy, and another one is above")
    section["recreateBarePods"] = False
    text = "decide: true moves pods without a controller, as tensile-kube does; it needs more permissions"
    draft.comment(("descheduler", "recreateBarePods"), text)
    order = ("enabled", "interval", "pendingLongerThan", "maxEvictionsPerNode", "dryRun", "recreateBarePods")
    draft.data["descheduler"] = {key: section[key] for key in order if key in section}


def _of_descheduler(program: Program) -> dict[str, Any]:
    """Return the settings of a descheduler's process."""
    found: dict[str, Any] = {}
    if (text := program.flags.get("descheduling-interval")) is not None:
        seconds = go_seconds(text)
        value = duration(max(seconds, _LEAST_INTERVAL)) if seconds else None
        default = fields.write_duration(_default(Descheduler, "interval"))
        path = ("descheduler", "interval")
        found |= program.entry("--descheduling-interval", path, value, default, "no interval, or a single pass")
    if (text := program.flags.get("max-pods-to-evict-per-node")) is not None:
        path, default = ("descheduler", "maxEvictionsPerNode"), _default(Descheduler, "max_evictions_per_node")
        number = whole(text)
        limit = number if number in range(1, _MOST + 1) else None
        reason = "no whole number" if number is None else f"not between 1 and {_MOST}"
        found |= program.entry("--max-pods-to-evict-per-node", path, limit, default, reason)
    is_dry_run = truth(program.flags.get("dry-run") or "false")
    found |= program.entry("--dry-run", ("descheduler", "dryRun"), is_dry_run, False, "neither true nor false")
    if is_dry_run:
        program.set_verdict("--dry-run", "-> descheduler.dryRun: true (tensile-kube ignores this flag, and evicts)")
    return found


def _of_policy(draft: _TopologyDraft, policy: Document) -> dict[str, Any]:
    """Return the settings of a policy, of which tensile-kube runs strategy PodLifeTime only."""
    base: Path = ("strategies", "PodLifeTime")
    strategies, age = policy.keys(("strategies",)), (*base, "params", "maxPodLifeTimeSeconds")
    unused_paths: list[Path] = [("strategies", name) for name in strategies if name != "PodLifeTime"]
    unused_paths += [(key,) for key in policy.keys(()) if key not in ("apiVersion", "kind", "metadata", "strategies")]
    for path in unused_paths:
        draft.note(policy.title, f"{show_path(path)}: not needed: tensile-kube does not use it")
    is_on = truth(policy.text((*base, "enabled")) or "false") is True and policy.node(age) is not None
    missing = "" if is_on else ", as without PodLifeTime and its age tensile-kube moves nothing"
    draft.note(policy.title, f"{show_path((*base, 'enabled'))} -> descheduler.enabled: {flow(is_on)}{missing}")
    if policy.node(age) is None:
        return {"enabled": is_on}
    seconds = whole(policy.text(age)) or 0
    value = duration(seconds) if 0 < seconds <= LONGEST_SECONDS else None
    default = fields.write_duration(_default(Descheduler, "pending_longer_than"))
    verdict = verdict_of("descheduler.pendingLongerThan", value, default, "no number of seconds")
    draft.note(policy.title, line_of(show_path(age), policy.text(age), verdict))
    return {"enabled": is_on} | ({} if value in (None, default) else {"pendingLongerThan": value})


def _ports(draft: _TopologyDraft, nodes: list[Program]) -> None:
    """Take back the ports that several would have: each needs its own in one engine."""
    first_port = _default(TopologyFile, "kubelet").port
    used = {first_port + index: "a virtual node" for index in range(len(draft.data["lowers"]) or 1)}
    used |= {_default(Telemetry, "port"): "telemetry"}
    if "extender" in draft.data:
        used[_default(TopologyFile, "extender").port] = "the extender"
    webhook = draft.data.get("webhook", {})
    if (webhook_port := webhook.get("port")) in used:
        del webhook["port"]
        draft.of(WEBHOOK)[0].set_verdict(
            "--port", f"not written: {used[webhook_port]} has this port, and each needs its own"
        )
    used = {number: user for number, user in used.items() if user != "a virtual node"}
    if webhook:
        used[webhook.get("port", _default(Webhook, "port"))] = "the webhook"
    for index, (node, lower) in enumerate(zip(nodes, draft.data["lowers"], strict=bool(nodes))):
        kubelet_port = lower.get("node", {}).get("kubeletPort")
        if kubelet_port in used:
            del lower["node"]["kubeletPort"]
            node.set_verdict("KUBELET_PORT", f"not written: {used[kubelet_port]} has this port, and each needs its own")
            if not lower["node"]:
                del lower["node"]
        elif kubelet_port is not None:
            used[kubelet_port] = f"lowers[{index}]"
