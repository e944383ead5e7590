"""Tests of topologies for an engine in a pod: unusable ones are refused with all corrections and never rewritten."""

from pathlib import Path
from typing import Any

import pytest
from setupkit import TOPOLOGIES, lower, setup, text

from tensile.deploy.manifests import NAMESPACE, TOPOLOGY, RenderOptions, lower_stream, manifest_files, rendering
from tensile.deploy.setup import cautions, parse_in_cluster
from tensile.topology import Topology, TopologyErrors, parse

EXAMPLE = Path(__file__).resolve().parents[2] / "topology.example.yaml"
HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\n"
MACHINE = f"""\
# The topology of a machine.
{HEAD}
upper:
  kubeconfig: kubeconfigs/upper  # there
  context: admin
  qps: 50
lowers:
- name: lower-a
  kubeconfig: below/a
- kubeconfig: below/b
  name: lower-b
kubelet:
  bind: 127.0.0.1
  port: 10351
  nodeAddress: 10.0.0.7
  tlsCertFile: kubelet.crt
  tlsKeyFile: kubelet.key
  clientCAFile: ca.crt
webhook:
  enabled: true
  bind: fd00::5
extender: {{enabled: true, bind: 10.0.0.7}}
telemetry: {{bind: 10.0.0.7}}
"""
SECRET = "kubeconfigSecret: {namespace: tensile, name: "
SERVER = "set advertiseURL there if lower pods call the upper apiserver"
POD = f"""\
# The topology of a pod.
{HEAD}
upper:
  qps: 50
lowers:
- name: lower-a
  kubeconfigSecret: {{namespace: tensile, name: lower-a}}
- kubeconfigSecret: {{namespace: tensile, name: lower-b}}
  name: lower-b
kubelet:
  port: 10351
webhook:
  enabled: true
  bind: '::'
  service: {{namespace: tensile, name: tensile-webhook}}
extender: {{enabled: true}}
telemetry: {{bind: 0.0.0.0}}
"""


def accepted(file: str, namespace: str = NAMESPACE) -> Topology:
    """Parse a topology that an engine in this namespace can use."""
    return parse_in_cluster(file, "topology.yaml", namespace)


def refused(file: str, namespace: str = NAMESPACE) -> list[str]:
    """Parse a topology that the engine cannot use, and return each line of the error."""
    with pytest.raises(TopologyErrors) as refusal:
        accepted(file, namespace)
    return str(refusal.value).splitlines()


def warned(file: str) -> list[str]:
    """Return the warnings about a usable topology."""
    return [caution.line("topology.yaml") for caution in cautions(file, accepted(file))]


def test_all_corrections_are_reported_at_once() -> None:
    """Each line has the position in the file, the mistake, and text that can be copied."""
    file = "a pod does not have the file"
    assert [tuple(line.removeprefix("topology.yaml:").split("; ", 1)) for line in refused(MACHINE)] == [
        (
            f"7:15: upper.kubeconfig: {file} kubeconfigs/upper and uses its ServiceAccount",
            f"remove it, or {SERVER}",
        ),
        ("8:12: upper.context: a pod uses its ServiceAccount instead of a kubeconfig", "remove it"),
        (f"12:15: lowers[0].kubeconfig: {file} below/a", f"write {SECRET}lower-a}}"),
        (f"13:15: lowers[1].kubeconfig: {file} below/b", f"write {SECRET}lower-b}}"),
        ("16:9: kubelet.bind: other hosts cannot reach a pod at 127.0.0.1", "remove it"),
        ("18:16: kubelet.nodeAddress: the nodes have the address of the leader's pod", "remove it"),
        (f"19:16: kubelet.tlsCertFile: {file} kubelet.crt", "remove it: the upper cluster issues one for each node"),
        (f"20:15: kubelet.tlsKeyFile: {file} kubelet.key", "remove it: tlsCertFile needs it"),
        (f"21:17: kubelet.clientCAFile: {file} ca.crt", "remove it: the upper cluster publishes one"),
        (
            "22:1: webhook.service: missing, so the upper apiserver never calls the webhook",
            "write service: {namespace: tensile, name: tensile-webhook}",
        ),
        ("24:9: webhook.bind: other hosts cannot reach a pod at fd00::5", "write bind: '::'"),
        ("25:33: extender.bind: other hosts cannot reach a pod at 10.0.0.7", "remove it"),
        ("26:19: telemetry.bind: a pod does not have the address 10.0.0.7", "write bind: 0.0.0.0"),
    ]


