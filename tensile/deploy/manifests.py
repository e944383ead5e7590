"""`tensile manifests`: from a topology file to manifests that are printed, or written to a directory. Works offline.

Writing is deterministic, so the output can be kept in Git. It overwrites and deletes only files that it wrote itself,
and refuses to start when another file is in the way. Files are handled as bytes, so that line endings, above all those
of the topology, are neither converted nor mistaken for ours.

The second half renders what is printed or written: streams of documents, and files by name. For a lower cluster it also
renders the shell commands that create the engine's kubeconfig.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from tensile.deploy import upper
from tensile.deploy.setup import (
    CONFIGMAP,
    NAME,
    Piece,
    Setup,
    cautions,
    comment,
    default_image,
    lower_roles,
    parse_in_cluster,
    secret_field,
    secret_for,
    sharing,
    stream,
)
from tensile.deploy.upper import namespace, scheduler
from tensile.engine.topology_reader import CONFIGMAP_KEY
from tensile.errors import TensileError
from tensile.kube.files import replace_file
from tensile.topology import Lower, decode, parse
from tensile.topology.fields import label_name
from tensile.yaml_document import document

NAMESPACE = "tensile"
"""The default namespace of the engine, and of its account in each lower cluster."""
_TAKEN = ("default", "kube-system", "kube-public", "kube-node-lease")
TOKEN = f"{NAME}-token"
"""The Secret in which the lower cluster stores the token of the engine's ServiceAccount."""
MARK = "# Written by `tensile manifests`."
"""The first line of every rendered file; only a file that begins with it is overwritten."""
_EDITS = (
    f"{MARK[2:]} The next run overwrites edits: put additions into an overlay, a "
    "kustomization.yaml in another directory that lists this one in its resources."
)
LOWERS = "lowers"
TOPOLOGY = CONFIGMAP_KEY
SCHEDULER = "scheduler-extender.yaml"
STORAGE = "storageclass.yaml"
ADMISSION = "admission.yaml"
CANDIDATE = "candidate.yaml"
KUSTOMIZATION = "kustomization.yaml"
ACCESS = "access.yaml"
OF_UPPER = (KUSTOMIZATION, *upper.FILES, STORAGE, SCHEDULER, ADMISSION, CANDIDATE, TOPOLOGY)
"""Every file name that a rendering for the upper cluster may contain."""
OF_LOWER = (KUSTOMIZATION, ACCESS)
"""Every file name that a rendering may contain in `lowers/NAME`."""


class RenderOptions(NamedTuple):
    """The options beside the topology; `image` None: the default image of this version."""

    namespace: str
    image: str | None


def rendering(data: bytes, name: str, options: RenderOptions, *, for_lower: bool = False) -> Setup:
    """Return the set-up for a topology file; `name` is the file's name.

    With `for_lower` only the manifests of a lower cluster are needed, for which the engine may run anywhere. Raises
    TensileError for invalid options, and for a topology that an engine in the upper cluster cannot use.
    """
    _check(options)
    text = decode(data, name=name)
    topology = parse(text, name=name) if for_lower else parse_in_cluster(text, name, options.namespace)
    return Setup(topology, text, options.namespace, options.image or default_image())


def warnings(setup: Setup, name: str) -> list[str]:
    """Return a line for each setting of the topology that works in a pod, but perhaps not as intended."""
    return [f"warning: {caution.line(name)}" for caution in cautions(setup.text, setup.topology)]


def _check(options: RenderOptions) -> None:
    """Raise TensileError for an invalid option, and for a namespace that others use.

    Pod Security of the engine's namespace would apply to the pods of others too.
    """
    if options.namespace in _TAKEN:
        raise TensileError(
            f"--namespace {options.namespace}: other pods use it: use a namespace for the engine only, such as tensile"
        )
    try:
        label_name(options.namespace)
    except ValueError as error:
        raise TensileError(f"--namespace: {error}") from None
    if options.image is not None and (not options.image or options.image.split() != [options.image]):
        raise TensileError(f"--image {options.image!r}: not an image name: write one such as {default_image()}")


def printed(setup: Setup, lower: str | None, file_option: str | None, options: RenderOptions) -> str:
    """Return the manifests of the upper cluster, or those of the lower cluster `lower`.

    `file_option` is the value of -f.
    """
    command = _command(file_option, options)
    return upper_stream(setup, command) if lower is None else lower_stream(setup, lower, command)


