"""Likely bugs of such an engine, as edits of its source, with the tests that should detect each.

The text that an edit replaces occurs in its file exactly once. If it no longer does, the code has changed: write the
edit again for the code as it is.
"""

from typing import NamedTuple


class Bug(NamedTuple):
    """One bug: its name, the file, the text to replace, its replacement, and the test files to run."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


def _tests(*modules: str) -> tuple[str, ...]:
    """Return the paths of test modules, given as "kube/store" for tests/kube/test_store.py."""
    return tuple(f"tests/{folder}/test_{name}.py" for folder, _, name in (module.rpartition("/") for module in modules))


BUGS = (
    Bug(
        "a delete carries no UID",
        "tensile/kube/client.py",
        '            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},\n',
        "",
        _tests("kube/client"),
    ),
    Bug(
        "a change carries no UID",
        "tensile/reconcile/plan.py",
        'Patch("json-patch", fence(entry.uid, wanted.version) + operations)',
        'Patch("json-patch", operations)',
        _tests("reconcile/plan"),
    ),
    Bug(
        "the owner check is inverted",
        "tensile/reconcile/ownership.py",
        "return labels(manifest).get(OWNER) == owner.mark and",
        "return labels(manifest).get(OWNER) != owner.mark and",
        _tests("reconcile/ownership_marks", "reconcile/plan", "reconcile/rules/config"),
    ),
    Bug(
        "marks that somebody copied count as ours",
        "tensile/reconcile/ownership.py",
        'return found if found and UPPER_UID in our_keys(manifest, "annotations") else ""',
        "return found",
        _tests("reconcile/ownership_marks", "reconcile/plan"),
    ),
    Bug(
        "what others registered under the webhook's name is written over",
        "tensile/policy/webhook/registration.py",
        "    if is_ours(seen, owner):",
        "    if seen:",
        _tests("policy/webhook/server"),
    ),
    Bug(
        "creations fail while the webhook is away",
        "tensile/policy/webhook/registration.py",
        '"failurePolicy": "Ignore"',
        '"failurePolicy": "Fail"',
        _tests("policy/webhook/registration"),
    ),
    Bug(
        "what a list lacks is kept",
        "tensile/kube/store.py",
        "        for name in [name for name in self._entries if name not in fresh and name not in newer]:\n"
        "            self._file(name, None)\n",
        "",
        _tests("kube/store"),
    ),
    Bug(
        "a watch goes on after history was rewound",
        "tensile/kube/informer.py",
        "        if version < self._position:\n            raise self._rewind(version)\n        self._file(",
        "        self._file(",
        _tests("kube/informer"),
    ),
    Bug(
        "a watch is resumed from a version that the store has not reached",
        "tensile/kube/informer.py",
        "        elif self._failing_since is not None:\n            await self._check()\n",
        "",
        _tests("kube/informer"),
    ),
    Bug(
        "the guard is off",
        "tensile/reconcile/guard.py",
        "    return count > limits.max_deletes and 100 * count",
        "    return count < 0 and 100 * count",
        _tests("reconcile/guard"),
    ),
    Bug(
        "absence from a cache without a list counts",
        "tensile/kubelet/pods/lost_pods.py",
        "if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:",
        "if lower.unreachable_seconds:",
        _tests("kubelet/pods/lost_pods"),
    ),
    Bug(
        "a lower cluster that does not answer counts as empty",
        "tensile/kubelet/pods/lost_pods.py",
        "if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:",
        "if not (lower.settled and world.upper.namespaces.synced):",
        _tests("kubelet/pods/lost_pods"),
    ),
    Bug(
        "a pod gets the status of an older one of its name",
        "tensile/reconcile/pods/index.py",
        "return bool(facts.upper_uid == upper_pod.uid and facts.owner == owner.mark)",
        "return bool(facts.owner == owner.mark)",
        (*_tests("kubelet/pods/rule"), *_tests("reconcile/pods/index")),
    ),
    Bug(
        "an upper pod goes before its lower one is known to be gone",
        "tensile/kubelet/pods/rule.py",
        "certain = (below is not None and not is_mirror(below, world.owner)) or is_gone_below(upper, lower)",
        "certain = True",
        _tests("kubelet/pods/rule"),
    ),
    Bug(
        "the newer of two pods of a name is taken for the older",
        "tensile/kubelet/pods/rule.py",
        "    if not lower.upper_pods.is_deleted(key.namespace, key.name, below.facts.upper_uid):\n",
        "    if False:\n",
        (*_tests("kubelet/pods/rule"), *_tests("faults/pairs")),
    ),
    Bug(
        "an older pod's end below counts as this one's",
        "tensile/reconcile/pods/index.py",
        "was_its = facts is not None and facts.upper_uid == upper.uid",
        "was_its = departure is not None",
        _tests("kubelet/pods/rule", "kubelet/pods/lost_pods"),
    ),
    Bug(
        "a pod is made while its predecessor runs elsewhere",
        "tensile/kubelet/pods/rule.py",
        "    other = _lower_of_predecessor(key, upper, world)\n",
        "    other = None\n",
        _tests("kubelet/pods/rule"),
    ),
    Bug(
        "a name counts as empty while a create is under way",
        "tensile/reconcile/apply.py",
        "        cache.invalidate(step.ref.namespace, step.ref.name)",
        "        pass",
        _tests("reconcile/apply", "reconcile/certainty"),
    ),
    Bug(
        "a pod comes back from a terminal phase",
        "tensile/kubelet/pods/status.py",
        "    if upper.phase in TERMINAL and lower.phase != upper.phase:\n        return None\n",
        "",
        _tests("kubelet/pods/status"),
    ),
    Bug(
        "a denied pod is called Failed",
        "tensile/kubelet/pods/status.py",
        'fields = {"phase": upper.phase, "reason"',
        'fields = {"phase": "Failed", "reason"',
        _tests("kubelet/pods/status_own"),
    ),
    Bug(
        "a name that is taken counts as ours",
        "tensile/reconcile/apply.py",
        "return labels(found).get(OWNER) == labels(wanted).get(OWNER) and bool(upper_uid_of(found))",
        "return True",
        _tests("reconcile/apply", "reconcile/loop"),
    ),
    Bug(
        "our taint stays when its cluster is back",
        "tensile/kubelet/node/rule.py",
        "        elif _identity(taint) not in before:\n",
        "        else:\n",
        _tests("kubelet/node/rule"),
    ),
    Bug(
        "the lease is not renewed",
        "tensile/kubelet/node/lease.py",
        "        found: Manifest = orjson.loads(await self._upper.patch(self._ref, patch))\n",
        "        found = lease\n",
        _tests("kubelet/node/lease"),
    ),
    Bug(
        "a Secret stays below without a pod",
        "tensile/reconcile/rules/config.py",
        "    if not service_accounts.known(pair.world, pair.lower) or pair.is_kept:",
        "    if pair.ref.kind == SECRET or pair.is_kept:",
        _tests("reconcile/rules/config"),
    ),
    Bug(
        "a Secret with a token of the upper cluster is copied",
        "tensile/reconcile/pods/references.py",
        '{"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"}',
        '{"bootstrap.kubernetes.io/token"}',
        _tests("reconcile/pods/references", "reconcile/rules/config"),
    ),
    Bug(
        "what kubectl applied goes down, with a Secret's content",
        "tensile/reconcile/ownership.py",
        "for key, value in annotations(above).items() if key not in _NOT_COPIED}",
        "for key, value in annotations(above).items()}",
        _tests("reconcile/pods/references"),
    ),
    Bug(
        "a token is not renewed",
        "tensile/kubelet/pods/token_rule.py",
        "    return (due - world.now).total_seconds()\n",
        "    return max((due - world.now).total_seconds(), 60.0)\n",
        _tests("kubelet/pods/token_rule"),
    ),
    Bug(
        "a claim with data is deleted",
        "tensile/reconcile/rules/claims.py",
        "return bool(copy.facts.bound or copy.facts.lost or copy.facts.volume)",
        "return False",
        _tests("reconcile/rules/claims", "reconcile/rules/claim_rule", "reconcile/rules/orphans"),
    ),
    Bug(
        "a volume's placeholder goes before the data",
        "tensile/reconcile/rules/volumes.py",
        "    if copy is None and lower.more[CLAIM].tombstone(namespace, name) is None:\n",
        "    if copy is None and lower.unreachable_seconds:\n",
        _tests("reconcile/rules/volume_rule"),
    ),
    Bug(
        "a namespace is deleted that is not empty",
        "tensile/reconcile/apply.py",
        "    if step.only_if_empty:\n        await check_empty(cluster, step.ref)\n",
        "",
        _tests("reconcile/rules/namespace_cleanup", "reconcile/apply_namespaces", "reconcile/apply"),
    ),
    Bug(
        "a stranger's Service gets endpoints of ours",
        "tensile/reconcile/rules/endpoint_slices.py",
        "if holder is None or not is_copy(holder, world.owner):",
        "if holder is None:",
        _tests("reconcile/rules/endpoint_slices"),
    ),
    Bug(
        "a prefixed namespace is not mapped in a pod's affinity",
        "tensile/kubelet/pods/lower_context.py",
        '"namespaces": [context.namespace_of(name) for name in names]',
        '"namespaces": list(names)',
        _tests("kubelet/pods/lower_context"),
    ),
    Bug(
        "a pod without a controller leaves before it is kept",
        "tensile/policy/descheduler/rule.py",
        "return not is_bare(pod) or any(",
        "return True or any(",
        _tests("policy/descheduler/bare_pods"),
    ),
    Bug(
        "a pod that somebody deleted is made again",
        "tensile/policy/descheduler/recreate.py",
        "if pod.facts.terminating and pod.facts.disrupted:",
        "if pod.facts.terminating:",
        _tests("policy/descheduler/recreate"),
    ),
    Bug(
        "what is kept of a pod goes though somebody else has its place",
        "tensile/reconcile/apply.py",
        "return REPLACES in annotations(wanted) and",
        "return REPLACES in annotations(wanted) or",
        _tests("reconcile/apply"),
    ),
    Bug(
        "alternatives of a node affinity are torn apart",
        "tensile/policy/webhook/admission.py",
        "if not _are_combinable(relevant):",
        "if not relevant:",
        _tests("policy/webhook/admission"),
    ),
    Bug(
        "terms for another virtual node go below as well",
        "tensile/kubelet/pods/lower_context.py",
        "applicable = [term for term in terms if _is_met_by_virtual_node(term, context)] or terms",
        "applicable = terms",
        _tests("policy/webhook/round_trip"),
    ),
    Bug(
        "what is refused is tried without a pause",
        "tensile/reconcile/backoff.py",
        "min(MIN_DELAY * 2.0 ** min(tries, 10), longest)",
        "MIN_DELAY",
        _tests("reconcile/backoff", "reconcile/loop"),
    ),
    Bug(
        "the kubelet API lets everybody in",
        "tensile/kubelet/api/auth.py",
        "answer = review.status.allowed and not review.status.denied",
        "answer = True",
        _tests("kubelet/api/access"),
    ),
)
"""Ordered by what they would harm: objects of other owners, pods, what pods need, the cluster."""