def test_a_corrected_topology_is_accepted_unchanged() -> None:
    """The ConfigMap has the same bytes, and no warning is left."""
    found = rendering(POD.encode(), "topology.yaml", RenderOptions(NAMESPACE, None))
    assert (found.topology, found.text) == (parse(POD, configmap_mode=True), POD)
    assert manifest_files(found)[TOPOLOGY] == POD
    assert warned(POD) == []


@pytest.mark.parametrize("fields", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_a_usable_topology_is_parsed_as_any_other(fields: dict[str, Any]) -> None:
    """Its other fields have no influence."""
    assert accepted(text(**fields)) == parse(text(**fields), configmap_mode=True)


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ("upper: {kubeconfig: k}\nlowers: []\n", ["remove upper"]),
        ("upper: {kubeconfig: k, context: c}\nlowers: []\n", ["remove upper", "remove upper"]),
        ("upper: {kubeconfig: k, burst: 5000}\nlowers: []\n", ["remove it"]),
        ("upper: {kubeconfig: k, context: null}\nlowers: []\n", ["remove it"]),
        ("lowers: []\nkubelet: {nodeAddress: 10.0.0.1, bind: 10.0.0.1}\n", ["remove kubelet", "remove kubelet"]),
        ("lowers: []\nkubelet: {nodeAddress: 10.0.0.1, bind: '::1'}\n", ["remove it", "write bind: '::'"]),
        ("lowers: []\nwebhook: {tlsCertFile: c, tlsKeyFile: k}\n", ["remove webhook"] * 2),
    ],
)
def test_a_section_without_remaining_fields_is_removed_completely(fields: str, advice: list[str]) -> None:
    """An empty section would be refused, because it is no mapping."""
    assert [line.split("; ")[1].partition(":")[0] for line in refused(HEAD + fields)] == [
        message.partition(":")[0] for message in advice
    ]


@pytest.mark.parametrize(
    "fields",
    [
        "upper: {context: null, qps: 5}\n",
        "kubelet: {bind: 0.0.0.0}\nextender: {enabled: true, bind: '::'}\n",
        "webhook: {enabled: false, bind: 127.0.0.1}\nextender: {bind: 127.0.0.1}\n",
        "webhook: {enabled: true, url: 'https://hook.example.com/mutate'}\n",
        "webhook: {service: {namespace: elsewhere, name: tensile-metrics}}\n",
        "telemetry: {bind: '::1'}\n",
    ],
)
def test_harmless_settings_are_not_refused(fields: str) -> None:
    """They are disabled servers, wildcard addresses, and telemetry that is only for the pod itself."""
    assert accepted(HEAD + "lowers: []\n" + fields).name == "demo"


def test_the_complete_example_is_for_a_machine() -> None:
    """Each path in it is refused, and no other field is."""
    assert [line.split(": ")[1] for line in refused(EXAMPLE.read_text())] == [
        "upper.kubeconfig",
        "lowers[0].kubeconfig",
        "kubelet.tlsCertFile",
        "kubelet.tlsKeyFile",
        "kubelet.clientCAFile",
    ]


def test_an_invalid_file_is_refused_with_its_errors() -> None:
    """Each error has its position; problems of pods are reported only for valid files."""
    assert [line.split(": ")[:2] for line in refused(HEAD + "lowers: []\nwebhok: {}\nupper: {kubeconfig: k}\n")] == [
        ["topology.yaml:5:1", "webhok"]
    ]


def test_advertise_url_is_suggested_only_if_lower_pods_may_call_the_upper_cluster() -> None:
    """The kubeconfig's server was the default; it is not mentioned if it is set or not needed."""
    quiet = [
        {"controllers": []},
        {"upper": {"kubeconfig": "k", "advertiseURL": "https://upper:6443"}},
    ]
    for fields in quiet:
        (line,) = refused(text(**{"upper": {"kubeconfig": "k"}, **fields}))
        assert "advertiseURL" not in line
    identity = {"controllers": ["ServiceAccount"], "serviceAccounts": {"identity": "upper"}}
    for fields in ({"controllers": ["Service"]}, identity):
        (line,) = refused(text(upper={"kubeconfig": "k"}, **fields))
        assert "or set advertiseURL there" in line


