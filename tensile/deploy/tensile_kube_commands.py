"""The command lines of tensile-kube's programs: which flags they have, how they parse them, and what became of each.

A flag or variable with an entry in the topology is known here by name only: importing.py maps it. One without an entry
has its verdict here: why it is not needed any more, or what to do instead. The programs parse flags with Go's pflag,
where a bool takes its value only after "=", and the last of several equal flags counts.

Command lines come from manifests, from shell scripts and from systemd units. Of a script, only the commands that run a
program of tensile-kube are read, with the variables that are set before them.

Messages contain the value of a known flag or variable only if it is one plain word: an unknown one may be a secret, and
so may be the content of a file in place of its path.
"""

import re
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from tensile.errors import TensileError
from tensile.text import shown
from tensile.topology import fields
from tensile.topology.messages import closest
from tensile.yaml_document import Path, flow, show_path

VIRTUAL_NODE, WEBHOOK, DESCHEDULER, SCHEDULER = "virtual-node", "webhook", "descheduler", "multi-scheduler"
PROGRAMS = {
    VIRTUAL_NODE: VIRTUAL_NODE,
    WEBHOOK: WEBHOOK,
    "virtual-webhook": WEBHOOK,
    DESCHEDULER: DESCHEDULER,
    SCHEDULER: SCHEDULER,
}
"""The programs by the names of their binaries and images."""


class Flag(NamedTuple):
    """A flag or variable: its verdict ("": it is mapped to the topology), and whether it is a bool."""

    verdict: str = ""
    is_bool: bool = False


class Given(NamedTuple):
    """A flag of a command line. `value` is None if it needs one and has none; `flag` is None if it is unknown."""

    name: str
    value: str | None
    flag: Flag | None


class CommandLine(NamedTuple):
    """The flags of a command line in their order, and the words that are none."""

    flags: tuple[Given, ...]
    arguments: tuple[str, ...]


_MAPPED = Flag()
_LOG = Flag("not needed: `tensile run --log-level` sets what is logged")
_LOG_SWITCH = _LOG._replace(is_bool=True)
_OWN_ACCESS = "not needed: the engine reaches the upper cluster once for all of its parts"
_KLOG = {
    **dict.fromkeys(("v", "vmodule", "log-dir", "log-file", "log-file-max-size", "log-backtrace-at"), _LOG),
    **dict.fromkeys(("stderrthreshold", "log-flush-frequency"), _LOG),
    **dict.fromkeys(("logtostderr", "alsologtostderr", "skip-headers", "skip-log-headers"), _LOG_SWITCH),
    **dict.fromkeys(("add-dir-header", "one-output"), _LOG_SWITCH),
}
_AUTHENTICATION = "not needed: callers of the kubelet API are always checked by the upper cluster"
_OF_VIRTUAL_NODE = {
    **dict.fromkeys(("kubeconfig", "client-kubeconfig", "nodename", "provider", "taint", "ignore-labels"), _MAPPED),
    **dict.fromkeys(("client-qps", "client-burst", "kube-api-qps", "kube-api-burst"), _MAPPED),
    **dict.fromkeys(("enable-controllers", "client-verify-ca"), _MAPPED),
    "enable-serviceaccount": Flag(is_bool=True),
    "disable-taint": Flag(is_bool=True),
    "namespace": Flag(
        "no equivalent: the pods of all namespaces are mirrored; list those to leave out in excludeNamespaces"
    ),
    "cluster-domain": Flag("not needed: a lower pod has the DNS settings of its own cluster"),
    "os": Flag("not needed: the virtual node has the operating system of the real nodes"),
    "provider-config": Flag("not needed: tensile-kube does not read it"),
    "metrics-addr": Flag(
        "not needed: the metrics of pods are on the kubelet port of their node, those of the engine on telemetry.port"
    ),
    "pod-sync-workers": Flag("not needed: the engine has no fixed number of workers"),
    "enable-node-lease": Flag("not needed: every virtual node has a Lease", is_bool=True),
    "full-resync-period": Flag("not needed: the engine watches, and lists again only after an expired watch"),
    "startup-timeout": Flag("not needed: the engine retries a cluster that it cannot reach"),
    "no-verify-clients": Flag("no equivalent: callers of the kubelet API always have to authenticate", is_bool=True),
    "authentication-token-webhook": Flag(_AUTHENTICATION, is_bool=True),
    "authentication-token-webhook-cache-ttl": Flag(_AUTHENTICATION),
    "authorization-webhook-cache-authorized-ttl": Flag(_AUTHENTICATION),
    "authorization-webhook-cache-unauthorized-ttl": Flag(_AUTHENTICATION),
    "log-level": Flag("not written: give it to the engine, as `tensile run --log-level`"),
    **{f"klog.{name}": flag for name, flag in _KLOG.items()},
}
_OF_WEBHOOK = {
    **dict.fromkeys(("address", "port", "tlscert", "tlskey", "kubeconfig", "ignore-selector-keys"), _MAPPED),
    "CA": Flag("no equivalent: the webhook answers every caller; an answer contains only what the caller sent"),
    "master": Flag("no equivalent: the server is that of upper.kubeconfig"),
    "incluster": Flag(_OWN_ACCESS, is_bool=True),
    "version": Flag("not needed: `tensile --version`", is_bool=True),
    **_KLOG,
}
_OF_DESCHEDULER = {
    **dict.fromkeys(("descheduling-interval", "policy-config-file", "kubeconfig"), _MAPPED),
    "max-pods-to-evict-per-node": _MAPPED,
    "dry-run": Flag(is_bool=True),
    "node-selector": Flag(
        "no equivalent: pods of every virtual node are moved; set descheduler.enabled: false if that is too many"
    ),
    "evict-local-storage-pods": Flag(
        "not needed: only pods that are unschedulable are moved, and these have no data in emptyDir volumes yet",
        is_bool=True,
    ),
    **_KLOG,
}
_OF_SCHEDULER = {
    **dict.fromkeys(("config", "kubeconfig"), _MAPPED),
    **{
        name: Flag("not needed here: a flag of kube-scheduler, to keep for the stock one", is_bool=True)
        for name in (
            "leader-elect",
            "profiling",
            "contention-profiling",
            "authentication-skip-lookup",
            "authentication-tolerate-lookup-failure",
        )
    },
    **_KLOG,
}
FLAGS: Mapping[str, Mapping[str, Flag]] = {
    VIRTUAL_NODE: _OF_VIRTUAL_NODE,
    WEBHOOK: _OF_WEBHOOK,
    DESCHEDULER: _OF_DESCHEDULER,
    SCHEDULER: _OF_SCHEDULER,
}
"""The flags of each program. The multi-scheduler has all others of kube-scheduler too."""