def _command(file_option: str | None, options: RenderOptions) -> str:
    """Return the command line to print the manifests of another cluster.

    Standard input becomes the placeholder FILE.
    """
    words = ["tensile", "manifests"]
    if file_option:
        words += ["-f", "FILE" if file_option == "-" else file_option]
    if options.namespace != NAMESPACE:
        words += ["--namespace", options.namespace]
    if options.image is not None:
        words += ["--image", options.image]
    return shlex.join(words)


def written(setup: Setup, directory: Path, name: str) -> list[str]:
    """Write all manifests to a directory, and return a description of each file that changed.

    `name` is the name of the topology file. If it is the directory's own topology file, that file is not changed; a
    file from elsewhere is copied, with a comment that says so.
    """
    files = manifest_files(setup)
    if not _is_same(Path(name), directory / TOPOLOGY) and not setup.text.startswith(MARK):
        copied = setup.text.removeprefix("\ufeff")
        files[TOPOLOGY] = comment(f"{MARK[2:]} It is a copy of {Path(name).name}: edit that file.") + copied
    return write(directory, files)


def _is_same(path: Path, other: Path) -> bool:
    """Report whether two paths lead to the same file."""
    with suppress(OSError):
        return path.samefile(other)
    return False


def write(directory: Path, files: Mapping[str, str]) -> list[str]:
    """Write files, given as text by path, to a directory, and return a description of each file that changed.

    Raises TensileError, with nothing written, if a file that was not written by this command is in the way. Also raises
    it if a write fails; the file that could not be written keeps its old content.
    """
    wanted = {directory / path: text.encode() for path, text in files.items()}
    known = {path: path.read_bytes() for path in wanted if path.is_file()}
    changed = {path: data for path, data in wanted.items() if known.get(path) != data}
    _refuse([line for path in changed for line in _obstacles(path, directory, known.get(path))])
    obsolete = [path for path in _written_before(directory) if path not in wanted]
    for path, data in changed.items():
        _write(path, data)
    for path in obsolete:
        _remove(path, directory)
    descriptions = [f"{path}: {'changed' if path in known else 'written'}" for path in changed]
    return [*descriptions, *(f"{path}: removed" for path in obsolete)]


def write_topology(path: Path, text: str, *, force: bool) -> None:
    """Write a topology file. Raises TensileError if it exists, unless `force` is set, or if it cannot be written."""
    if not force and (path.exists() or path.is_symlink()):
        raise TensileError(f"{path}: exists, and was not changed: give another -o, or replace it with --force")
    if path.is_dir():
        raise TensileError(f"{path}: a directory: name a file with -o")
    _write(path.resolve(), text.encode())


def _obstacles(path: Path, directory: Path, known: bytes | None) -> Iterator[str]:
    """Yield what prevents a file from being written; `known` is its present content."""
    for folder in _folders(path, directory):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            yield f"{folder}: a symbolic link, or not a directory: no file is written under it"
            return
    if path.is_symlink() or (known is None and path.exists()):
        yield f"{path}: a symbolic link, or not a regular file: it is not replaced"
    elif known is not None and not _is_ours(known):
        yield f"{path}: not written by `tensile manifests`, and its content differs"


def _folders(path: Path, directory: Path) -> list[Path]:
    """Return the directories between a directory and a file in it, outermost first."""
    return [folder for folder in reversed(path.parents) if directory in folder.parents]


def _is_ours(data: bytes) -> bool:
    return data.startswith(MARK.encode())


def _refuse(lines: list[str]) -> None:
    if lines:
        message_lines = [*dict.fromkeys(lines), "nothing was written: move these away, or use another --dir"]
        raise TensileError("\n".join(message_lines))


def _written_before(directory: Path) -> Iterator[Path]:
    """Yield the files of earlier renderings.

    They are found by the names that renderings use, so a user's copy under another name is not one of them.
    """
    lowers = sorted(path for path in directory.glob(f"{LOWERS}/*") if not path.is_symlink())
    places = [(directory, OF_UPPER), *((lower, OF_LOWER) for lower in lowers if not lower.parent.is_symlink())]
    for path in (folder / name for folder, names in places for name in names):
        if path.is_file() and not path.is_symlink() and _is_ours(path.read_bytes()):
            yield path