def test_two_lowers_are_never_advised_to_use_one_secret() -> None:
    """The engine would use the credential of one lower for the other."""
    theirs = "{name: b, kubeconfigSecret: {namespace: tensile, name: a}}"
    mine = "{name: a, kubeconfig: k}"
    for lowers, line in ((f"- {mine}\n- {theirs}\n", 5), (f"- {theirs}\n- {mine}\n", 6)):
        (error,) = refused(HEAD + f"lowers:\n{lowers}")
        assert error.startswith(f"topology.yaml:{line}:")
        assert error.endswith("write kubeconfigSecret: {namespace: tensile, name: a-2} (another lower uses Secret a)")
    (error,) = refused(HEAD + f"lowers:\n- {mine}\n- {theirs}\n- {{name: a-2, {theirs[10:]}\n")
    assert "{namespace: tensile, name: a-3}" in error
    (error,) = refused(HEAD + f"lowers:\n- {mine}\n- {theirs}\n", "ops")
    assert error.endswith("write kubeconfigSecret: {namespace: ops, name: a}")


def test_names_that_look_like_numbers_are_quoted() -> None:
    """The suggested text is the same string for every YAML parser."""
    (error,) = refused(HEAD + "lowers: [{name: '012', kubeconfig: k}]\n")
    assert error.endswith('write kubeconfigSecret: {namespace: tensile, name: "012"}')


def test_a_webhook_service_of_another_namespace_is_refused() -> None:
    """A Service selects only pods of its own namespace."""
    file = HEAD + "lowers: []\nwebhook: {enabled: true, service: {namespace: ops, name: hook}}\n"
    (error,) = refused(file)
    assert error.endswith("runs in tensile; write namespace: tensile, or use --namespace ops")
    assert accepted(file, "ops").webhook.service == parse(file).webhook.service


@pytest.mark.parametrize("name", ["tensile-extender", "tensile-metrics"])
def test_a_webhook_service_with_the_name_of_another_service_is_refused(name: str) -> None:
    """One object would replace the other, and its ports would lead nowhere."""
    (error,) = refused(
        HEAD + f"lowers: []\nwebhook: {{enabled: true, service: {{namespace: tensile, name: {name}}}}}\n"
    )
    assert error.startswith("topology.yaml:5:")
    assert error.endswith(f"{name} is another Service of the engine; write name: tensile-webhook, or another name")


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        (
            "lowers: []\n",
            "1:1: telemetry.bind: metrics at 127.0.0.1 are reachable only inside the pod; write bind: 0",
        ),
        (
            "lowers: []\ntelemetry: {bind: '::1'}\n",
            "5:19: telemetry.bind: metrics at ::1 are reachable only inside the",
        ),
    ],
)
def test_unreachable_metrics_are_a_warning(fields: str, warning: str) -> None:
    """Metrics need no credential, so users are not forced to expose them."""
    (found,) = warned(HEAD + fields)
    assert found.startswith(f"topology.yaml:{warning}")


OPEN = "telemetry: {bind: 0.0.0.0}\n"


def test_a_url_of_the_webhook_is_a_warning() -> None:
    """Its target outside of the clusters cannot be checked."""
    (line,) = warned(HEAD + "lowers: []\nwebhook: {enabled: true, url: 'https://hook.example.com/mutate'}\n" + OPEN)
    assert line.startswith("topology.yaml:5:31: webhook.url: must resolve to Service tensile-webhook; to make")


def test_a_secret_with_two_kubeconfigs_is_a_warning() -> None:
    """It may be intended, by contexts or keys, but the commands write only one kubeconfig into a Secret."""
    lowers = [lower(name, context=name, kubeconfigSecret={"namespace": "ops", "name": "both"}) for name in "ab"]
    found = warned(text(lowers=lowers, telemetry={"bind": "0.0.0.0"}))
    assert [line.split(": ", 1)[1].partition(", and")[0] for line in found] == [
        "lowers[0].kubeconfigSecret: b uses the same Secret",
        "lowers[1].kubeconfigSecret: a uses the same Secret",
    ]