OF_WEBHOOK_ONLY = frozenset(("tlscert", "tlskey", "ignore-selector-keys", "incluster", "CA"))
"""Flags by which a program called `webhook`, as many are, is recognized as that of tensile-kube."""

_INSIDE = "not needed: a pod learns the address of its apiserver from Kubernetes"
VARIABLES: Mapping[str, Mapping[str, Flag]] = {
    VIRTUAL_NODE: {
        **dict.fromkeys(("KUBECONFIG", "KUBELET_PORT", "DEFAULTNODE_NAME", "VKUBELET_NODE_LABEL"), _MAPPED),
        **dict.fromkeys(("VKUBELET_TAINT_KEY", "VKUBELET_TAINT_VALUE", "VKUBELET_TAINT_EFFECT"), _MAPPED),
        **dict.fromkeys(("APISERVER_CERT_LOCATION", "APISERVER_KEY_LOCATION", "APISERVER_CA_CERT_LOCATION"), _MAPPED),
        "VKUBELET_POD_IP": _MAPPED,
        "VKUBELET_EXTERNAL_POD_IP": Flag("no equivalent: a virtual node publishes one address, kubelet.nodeAddress"),
        **dict.fromkeys(("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"), Flag(_INSIDE)),
    },
    WEBHOOK: {},
    DESCHEDULER: {},
    SCHEDULER: {},
}
"""The environment variables that each program reads."""

_MATTERS = re.compile(r"^\s*(?:export\s+)?\w+=|" + "|".join(map(re.escape, PROGRAMS)))
"""A line of a script that assigns a variable or may run one of the programs."""
_MOST_QUOTED = 100
"""The most lines that one quoted text continues over."""
_SUBCOMMANDS = frozenset(("version", "providers", "help", "completion"))
_WRAPPERS = frozenset(
    (
        "do",
        "then",
        "export",
        "nohup",
        "sudo",
        "exec",
        "env",
        "time",
        "nice",
        "setsid",
        "timeout",
        "docker",
        "podman",
        "nerdctl",
    )
)
"""Commands that run the command after them, or set its variables."""
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SHELL_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_DESCRIPTOR = re.compile(r"(?<!\S)[0-9]+(?=[<>])")
_UNIT_COMMAND = re.compile(r"^\s*ExecStart=[-@:+!]*")
_UNIT_VARIABLE = re.compile(r"^\s*Environment=")
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=~$()-]{0,120}")
_LONGEST_PATH = 512
_NOT_IN_PATHS = frozenset("{}\"'$`")
_PORTS = range(1, 65536)
_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_SECONDS = 36500 * 86400
"""The longest duration of a topology."""


