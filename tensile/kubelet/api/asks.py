"""What is asked of a lower apiserver for a call that names a pod: one table from the kubelet's routes to subresources.

Everything in it is made anew from checked parts: the lower pod's own names, a query by its known keys, and the few
headers that an upgrade needs.

The log of a container that the pod lacks is refused here, as by a kubelet: a lower's apiserver says 400, as of a bad
request, and not that there is nothing.
"""

from http import HTTPStatus
from typing import NamedTuple

from tensile.kubelet.api import queries, routes
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.routes import Call, Place
from tensile.kubelet.api.target import Target
from tensile.kubelet.api.upgrades import Headers, asked
from tensile.objects import POD


class Ask(NamedTuple):
    """What is asked of a lower apiserver: `doing` for people, `path` and `query` as they go on the wire.

    `of_kubelet` says that the apiserver passes it on to the kubelet of the pod's node.
    """

    doing: str
    method: str
    path: str
    query: str
    headers: Headers = ()
    of_kubelet: bool = False


_SUBRESOURCES = {
    routes.LOGS: "log",
    routes.EXEC: "exec",
    routes.ATTACH: "attach",
    routes.PORT_FORWARD: "portforward",
}


def ask_for(call: Call, place: Place, target: Target, headers: Headers) -> Ask:
    """Say what to ask of the target's cluster.

    Refused: 400 for a query or an upgrade that it would not know, 404 for the log of a container that the pod lacks.
    """
    subresource = _SUBRESOURCES[call.area]
    ask = Ask(
        doing=f"{subresource} of pod {target.namespace}/{target.name}",
        method=call.method,
        path=f"{POD.path(target.namespace, target.name)}/{subresource}",
        query=_query(call, place.container),
        headers=() if call.area == routes.LOGS else asked(headers),
        of_kubelet=True,
    )
    if call.area == routes.LOGS and place.container not in target.containers:
        raise Refused(HTTPStatus.NOT_FOUND, f'container "{place.container}" not found in pod "{place.pod}"')
    return ask


def _query(call: Call, container: str) -> str:
    match call.area:
        case routes.LOGS:
            return queries.log_query(call.query, container)
        case routes.EXEC:
            return queries.exec_query(call.query, container)
        case routes.ATTACH:
            return queries.attach_query(call.query, container)
    return queries.port_query(call.query)