LOW = "an unprivileged pod can listen below 1024 only if its container runtime allows it; remove it"
A, B = "{name: a, kubeconfigSecret: {namespace: n, name: a}}", "{name: b, kubeconfigSecret: {namespace: n, name: b}}"


@pytest.mark.parametrize(
    ("fields", "warnings"),
    [
        ("lowers: []\nwebhook: {enabled: true, port: 443, service: {namespace: tensile, name: h}}\n", ["webhook.port"]),
        ("lowers: []\nwebhook: {enabled: false, port: 443}\n", []),
        ("lowers: []\nextender: {enabled: true, port: 1024}\n", []),
        ("lowers: []\nextender: {enabled: true, port: 1023}\n", ["extender.port"]),
        (f"lowers: [{A}, {B}]\nkubelet: {{port: 80}}\n", ["kubelet.port"]),
        (f"lowers: [{A}]\nkubelet: {{port: 80}}\nlowerDefaults: {{node: {{kubeletPort: 1025}}}}\n", []),
        (f"lowers: [{A}]\nlowerDefaults: {{node: {{kubeletPort: 80}}}}\n", ["lowerDefaults.node.kubeletPort"]),
    ],
)
def test_a_used_port_below_1024_is_a_warning(fields: str, warnings: list[str]) -> None:
    """Each setting is reported once; some runtimes allow such ports, and with others the engine would fail."""
    found = warned(HEAD + fields + OPEN)
    assert [line.split(": ")[1] for line in found] == warnings
    assert all(LOW in line for line in found)
    assert all(": its Service listens on 443 in any case" in line for line in found if "webhook" in line)


def test_a_port_of_metrics_below_1024_is_a_warning() -> None:
    """Telemetry is always served."""
    (line,) = warned(HEAD + "lowers: []\ntelemetry: {bind: 0.0.0.0, port: 90}\n")
    assert line == f"topology.yaml:5:34: telemetry.port: {LOW}"


def lower_manifests(namespace: str = NAMESPACE, **fields: Any) -> str:
    """Return the manifests that give the engine access to lower-a; the topology may be a machine's."""
    wishes = RenderOptions(namespace, None)
    setup = rendering(text(**fields).encode(), "topology.yaml", wishes, for_lower=True)
    return lower_stream(setup, "lower-a", "tensile manifests")


def test_access_to_a_lower_cluster_does_not_depend_on_where_the_engine_runs() -> None:
    """A kubeconfig file and certificates of the engine's own servers have no influence.

    The commands write the Secret that the refusal names, and a comment has the field for it.
    """
    machine = {"lowers": [{"name": "lower-a", "kubeconfig": "k", "context": "c"}], "upper": {"kubeconfig": "u"}}
    machine |= {"kubelet": {"tlsCertFile": "c", "tlsKeyFile": "k", "clientCAFile": "a"}}
    pod = lower_manifests(lowers=[lower("lower-a", context="c")])
    advice = "# kubeconfigSecret: {namespace: tensile, name: lower-a}\n"
    before, _, rest = lower_manifests(**machine).partition(advice)
    assert before.splitlines()[1] == (
        "# The topology names a kubeconfig file. For an engine in a pod, replace it by this Secret:"
    )
    assert before.splitlines()[0] + "\n" + rest == pod
    assert "-n tensile create secret generic lower-a --from-file=kubeconfig=/dev/stdin" in rest
    assert "-n ops create secret generic lower-a --from" in lower_manifests("ops", **machine)


def test_the_secret_of_another_lower_is_not_overwritten_for_a_machine() -> None:
    """The commands would replace its kubeconfig; a key from lowerDefaults is used for the new Secret."""
    defaults = {"kubeconfigSecret": {"namespace": NAMESPACE, "key": "config"}}
    lowers = [{"name": "lower-a", "kubeconfig": "k"}, {"name": "b", "kubeconfigSecret": {"name": "lower-a"}}]
    found = lower_manifests(lowers=lowers, lowerDefaults=defaults)
    assert "# kubeconfigSecret: {namespace: tensile, name: lower-a-2}\n" in found
    assert "-n tensile create secret generic lower-a-2 --from-file=config=/dev/stdin" in found


def test_access_files_of_a_topology_with_secrets_do_not_mention_files() -> None:
    """Its lowers refer only to Secrets."""
    assert "names a file" not in manifest_files(setup())["lowers/lower-a/access.yaml"]
