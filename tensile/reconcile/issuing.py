"""Asks for the tokens of a step, just before it is carried out: nothing is decided here, and nothing kept.

Where an answer is missing, none of the step is done: the Secret is written once, with every token that it is for.
"""

from collections.abc import Mapping

import orjson

from tensile.cluster import Cluster
from tensile.errors import Unreachable
from tensile.reconcile.granting import filled
from tensile.reconcile.plan import Step


async def granted(step: Step, clusters: Mapping[str, Cluster]) -> Step:
    """Give a step with the tokens that it asks for, itself where it asks for none.

    Raises the ClusterError of the cluster that did not issue one.
    """
    if step.grant is None:
        return step
    account = step.grant.account
    cluster = clusters.get(account.cluster)
    if cluster is None:
        raise Unreachable("there is no connection to it yet", cluster=account.cluster, doing=f"create {account} token")
    return filled(step, [orjson.loads(await cluster.issue(account, ask.request)) for ask in step.grant.asks])
