"""The files and streams that `tensile manifests` gives: what is in them, by name; nothing is written here.

What is applied in one lower cluster, and the commands that make a kubeconfig of it for the engine.
"""

import re
from collections.abc import Iterable

import yaml

from tensile.deploy import upper
from tensile.deploy.convert import sharing
from tensile.deploy.rbac import CONFIGMAP, lower_roles
from tensile.deploy.setup import NAME, Piece, Setup, comment, stream
from tensile.deploy.upper import namespace, scheduler
from tensile.engine.configmap_source import KEY
from tensile.errors import TensileError
from tensile.topology import Lower
from tensile.yaml_document import document

TOKEN = f"{NAME}-token"
"""The Secret in which the lower cluster puts the token of the engine's account."""


def of_lower(setup: Setup, lower: Lower) -> list[Piece]:
    """Return the account of the engine, its rights and its token, all in a namespace of its own."""
    first, *roles = lower_roles(lower, topology=setup.topology.name, namespace=setup.namespace)
    token = setup.object("v1", "Secret", TOKEN, type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": first["metadata"]["name"]}
    return [
        namespace(setup.namespace, "Of the engine's account alone; no pod runs here."),
        Piece(first, "The account as which the engine comes, and what it may do here: what it does, and nothing else."),
        *(Piece(role) for role in roles),
        Piece(token, "The cluster fills in a token for the account. It holds until this Secret is deleted."),
    ]


def lower_head(setup: Setup, lower: Lower, apply: str) -> str:
    """Return what this is, and how it is applied (by the command `apply`) and becomes a kubeconfig."""
    topology = setup.topology.name
    lines = [
        f"The engine's access to lower cluster {lower.name} of topology {topology}.",
        "Apply it, and put a kubeconfig of it into a Secret of the upper; LOWER and UPPER are kubeconfigs of your own:",
        *(f"  {command}" for command in _commands(setup, lower, apply)),
    ]
    if others := sharing(setup.topology, lower):
        lines.insert(1, f"The Secret is that of {', '.join(others)} too: what is there goes when this is put there.")
    return "\n".join(lines)


def _commands(setup: Setup, lower: Lower, apply: str) -> list[str]:
    """Return the lines for a shell: one subshell, which ends where a step fails, before a Secret is made of nothing.

    The kubeconfig is in no file and the token in no argument: neither others on the machine nor whatever is in the
    directory come near it. kubectl does what pipes would do, as a shell takes no notice where their left side fails;
    it waits for no field that only has to be there, as older ones do not know how.
    """
    secret = lower.kubeconfig_secret
    assert secret is not None, "there are no paths in a ConfigMap"
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
        f': "${{server:?LOWER names none}}" "${{authority:?none in {TOKEN}}}" "${{token:?none in {TOKEN}}}"',
        f"{made} <<END | {above} apply --server-side -f -",
        *_kubeconfig(lower).splitlines(),
        "END",
        ")",
    ]


def _kubeconfig(lower: Lower) -> str:
    """Return the kubeconfig as a here-document, in which the shell puts what is in its variables."""
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
    """Write a text for YAML within a here-document, on one line in ASCII; the shell leaves it as it is."""
    written = yaml.safe_dump(text, default_style='"', width=float("inf")).strip()
    return re.sub(r"([\\$`])", r"\\\1", written)


MARK = "# Written by `tensile manifests`."
"""How the files begin that it may write over."""
_EDITS = (
    f"{MARK[2:]} Edits are lost when it writes again: what a cluster needs beside it belongs into an overlay, a "
    "kustomization.yaml elsewhere that has this directory among its resources."
)
LOWERS = "lowers"
TOPOLOGY = KEY
SCHEDULER = "scheduler-extender.yaml"
STORAGE = "storageclass.yaml"
ADMISSION = "admission.yaml"
KUSTOMIZATION = "kustomization.yaml"
ACCESS = "access.yaml"
OF_UPPER = (KUSTOMIZATION, *upper.FILES, STORAGE, SCHEDULER, ADMISSION, TOPOLOGY)
"""Every name that a file for the upper cluster can have."""
OF_LOWER = (KUSTOMIZATION, ACCESS)
"""Every name that one below `lowers/NAME` has."""


def upper_stream(setup: Setup, command: str = "tensile manifests") -> str:
    """Return all for the upper cluster as one stream of documents; `command` is the one that printed it."""
    pieces = [piece for sheet in upper.of_engine(setup).values() for piece in sheet]
    text = stream([*pieces[:1], upper.configmap(setup), *pieces[1:]], upper.head(setup, command))
    storage = upper.storage(setup)
    return f"{text}---\n{storage}" if storage else text


def lower_stream(setup: Setup, name: str, command: str) -> str:
    """Return all for one lower cluster as one stream; `command` is the one that printed it, but for the cluster.

    Raises TensileError where there is no such lower cluster.
    """
    lower = _lower(setup, name)
    apply = f'{command} --lower {lower.name} | kubectl --kubeconfig "$LOWER" apply -f -'
    return stream(of_lower(setup, lower), lower_head(setup, lower, apply))


def files(setup: Setup) -> dict[str, str]:
    """Return a kustomization for the upper cluster, and for each lower one below `lowers`: text by path.

    The topology is among them as it is applied. Two files are not in the kustomization: the scheduler's configuration,
    which is no resource, and there before anybody enables the extender, so that it can be read; it follows the
    extender's port from then on. And the admission policy, which the engine registers by itself.
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


def _lower(setup: Setup, name: str) -> Lower:
    lowers = {lower.name: lower for lower in setup.topology.lowers}
    if name not in lowers:
        raise TensileError(f"--lower {name}: no lower cluster of the topology: there are {', '.join(lowers) or 'none'}")
    return lowers[name]


def _upper_kustomization(setup: Setup, sheets: Iterable[str]) -> str:
    """Return the upper cluster's; the topology keeps its name whatever is in it, as the engine follows it by name."""
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