def _write(path: Path, data: bytes) -> None:
    """Write a file atomically, so that a full disk leaves the old one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        message = (
            f"{path}: cannot be written: {error.strerror or error}. The old content is kept: correct this and retry"
        )
        raise TensileError(message) from None


def _remove(path: Path, directory: Path) -> None:
    """Delete a file, and the directories above it that are empty then, up to `directory`."""
    path.unlink()
    for folder in path.parents:
        if folder == directory or any(folder.iterdir()):
            return
        folder.rmdir()


def upper_stream(setup: Setup, command: str = "tensile manifests") -> str:
    """Return the manifests of the upper cluster as one stream of documents; `command` is the command that prints it."""
    pieces = [piece for pieces_of_file in upper.of_engine(setup).values() for piece in pieces_of_file]
    text = stream([*pieces[:1], upper.configmap(setup), *pieces[1:]], upper.head(setup, command))
    storage = upper.storage(setup)
    return f"{text}---\n{storage}" if storage else text


def lower_stream(setup: Setup, name: str, command: str) -> str:
    """Return the manifests of one lower cluster as one stream of documents.

    `command` is the command that prints them, without --lower. Raises TensileError if the topology has no such lower
    cluster.
    """
    lower = _lower_named(setup, name)
    apply = f'{command} --lower {lower.name} | kubectl --kubeconfig "$LOWER" apply -f -'
    return stream(of_lower(setup, lower), lower_head(setup, lower, apply))


def manifest_files(setup: Setup) -> dict[str, str]:
    """Return a kustomization for the upper cluster, and one for each lower cluster in `lowers`: text by path.

    The topology is included as it is applied. Three files are not resources of the kustomization. The scheduler's
    configuration is no API object; it is written even while the extender is disabled, so that people can read it first,
    and it contains the extender's port. The admission policy is registered by the engine itself. The account for CI is
    optional.
    """
    files = {name: stream(pieces) for name, pieces in upper.of_engine(setup).items()}
    if storage := upper.storage(setup):
        files[STORAGE] = storage
    found = {KUSTOMIZATION: _upper_kustomization(setup, files), **files, SCHEDULER: scheduler(setup)}
    found[ADMISSION] = stream(upper.admission(setup))
    found[CANDIDATE] = stream(upper.candidate(setup))
    for lower in setup.topology.lowers:
        folder = f"{LOWERS}/{lower.name}"
        found[f"{folder}/{KUSTOMIZATION}"] = _kustomization([ACCESS])
        head = lower_head(setup, lower, f'kubectl --kubeconfig "$LOWER" apply -k {folder}')
        found[f"{folder}/{ACCESS}"] = stream(of_lower(setup, lower), head)
    return {**{path: comment(_EDITS) + text for path, text in found.items()}, TOPOLOGY: setup.text}


def _upper_kustomization(setup: Setup, resources: Iterable[str]) -> str:
    """Return the kustomization of the upper cluster.

    The topology's ConfigMap has no hash suffix, since the engine watches it by name.
    """
    topology = {
        "name": CONFIGMAP,
        "namespace": setup.namespace,
        "files": [TOPOLOGY],
        "options": {"disableNameSuffixHash": True, "labels": setup.selector},
    }
    return comment(upper.head(setup)) + _kustomization(resources, configMapGenerator=[topology])


def _kustomization(resources: Iterable[str], **fields: object) -> str:
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return document({**kind, "resources": list(resources), **fields})


def _lower_named(setup: Setup, name: str) -> Lower:
    lowers = {lower.name: lower for lower in setup.topology.lowers}
    if name not in lowers:
        raise TensileError(
            f"--lower {name}: the topology has no such lower cluster (it has: {', '.join(lowers) or 'none'})"
        )
    return lowers[name]


def of_lower(setup: Setup, lower: Lower) -> list[Piece]:
    """Return the engine's namespace in a lower cluster, its ServiceAccount, roles and token Secret."""
    account, *roles = lower_roles(lower, topology=setup.topology.name, namespace=setup.namespace)
    token = setup.object("v1", "Secret", TOKEN, type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": account["metadata"]["name"]}
    return [
        namespace(setup.namespace, "For the engine's ServiceAccount only; no pods run here."),
        Piece(account, "The engine's ServiceAccount in this cluster, with only the permissions that it needs."),
        *(Piece(role) for role in roles),
        Piece(
            token, "The cluster stores a token of the ServiceAccount here. It is valid until this Secret is deleted."
        ),
    ]


def lower_head(setup: Setup, lower: Lower, apply: str) -> str:
    """Return the header comment of a lower cluster's manifests: what they are, and how to apply them.

    `apply` is the command that applies them; the commands after it make a kubeconfig of the token.
    """
    topology = setup.topology.name
    lines = [
        f"The engine's access to lower cluster {lower.name} of topology {topology}.",
        "Apply it, and store its kubeconfig in a Secret of the upper cluster. LOWER and UPPER are your kubeconfigs:",
        *(f"  {command}" for command in _commands(setup, lower, apply)),
    ]
    if others := sharing(setup.topology, lower):
        lines.insert(
            1, f"Lower cluster {', '.join(others)} uses the same Secret: these commands replace its whole content."
        )
    if lower.kubeconfig is not None:
        lines[1:1] = [
            "The topology names a kubeconfig file. For an engine in a pod, replace it by this Secret:",
            secret_field(secret_for(setup.topology, lower, setup.namespace)),
        ]
    return "\n".join(lines)


def _commands(setup: Setup, lower: Lower, apply: str) -> list[str]:
    """Return the lines of a shell script that applies the manifests and stores a kubeconfig in the upper cluster.

    It is one subshell that exits where a step fails, before it can create a Secret with an empty kubeconfig. The
    kubeconfig is in no file and the token in no argument: neither other users of the machine nor programs that read the
    directory see them. kubectl does the work of pipes, since a shell ignores failures on the left side of a pipe. The
    script polls for the token, since older versions of `kubectl wait` cannot wait for a field to exist.
    """
    secret = secret_for(setup.topology, lower, setup.namespace)
    lower_kubectl, upper_kubectl = (
        'kubectl --kubeconfig "$LOWER"',
        f'kubectl --kubeconfig "$UPPER" -n {secret.namespace}',
    )
    view = f"{lower_kubectl} config view --minify -o jsonpath"
    token = f"{lower_kubectl} -n {setup.namespace} get secret {TOKEN} -o"
    secret_command = (
        f"{upper_kubectl} create secret generic {secret.name} --from-file={secret.key}=/dev/stdin "
        "--dry-run=client -o yaml"
    )
    return [
        '(set -eu; : "${LOWER:?}" "${UPPER:?}"',
        apply,
        f"for _ in $(seq 30); do found=$({token} jsonpath='{{.data.token}}')",
        '[ -z "$found" ] || break; sleep 1; done',
        f"server=$({view}='{{.clusters[0].cluster.server}}')",
        f"name=$({view}='{{.clusters[0].cluster.tls-server-name}}')",
        f"authority=$({token} jsonpath='{{.data.ca\\.crt}}')",
        f"token=$({token} go-template='{{{{.data.token|base64decode}}}}')",
        f': "${{server:?LOWER has no server}}" "${{authority:?not in {TOKEN}}}" "${{token:?not in {TOKEN}}}"',
        f"{secret_command} <<END | {upper_kubectl} apply --server-side -f -",
        *_kubeconfig(lower).splitlines(),
        "END",
        ")",
    ]


def _kubeconfig(lower: Lower) -> str:
    """Return the kubeconfig as the body of a here-document, in which the shell expands its variables."""
    cluster, context = _quoted(lower.name), _quoted(lower.context or NAME)
    cluster_fields = 'server: "$server", tls-server-name: "$name", certificate-authority-data: "$authority"'
    return f"""\
apiVersion: v1
kind: Config
clusters: [{{name: {cluster}, cluster: {{{cluster_fields}}}}}]
users: [{{name: {NAME}, user: {{token: "$token"}}}}]
contexts: [{{name: {context}, context: {{cluster: {cluster}, user: {NAME}}}}}]
current-context: {context}"""


def _quoted(text: str) -> str:
    """Return a text as a YAML string on one line in ASCII, with the characters escaped that a here-document expands."""
    quoted = yaml.safe_dump(text, default_style='"', width=float("inf")).strip()
    return re.sub(r"([\\$`])", r"\\\1", quoted)
