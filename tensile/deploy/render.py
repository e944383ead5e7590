"""Renders what `tensile manifests` prints or writes: streams of documents, and files by name. Writes nothing itself.

For a lower cluster it also renders the shell commands that create the engine's kubeconfig.
"""

import re
from collections.abc import Iterable

import yaml

from tensile.deploy import upper
from tensile.deploy.incluster import secret_field, secret_for, sharing
from tensile.deploy.rbac import CONFIGMAP, lower_roles
from tensile.deploy.setup import NAME, Piece, Setup, comment, stream
from tensile.deploy.upper import namespace, scheduler
from tensile.engine.configmap_source import KEY
from tensile.errors import TensileError
from tensile.topology import Lower
from tensile.yaml_document import document

TOKEN = f"{NAME}-token"
"""The Secret in which the lower cluster stores the token of the engine's ServiceAccount."""
MARK = "# Written by `tensile manifests`."
"""The first line of every rendered file; only a file that begins with it is overwritten."""
_EDITS = (
    f"{MARK[2:]} The next run overwrites edits: put additions into an overlay, a "
    "kustomization.yaml in another directory that lists this one in its resources."
)
LOWERS = "lowers"
TOPOLOGY = KEY
SCHEDULER = "scheduler-extender.yaml"
STORAGE = "storageclass.yaml"
ADMISSION = "admission.yaml"
KUSTOMIZATION = "kustomization.yaml"
ACCESS = "access.yaml"
OF_UPPER = (KUSTOMIZATION, *upper.FILES, STORAGE, SCHEDULER, ADMISSION, TOPOLOGY)
"""Every file name that a rendering for the upper cluster may contain."""
OF_LOWER = (KUSTOMIZATION, ACCESS)
"""Every file name that a rendering may contain in `lowers/NAME`."""


def upper_stream(setup: Setup, command: str = "tensile manifests") -> str:
    """Return the manifests of the upper cluster as one stream of documents; `command` is the command that prints it."""
    pieces = [piece for sheet in upper.of_engine(setup).values() for piece in sheet]
    text = stream([*pieces[:1], upper.configmap(setup), *pieces[1:]], upper.head(setup, command))
    storage = upper.storage(setup)
    return f"{text}---\n{storage}" if storage else text


def lower_stream(setup: Setup, name: str, command: str) -> str:
    """Return the manifests of one lower cluster as one stream of documents.

    `command` is the command that prints them, without --lower. Raises TensileError if the topology has no such lower
    cluster.
    """
    lower = _lower(setup, name)
    apply = f'{command} --lower {lower.name} | kubectl --kubeconfig "$LOWER" apply -f -'
    return stream(of_lower(setup, lower), lower_head(setup, lower, apply))


def files(setup: Setup) -> dict[str, str]:
    """Return a kustomization for the upper cluster, and one for each lower cluster in `lowers`: text by path.

    The topology is included as it is applied. Two files are not resources of the kustomization. The scheduler's
    configuration is no API object; it is written even while the extender is disabled, so that people can read it first,
    and it contains the extender's port. The admission policy is registered by the engine itself.
    """
    sheets = {name: stream(pieces) for name, pieces in upper.of_engine(setup).items()}
    if storage := upper.storage(setup):
        sheets[STORAGE] = storage
    found = {KUSTOMIZATION: _upper_kustomization(setup, sheets), **sheets, SCHEDULER: scheduler(setup)}
    found[ADMISSION] = stream(upper.admission(setup))
    for lower in setup.topology.lowers:
        place = f"{LOWERS}/{lower.name}"
        found[f"{place}/{KUSTOMIZATION}"] = _kustomization([ACCESS])
        head = lower_head(setup, lower, f'kubectl --kubeconfig "$LOWER" apply -k {place}')
        found[f"{place}/{ACCESS}"] = stream(of_lower(setup, lower), head)
    return {**{path: comment(_EDITS) + text for path, text in found.items()}, TOPOLOGY: setup.text}


def _upper_kustomization(setup: Setup, sheets: Iterable[str]) -> str:
    """Return the kustomization of the upper cluster.

    The topology's ConfigMap has no hash suffix, since the engine watches it by name.
    """
    topology = {
        "name": CONFIGMAP,
        "namespace": setup.namespace,
        "files": [TOPOLOGY],
        "options": {"disableNameSuffixHash": True, "labels": setup.selector},
    }
    return comment(upper.head(setup)) + _kustomization(sheets, configMapGenerator=[topology])


def _kustomization(resources: Iterable[str], **fields: object) -> str:
    kind = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return document({**kind, "resources": list(resources), **fields})


def _lower(setup: Setup, name: str) -> Lower:
    lowers = {lower.name: lower for lower in setup.topology.lowers}
    if name not in lowers:
        raise TensileError(
            f"--lower {name}: the topology has no such lower cluster (it has: {', '.join(lowers) or 'none'})"
        )
    return lowers[name]


def of_lower(setup: Setup, lower: Lower) -> list[Piece]:
    """Return the engine's namespace in a lower cluster, its ServiceAccount, roles and token Secret."""
    first, *roles = lower_roles(lower, topology=setup.topology.name, namespace=setup.namespace)
    token = setup.object("v1", "Secret", TOKEN, type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": first["metadata"]["name"]}
    return [
        namespace(setup.namespace, "For the engine's ServiceAccount only; no pods run here."),
        Piece(first, "The engine's ServiceAccount in this cluster, with only the permissions that it needs."),
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
    below, above = 'kubectl --kubeconfig "$LOWER"', f'kubectl --kubeconfig "$UPPER" -n {secret.namespace}'
    view = f"{below} config view --minify -o jsonpath"
    token = f"{below} -n {setup.namespace} get secret {TOKEN} -o"
    made = f"{above} create secret generic {secret.name} --from-file={secret.key}=/dev/stdin --dry-run=client -o yaml"
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
        f"{made} <<END | {above} apply --server-side -f -",
        *_kubeconfig(lower).splitlines(),
        "END",
        ")",
    ]


def _kubeconfig(lower: Lower) -> str:
    """Return the kubeconfig as the body of a here-document, in which the shell expands its variables."""
    cluster, context = _quoted(lower.name), _quoted(lower.context or NAME)
    way = 'server: "$server", tls-server-name: "$name", certificate-authority-data: "$authority"'
    return f"""\
apiVersion: v1
kind: Config
clusters: [{{name: {cluster}, cluster: {{{way}}}}}]
users: [{{name: {NAME}, user: {{token: "$token"}}}}]
contexts: [{{name: {context}, context: {{cluster: {cluster}, user: {NAME}}}}}]
current-context: {context}"""


def _quoted(text: str) -> str:
    """Return a text as a YAML string on one line in ASCII, with the characters escaped that a here-document expands."""
    written = yaml.safe_dump(text, default_style='"', width=float("inf")).strip()
    return re.sub(r"([\\$`])", r"\\\1", written)