def parse(program: str, words: Iterable[str]) -> CommandLine:
    """Parse the words after a program's name, as pflag does."""
    pending, flags, arguments = deque(words), list[Given](), list[str]()
    while pending:
        word = pending.popleft()
        if word == "--":
            arguments.extend(pending)
            break
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        name, has_value, value = _split(word, FLAGS[program])
        flag = FLAGS[program].get(name)
        if not has_value:
            value = _next(flag, pending)
        flags.append(Given(name, value, flag))
    return CommandLine(tuple(flags), tuple(arguments))


def _split(word: str, known: Mapping[str, Flag]) -> tuple[str, bool, str | None]:
    """Return the name of a flag, whether the same word has its value, and that value. `-v5` is short for `--v=5`."""
    name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
    if not word.startswith("--") and len(name) > 1 and name[0] in known:
        return name[0], True, name[1:] + equals + value
    normal = name.replace("_", "-")
    return (normal if word.startswith("--") or normal in known else f"-{normal}"), bool(equals), value


def _next(flag: Flag | None, pending: deque[str]) -> str | None:
    """Return the value of a flag that has none in its own word, and remove it from the words that follow.

    For an unknown flag, the next word is taken as its value unless it is a flag itself.
    """
    if flag is not None and flag.is_bool:
        return "true"
    if not pending or (flag is None and pending[0].startswith("-")):
        return None
    return pending.popleft()


def runs(line: CommandLine) -> bool:
    """Report whether a command line runs the program, instead of printing its version or its help."""
    wants_help = any(given.name in ("help", "version", "-h") for given in line.flags)
    return not wants_help and not set(line.arguments[:1]) & _SUBCOMMANDS


