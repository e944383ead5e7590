"""The files and streams that `tensile manifests` gives: what is in them, by name; nothing is written here."""

from collections.abc import Iterable

from tensile.errors import TensileError
from tensile.manifests import lower as access
from tensile.manifests import upper
from tensile.manifests.roles import CONFIGMAP
from tensile.manifests.setup import Setup
from tensile.manifests.texts import scheduler
from tensile.manifests.yamlout import comment, stream
from tensile.reconcile.mapsource import KEY
from tensile.topology import Lower
from tensile.yamlfull import document

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
    """Give all for the upper cluster as one stream of documents; `command` is the one that printed it."""
    pieces = [piece for sheet in upper.of_engine(setup).values() for piece in sheet]
    text = stream([*pieces[:1], upper.configmap(setup), *pieces[1:]], upper.head(setup, command))
    storage = upper.storage(setup)
    return f"{text}---\n{storage}" if storage else text


def lower_stream(setup: Setup, name: str, command: str) -> str:
    """Give all for one lower cluster as one stream; `command` is the one that printed it, but for the cluster.

    Raises TensileError where there is no such lower cluster.
    """
    lower = _lower(setup, name)
    apply = f'{command} --lower {lower.name} | kubectl --kubeconfig "$LOWER" apply -f -'
    return stream(access.of_lower(setup, lower), access.head(setup, lower, apply))


def files(setup: Setup) -> dict[str, str]:
    """Give a kustomization for the upper cluster, and for each lower one below `lowers`: text by path.

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
        head = access.head(setup, lower, f'kubectl --kubeconfig "$LOWER" apply -k {place}')
        found[f"{place}/{ACCESS}"] = stream(access.of_lower(setup, lower), head)
    return {**{path: comment(_EDITS) + text for path, text in found.items()}, TOPOLOGY: setup.text}


def _lower(setup: Setup, name: str) -> Lower:
    lowers = {lower.name: lower for lower in setup.topology.lowers}
    if name not in lowers:
        raise TensileError(f"--lower {name}: no lower cluster of the topology: there are {', '.join(lowers) or 'none'}")
    return lowers[name]


def _upper_kustomization(setup: Setup, sheets: Iterable[str]) -> str:
    """Give the upper cluster's; the topology keeps its name whatever is in it, as the engine follows it by name."""
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
