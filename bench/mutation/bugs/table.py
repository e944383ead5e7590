"""Likely bugs of the engine, as edits of its source, with the tests that should detect each.

The text that an edit replaces must occur exactly once in its file. If it no longer does, the code has changed, and the
edit must be adapted.
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
        "a delete has no UID precondition",
        "tensile/kube/client.py",
        '            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},\n',
        "",
        _tests("kube/client"),
    ),
    Bug(
        "a patch has no UID precondition",
        "tensile/reconcile/plan.py",
        'Patch("json-patch", fence(entry.uid, wanted.version) + operations)',
        'Patch("json-patch", operations)',
        _tests("reconcile/plan"),
    ),
    Bug(
        "the ownership check is inverted",
        "tensile/reconcile/ownership.py",
        "return labels(manifest).get(OWNER) == owner.mark and",
        "return labels(manifest).get(OWNER) != owner.mark and",
        _tests("reconcile/ownership_marks", "reconcile/plan", "reconcile/rules/config"),
    ),
    Bug(
        "copied ownership marks are accepted as ours",
        "tensile/reconcile/ownership.py",
        'return found if found and UPPER_UID in our_keys(manifest, "annotations") else ""',
        "return found",
        _tests("reconcile/ownership_marks", "reconcile/plan"),
    ),
    Bug(
        "a webhook configuration of another owner is overwritten",
        "tensile/policy/webhook/registration.py",
        "    if is_ours(seen, owner):",
        "    if seen:",
        _tests("policy/webhook/server"),
    ),
    Bug(
        "pod creation fails while the webhook is unavailable",
        "tensile/policy/webhook/registration.py",
        '"failurePolicy": "Ignore"',
        '"failurePolicy": "Fail"',
        _tests("policy/webhook/registration"),
    ),
    Bug(
        "objects missing from a new list stay in the cache",
        "tensile/kube/store.py",
        "        for name in [name for name in self._entries if name not in fresh and name not in newer]:\n"
        "            self._file(name, None)\n",
        "",
        _tests("kube/store"),
    ),
    Bug(
        "a watch continues after the resourceVersion went backwards",
        "tensile/kube/informer.py",
        "        if version < self._position:\n            raise self._rewind(version)\n        self._file(",
        "        self._file(",
        _tests("kube/informer"),
    ),
    Bug(
        "a watch resumes from a version newer than the cache",
        "tensile/kube/informer.py",
        "        elif self._failing_since is not None:\n            await self._check()\n",
        "",
        _tests("kube/informer"),
    ),
    Bug(
        "the limit on deletions is disabled",
        "tensile/reconcile/guard.py",
        "    return count > limits.max_deletes and 100 * count",
        "    return count < 0 and 100 * count",
        _tests("reconcile/guard"),
    ),
    Bug(
        "an object is deleted because a cache without a list lacks its owner",
        "tensile/kubelet/pods/lost_pods.py",
        "if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:",
        "if lower.unreachable_seconds:",
        _tests("kubelet/pods/lost_pods"),
    ),
    Bug(
        "an unreachable lower cluster is treated as empty",
        "tensile/kubelet/pods/lost_pods.py",
        "if not (lower.settled and world.upper.namespaces.synced) or lower.unreachable_seconds:",
        "if not (lower.settled and world.upper.namespaces.synced):",
        _tests("kubelet/pods/lost_pods"),
    ),
    Bug(
        "a pod gets the status of an older pod with the same name",
        "tensile/reconcile/pods/index.py",
        "return bool(facts.upper_uid == upper_pod.uid and facts.owner == owner.mark)",
        "return bool(facts.owner == owner.mark)",
        (*_tests("kubelet/pods/rule"), *_tests("reconcile/pods/index")),
    ),
    Bug(
        "an upper pod is removed before its lower pod is known to be gone",
        "tensile/kubelet/pods/rule.py",
        "is_certainly_gone = is_foreign or is_lower_pod_gone(upper, lower)",
        "is_certainly_gone = True",
        _tests("kubelet/pods/rule"),
    ),
    Bug(
        "the newer of two pods with the same name is treated as the older",
        "tensile/kubelet/pods/rule.py",
        "    if not lower.upper_pods.is_deleted(key.namespace, key.name, lower_pod.facts.upper_uid):\n",
        "    if False:\n",
        (*_tests("kubelet/pods/rule"), *_tests("faults/pairs")),
    ),
    Bug(
        "the end of an older lower pod is attributed to the new pod",
        "tensile/reconcile/pods/index.py",
        "was_its = facts is not None and facts.upper_uid == upper.uid",
        "was_its = departure is not None",
        _tests("kubelet/pods/rule", "kubelet/pods/lost_pods"),
    ),
    Bug(
        "a pod is created while its predecessor runs in another cluster",
        "tensile/kubelet/pods/rule.py",
        "    other = _lower_of_predecessor(key, upper, world)\n",
        "    other = None\n",
        _tests("kubelet/pods/rule"),
    ),
    Bug(
        "a name is treated as free while a create is in progress",
        "tensile/reconcile/apply.py",
        "        cache.invalidate(step.ref.namespace, step.ref.name)",
        "        pass",
        _tests("reconcile/apply", "reconcile/certainty"),
    ),
    Bug(
        "a pod leaves a terminal phase",
        "tensile/kubelet/pods/status.py",
        "    if upper.phase in TERMINAL and lower.phase != upper.phase:\n        return None\n",
        "",
        _tests("kubelet/pods/status"),
    ),
    Bug(
        "a pod denied by the lower cluster becomes Failed",
        "tensile/kubelet/pods/status.py",
        'fields = {"phase": upper.phase, "reason"',
        'fields = {"phase": "Failed", "reason"',
        _tests("kubelet/pods/status_own"),
    ),
    Bug(
        "an object of another owner with the same name is treated as ours",
        "tensile/reconcile/apply.py",
        "return labels(found).get(OWNER) == labels(wanted).get(OWNER) and bool(upper_uid_of(found))",
        "return True",
        _tests("reconcile/apply", "reconcile/loop"),
    ),
    Bug(
        "the taint stays after its cluster has recovered",
        "tensile/kubelet/node/rule.py",
        "        elif _identity(taint) not in before:\n",
        "        else:\n",
        _tests("kubelet/node/rule"),
    ),
    Bug(
        "the node lease is not renewed",
        "tensile/kubelet/node/lease.py",
        "        found: Manifest = orjson.loads(await self._upper.patch(self._ref, patch))\n",
        "        found = lease\n",
        _tests("kubelet/node/lease"),
    ),
    Bug(
        "a copied Secret stays in the lower cluster without a pod",
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
        "the last-applied annotation of kubectl, with a Secret's content, is copied",
        "tensile/reconcile/ownership.py",
        "for key, value in annotations(original).items() if key not in _NOT_COPIED}",
        "for key, value in annotations(original).items()}",
        _tests("reconcile/pods/references"),
    ),
    Bug(
        "a ServiceAccount token is not renewed",
        "tensile/kubelet/pods/token_rule.py",
        "    return (due - world.now).total_seconds()\n",
        "    return max((due - world.now).total_seconds(), 60.0)\n",
        _tests("kubelet/pods/token_rule"),
    ),
    Bug(
        "a PersistentVolumeClaim with data is deleted",
        "tensile/reconcile/rules/claims.py",
        "return bool(copy.facts.bound or copy.facts.lost or copy.facts.volume)",
        "return False",
        _tests("reconcile/rules/claims", "reconcile/rules/claim_rule", "reconcile/rules/orphans"),
    ),
    Bug(
        "a placeholder volume is removed before the data",
        "tensile/reconcile/rules/volumes.py",
        "    if copy is None and lower.more[CLAIM].tombstone(namespace, name) is None:\n",
        "    if copy is None and lower.unreachable_seconds:\n",
        _tests("reconcile/rules/volume_rule"),
    ),
    Bug(
        "a namespace that is not empty is deleted",
        "tensile/reconcile/apply.py",
        "    if step.only_if_empty:\n        await check_empty(cluster, step.ref)\n",
        "",
        _tests("reconcile/rules/namespace_cleanup", "reconcile/apply_namespaces", "reconcile/apply"),
    ),
    Bug(
        "a Service of another owner gets our EndpointSlices",
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
        "a bare pod is deleted before its manifest is stored",
        "tensile/policy/descheduler/rule.py",
        "return not is_bare(pod) or any(",
        "return True or any(",
        _tests("policy/descheduler/bare_pods"),
    ),
    Bug(
        "a pod that a user deleted is recreated",
        "tensile/policy/descheduler/recreate.py",
        "if pod.facts.terminating and pod.facts.disrupted:",
        "if pod.facts.terminating:",
        _tests("policy/descheduler/recreate"),
    ),
    Bug(
        "a bare pod's stored manifest is removed although another pod has its name",
        "tensile/reconcile/apply.py",
        "return REPLACES in annotations(wanted) and",
        "return REPLACES in annotations(wanted) or",
        _tests("reconcile/apply"),
    ),
    Bug(
        "the alternative terms of a node affinity are separated",
        "tensile/policy/webhook/admission.py",
        "if not _are_combinable(relevant):",
        "if not relevant:",
        _tests("policy/webhook/admission"),
    ),
    Bug(
        "affinity terms for another virtual node are copied to the lower pod",
        "tensile/kubelet/pods/lower_context.py",
        "applicable = [term for term in terms if _is_met_by_virtual_node(term, context)] or terms",
        "applicable = terms",
        _tests("policy/webhook/round_trip"),
    ),
    Bug(
        "a refused write is retried without a delay",
        "tensile/reconcile/backoff.py",
        "min(MIN_DELAY * 2.0 ** min(tries, 10), longest)",
        "MIN_DELAY",
        _tests("reconcile/backoff", "reconcile/loop"),
    ),
    Bug(
        "the kubelet API accepts unauthorized clients",
        "tensile/kubelet/api/auth.py",
        "answer = review.status.allowed and not review.status.denied",
        "answer = True",
        _tests("kubelet/api/access"),
    ),
)
"""Ordered by what they would harm: objects of other owners, pods, what pods need, the cluster."""