def truth(text: str) -> bool | None:
    """Return the value of a bool as Go parses it, None if it is none."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    return False if text in ("0", "f", "F", "false", "FALSE", "False") else None


class Variable(NamedTuple):
    """An environment variable. `value` is None if the input does not contain it, and `origin` says why.

    `is_shared` is set for a variable of a script, which need not be meant for the program.
    """

    name: str
    value: str | None
    origin: str = ""
    is_shared: bool = False


class MountedFile(NamedTuple):
    """What a path leads to: `kind` is secret, configmap, host (a path of the machine) or image (of the container).

    `key` is that in the Secret or ConfigMap, `name` else the path.
    """

    kind: str
    namespace: str
    name: str
    key: str = ""


class Invocation(NamedTuple):
    """A program that runs: its words after the program's name, its variables, and where it was found.

    `file` returns what a path in its container leads to; it is None on a machine. `unread` counts words before the
    program whose meaning is not known.
    """

    program: str
    words: tuple[str, ...]
    variables: tuple[Variable, ...]
    origin: str
    file: Callable[[str], MountedFile] | None = None
    unread: int = 0


def of_script(name: str, text: str) -> list[Invocation]:
    """Return the programs that a script or a unit runs; `name` is the file's.

    Raises TensileError if it runs none, or if quotes are not closed that matter.
    """
    shared: dict[str, str] = {}
    found = list[Invocation]()
    lines = _lines(text)
    for number, line in lines:
        try:
            segments = _commands(line, lines)
        except ValueError:
            raise TensileError(f"{name}:{number}: quotes that are not closed") from None
        found += filter(None, (of_words(words, shared, f"{name}:{number}") for words in segments))
    if not found:
        raise TensileError(f"{name}: neither manifests (apiVersion, kind) nor a command line of {', '.join(FLAGS)}")
    return found


def _commands(line: str, following: Iterator[tuple[int, str]]) -> list[list[str]]:
    """Return the commands of a line. Open quotes that matter continue on the `following` lines, which are consumed.

    They matter in an assignment, or beside a name of one of the programs. Text with an apostrophe, as in a
    here-document, has no commands. Raises ValueError for quotes that matter and that no line closes.
    """
    try:
        return list(simple_commands(line))
    except ValueError:
        if not _MATTERS.search(line):
            return []
    for _, more in islice(following, _MOST_QUOTED):
        line += f"\n{more}"
        with suppress(ValueError):
            return list(simple_commands(line))
    raise ValueError(line)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a script, with the number of each; a backslash at the end continues a line."""
    pending, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if pending else number
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        yield first, _UNIT_VARIABLE.sub("export ", _UNIT_COMMAND.sub("", pending + line))
        pending = ""
    if pending:
        yield first, pending


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the simple commands of a line as words, without redirections. Raises ValueError for open quotes."""
    lexer = shlex.shlex(_DESCRIPTOR.sub("", _COMMENT.sub("", line)), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, is_target = list[str](), False
    for token in lexer:
        is_operator = bool(token) and set(token) <= set(";&|<>")
        if is_operator and set(token) & set("<>"):
            is_target = True
        elif is_operator:
            yield words
            words = []
        elif not is_target:
            words.append(token)
        is_target = is_target and is_operator
    yield words


def program_of(word: str) -> str:
    """Return the name of a program or an image, without its path, tag and digest."""
    return PurePosixPath(word.partition("@")[0]).name.partition(":")[0]


def of_words(words: list[str], shared: dict[str, str], origin: str) -> Invocation | None:
    """Return the program that a simple command runs, None if it runs none of tensile-kube.

    `shared` are the variables of the script. Assignments of a command without a program are added to them.
    """
    assigned: dict[str, str] = {}
    for index, word in enumerate(words):
        if found := _ASSIGNED.fullmatch(word):
            assigned[found[1]] = _shell_expanded(found[2], {**shared, **assigned})
        elif program_of(word) in PROGRAMS:
            process = _started(words, index, shared, assigned)._replace(origin=origin)
            return process if runs(parse(process.program, process.words)) else None
        elif index == len(assigned) and word not in _WRAPPERS:
            return None
    shared.update(assigned)
    return None


def _started(words: list[str], index: int, shared: Mapping[str, str], assigned: Mapping[str, str]) -> Invocation:
    """Return the program at a place of a simple command, with the variables of the script and of the command."""
    values = {**shared, **assigned}
    common = (Variable(name, value, "", True) for name, value in shared.items() if name not in assigned)
    own_variables = (Variable(name, value) for name, value in assigned.items())
    unread = index - len(assigned) - sum(word in _WRAPPERS for word in words[:index])
    arguments = tuple(part for word in words[index + 1 :] for part in _shell_words(word, values))
    return Invocation(
        PROGRAMS[program_of(words[index])], arguments, (*common, *own_variables), "", None, max(unread, 0)
    )


def _shell_words(word: str, values: Mapping[str, str]) -> list[str]:
    """Return a word with the values of its variables: several words for a variable that holds flags."""
    expanded = _shell_expanded(word, values)
    return expanded.split() if _SHELL_VARIABLE.fullmatch(word) and expanded.lstrip().startswith("-") else [expanded]


def _shell_expanded(text: str, values: Mapping[str, str]) -> str:
    """Replace $NAME and ${NAME} by their values; unknown ones stay."""
    return _SHELL_VARIABLE.sub(lambda found: values.get(found[1] or found[2], found[0]), text)


@dataclass(slots=True)
class Program:
    """A process with its flags, and the verdict about each flag and variable."""

    process: Invocation
    flags: dict[str, str | None] = field(init=False)
    variables: dict[str, str | None] = field(init=False)
    verdicts: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        line = parse(self.process.program, self.process.words)
        self.flags = {given.name: given.value for given in line.flags}
        self.variables = {one.name: one.value for one in self.process.variables}

    @property
    def is_in_pod(self) -> bool:
        """Whether it runs in a container."""
        return self.process.file is not None

    def set_verdict(self, key: str, verdict: str) -> None:
        """Set the verdict about a flag, as --NAME, or about a variable; not about one that is not given."""
        self.verdicts[key] = verdict

    def setting(self, flag: str, variable: str) -> tuple[str, str | None]:
        """Return the key and the value of a setting that a flag or a variable has; ("", None) for neither."""
        if flag in self.flags:
            self.set_verdict(variable, f"not needed: --{flag} takes precedence")
            return f"--{flag}", self.flags[flag]
        return (variable, self.variables[variable]) if variable in self.variables else ("", None)

    def file(self, path: str) -> MountedFile | None:
        """Return what a path leads to in its container, None on a machine."""
        return self.process.file(path) if self.process.file and path else None

    def entry(self, key: str, path: Path, value: Any, default: Any, otherwise: str = "invalid") -> dict[str, Any]:
        """Set the verdict about a key, and return the entry of the topology: {} for the default.

        Args:
            key: the flag or variable.
            path: the path in the topology.
            value: the value for it, None if that cannot be written.
            default: the default of the topology.
            otherwise: why the value is None.
        """
        self.set_verdict(key, verdict_of(show_path(path), value, default, otherwise))
        return {} if value in (None, default) else {str(path[-1]): value}

    def notes(self) -> Iterator[str]:
        """Yield a line for each flag and variable in their order, and for words that are none."""
        process = self.process
        line = parse(process.program, process.words)
        last = {given.name: index for index, given in enumerate(line.flags)}
        for index, given in enumerate(line.flags):
            key = given.name if given.name.startswith("-") else f"--{given.name}"
            verdict = "not needed: given again, and the last one counts"
            if last[given.name] == index:
                verdict = self._verdict(key, given.flag, given.value, FLAGS[process.program])
            yield line_of(key, given.value if given.flag else None, verdict)
        for variable in process.variables:
            flag = VARIABLES[process.program].get(variable.name)
            if flag is None and variable.is_shared:
                continue
            verdict = self._verdict(variable.name, flag, variable.value or "", VARIABLES[process.program])
            is_mapped = flag is None or not flag.verdict
            if (
                variable.value is None
                and is_mapped
                and not self.verdicts.get(variable.name, "").startswith("not needed")
            ):
                verdict = f"not read: {variable.origin or 'the input does not have its value'}"
            yield line_of(shown(variable.name), variable.value if flag else None, verdict)
        if unread := len(line.arguments) + process.unread:
            yield f"{unread} other words of the command line: not read"

    def _verdict(self, key: str, flag: Flag | None, value: str | None, known: Iterable[str]) -> str:
        program = self.process.program
        if flag is None and not key.startswith("-"):
            return f"not needed: {program} itself does not read it"
        if flag is None and program == SCHEDULER:
            return "not needed here: a flag of kube-scheduler, to keep for the stock one"
        if flag is None:
            return f"not a flag of {program}, left out{closest(key.lstrip('-'), known)}"
        if value is None:
            return "given without a value; it was left out"
        return flag.verdict or self.verdicts.get(key) or "empty, as if it was not given"


def verdict_of(path: str, value: Any, default: Any, otherwise: str) -> str:
    """Return what became of a value: written, left out as the default, or `otherwise` if it is None."""
    if value is None:
        return f"{otherwise}; {path} has its default" + ("" if default is None else f", {flow(default)}")
    return f"the default of {path}: not written" if value == default else f"-> {path}: {flow(value)}"


def line_of(key: str, value: str | None, verdict: str) -> str:
    """Return the line about a flag, a variable or a field. A value that is no plain word is left out."""
    setting = f"{shown(key)}={value}" if value and _PLAIN.fullmatch(value) else shown(key)
    return f"{setting} {verdict}" if verdict.startswith("->") else f"{setting}: {verdict}"


def is_valid(check: Callable[[Any], object], value: Any) -> bool:
    """Report whether a check of a field passes."""
    try:
        check(value)
    except ValueError:
        return False
    return True


def whole(text: str) -> int | None:
    """Return a whole number, None if it is none."""
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,18}", text) else None


def port(text: str | None) -> int | None:
    """Return a port, None if it is none."""
    port_number = whole(text or "")
    return port_number if port_number in _PORTS else None


def file_path(text: str | None) -> str | None:
    """Return a path of a file, None for what is none: empty, with an unknown variable, or the content of a file."""
    is_long = len(text or "") > _LONGEST_PATH
    return None if not text or is_long or set(text) & _NOT_IN_PATHS or not is_valid(fields.path, text) else text


def label_keys(text: str) -> list[str]:
    """Return the valid label keys in a list with commas, each once."""
    keys = dict.fromkeys(one.strip() for one in text.split(","))
    return [one for one in keys if is_valid(fields.label_key, one)]


def go_seconds(text: str) -> float | None:
    """Return the seconds of a duration as Go writes it, None for 0 and for what is none."""
    parts = _DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text.removeprefix("+"):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return seconds if 0 < seconds <= LONGEST_SECONDS else None


def duration(seconds: float) -> str:
    """Return seconds as a duration of the topology."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds % size == 0:
            return f"{int(seconds) // size}{unit}"
    return f"{round(seconds * 1000)}ms"
