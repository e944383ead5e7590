"""A topology that an engine in a pod cannot use is refused with all that has to be written, and is never rewritten."""

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
    """Parse what an engine in a namespace can use."""
    return parse_in_cluster(file, "topology.yaml", namespace)


def refused(file: str, namespace: str = NAMESPACE) -> list[str]:
    """Parse what it cannot use; return each line of the error."""
    with pytest.raises(TopologyErrors) as refusal:
        accepted(file, namespace)
    return str(refusal.value).splitlines()


def warned(file: str) -> list[str]:
    """Return the warnings about what it can use."""
    return [caution.line("topology.yaml") for caution in cautions(file, accepted(file))]


def test_all_that_has_to_be_written_is_said_at_once() -> None:
    """Each by its place in the file: what is wrong, and what a person copies."""
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


def test_who_writes_what_is_said_is_refused_nothing_more() -> None:
    """The same topology is in the ConfigMap then, to the byte, and nothing is left to warn of."""
    found = rendering(POD.encode(), "topology.yaml", RenderOptions(NAMESPACE, None))
    assert (found.topology, found.text) == (parse(POD, configmap_mode=True), POD)
    assert manifest_files(found)[TOPOLOGY] == POD
    assert warned(POD) == []


@pytest.mark.parametrize("fields", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_what_an_engine_in_a_pod_can_use_stays_as_it_is(fields: dict[str, Any]) -> None:
    """Whatever else is in it."""
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
def test_a_section_in_which_nothing_is_left_goes_as_a_whole(fields: str, advice: list[str]) -> None:
    """An empty one would be refused in turn: it is no mapping."""
    assert [line.split("; ")[1].partition(":")[0] for line in refused(HEAD + fields)] == [
        words.partition(":")[0] for words in advice
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
def test_what_is_not_in_the_way_is_not_refused(fields: str) -> None:
    """Servers that are disabled, every address, and telemetry for the pod alone."""
    assert accepted(HEAD + "lowers: []\n" + fields).name == "demo"


def test_the_example_of_every_field_is_that_of_a_machine() -> None:
    """Each of its paths is refused, and nothing else."""
    assert [line.split(": ")[1] for line in refused(EXAMPLE.read_text())] == [
        "upper.kubeconfig",
        "lowers[0].kubeconfig",
        "kubelet.tlsCertFile",
        "kubelet.tlsKeyFile",
        "kubelet.clientCAFile",
    ]


def test_a_bad_file_is_refused_as_ever() -> None:
    """With every error and its place; what a pod lacks is said once the file is valid."""
    assert [line.split(": ")[:2] for line in refused(HEAD + "lowers: []\nwebhok: {}\nupper: {kubeconfig: k}\n")] == [
        ["topology.yaml:5:1", "webhok"]
    ]


def test_how_pods_below_reach_the_upper_cluster_is_asked_where_they_may() -> None:
    """It was the kubeconfig's server; where nobody asks for it, or it is given, nothing is said of it."""
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


def test_two_lower_clusters_are_never_told_to_use_one_secret() -> None:
    """The engine would come to one of them with the credential of the other."""
    theirs = "{name: b, kubeconfigSecret: {namespace: tensile, name: a}}"
    mine = "{name: a, kubeconfig: k}"
    for lowers, line in ((f"- {mine}\n- {theirs}\n", 5), (f"- {theirs}\n- {mine}\n", 6)):
        (told,) = refused(HEAD + f"lowers:\n{lowers}")
        assert told.startswith(f"topology.yaml:{line}:")
        assert told.endswith("write kubeconfigSecret: {namespace: tensile, name: a-2} (another lower uses Secret a)")
    (told,) = refused(HEAD + f"lowers:\n- {mine}\n- {theirs}\n- {{name: a-2, {theirs[10:]}\n")
    assert "{namespace: tensile, name: a-3}" in told
    (told,) = refused(HEAD + f"lowers:\n- {mine}\n- {theirs}\n", "ops")
    assert told.endswith("write kubeconfigSecret: {namespace: ops, name: a}")


def test_names_that_look_like_something_else_are_quoted() -> None:
    """What is copied is the same text for every reader of YAML."""
    (told,) = refused(HEAD + "lowers: [{name: '012', kubeconfig: k}]\n")
    assert told.endswith('write kubeconfigSecret: {namespace: tensile, name: "012"}')


def test_a_service_of_another_namespace_cannot_lead_to_the_engine() -> None:
    """Kubernetes' Services lead to pods of their own namespace only."""
    file = HEAD + "lowers: []\nwebhook: {enabled: true, service: {namespace: ops, name: hook}}\n"
    (told,) = refused(file)
    assert told.endswith("runs in tensile; write namespace: tensile, or use --namespace ops")
    assert accepted(file, "ops").webhook.service == parse(file).webhook.service


@pytest.mark.parametrize("name", ["tensile-extender", "tensile-metrics"])
def test_the_webhooks_service_has_a_name_of_its_own(name: str) -> None:
    """Two Services of one name would be one, whose ports lead nowhere."""
    (told,) = refused(HEAD + f"lowers: []\nwebhook: {{enabled: true, service: {{namespace: tensile, name: {name}}}}}\n")
    assert told.startswith("topology.yaml:5:")
    assert told.endswith(f"{name} is another Service of the engine; write name: tensile-webhook, or another name")


@pytest.mark.parametrize(
    ("fields", "told"),
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
def test_metrics_that_nobody_reaches_are_warned_of(fields: str, told: str) -> None:
    """They need no credential, so that nobody is made to open them."""
    (found,) = warned(HEAD + fields)
    assert found.startswith(f"topology.yaml:{told}")


OPEN = "telemetry: {bind: 0.0.0.0}\n"


def test_a_url_of_the_webhook_is_warned_of() -> None:
    """What it leads to outside of the clusters is not ours to say."""
    (line,) = warned(HEAD + "lowers: []\nwebhook: {enabled: true, url: 'https://hook.example.com/mutate'}\n" + OPEN)
    assert line.startswith("topology.yaml:5:31: webhook.url: must resolve to Service tensile-webhook; to make")


def test_a_secret_with_two_kubeconfigs_is_warned_of() -> None:
    """By contexts or by keys: whoever wrote it so meant it, but the commands fill a Secret with one of them."""
    lowers = [lower(name, context=name, kubeconfigSecret={"namespace": "ops", "name": "both"}) for name in "ab"]
    found = warned(text(lowers=lowers, telemetry={"bind": "0.0.0.0"}))
    assert [line.split(": ", 1)[1].partition(", and")[0] for line in found] == [
        "lowers[0].kubeconfigSecret: b uses the same Secret",
        "lowers[1].kubeconfigSecret: a uses the same Secret",
    ]


LOW = "an unprivileged pod can listen below 1024 only if its container runtime allows it; remove it"
A, B = "{name: a, kubeconfigSecret: {namespace: n, name: a}}", "{name: b, kubeconfigSecret: {namespace: n, name: b}}"


@pytest.mark.parametrize(
    ("fields", "told"),
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
def test_a_port_that_takes_rights_is_warned_of_where_something_listens(fields: str, told: list[str]) -> None:
    """Each place once: some runtimes let anybody listen there, on others the engine would end at once."""
    found = warned(HEAD + fields + OPEN)
    assert [line.split(": ")[1] for line in found] == told
    assert all(LOW in line for line in found)
    assert all(": its Service listens on 443 in any case" in line for line in found if "webhook" in line)


def test_a_port_for_metrics_that_takes_rights_is_warned_of() -> None:
    """Telemetry is always served."""
    (line,) = warned(HEAD + "lowers: []\ntelemetry: {bind: 0.0.0.0, port: 90}\n")
    assert line == f"topology.yaml:5:34: telemetry.port: {LOW}"


def below(namespace: str = NAMESPACE, **fields: Any) -> str:
    """Return what gives the engine access to lower-a, of a topology that may be of a machine."""
    wishes = RenderOptions(namespace, None)
    setup = rendering(text(**fields).encode(), "topology.yaml", wishes, for_lower=True)
    return lower_stream(setup, "lower-a", "tensile manifests")


def test_access_to_a_lower_cluster_is_the_same_for_a_machine() -> None:
    """Its file for the kubeconfig, and certificates of the engine's own servers, do not matter there.

    The commands fill the Secret that the refusal names, and it is said what to write for it.
    """
    machine = {"lowers": [{"name": "lower-a", "kubeconfig": "k", "context": "c"}], "upper": {"kubeconfig": "u"}}
    machine |= {"kubelet": {"tlsCertFile": "c", "tlsKeyFile": "k", "clientCAFile": "a"}}
    pod = below(lowers=[lower("lower-a", context="c")])
    advice = "# kubeconfigSecret: {namespace: tensile, name: lower-a}\n"
    told, _, rest = below(**machine).partition(advice)
    assert told.splitlines()[1] == (
        "# The topology names a kubeconfig file. For an engine in a pod, replace it by this Secret:"
    )
    assert told.splitlines()[0] + "\n" + rest == pod
    assert "-n tensile create secret generic lower-a --from-file=kubeconfig=/dev/stdin" in rest
    assert "-n ops create secret generic lower-a --from" in below("ops", **machine)


def test_the_secret_of_another_lower_cluster_is_not_filled_for_a_machine() -> None:
    """The commands would replace its kubeconfig; a key that defaults name is that of the Secret, too."""
    defaults = {"kubeconfigSecret": {"namespace": NAMESPACE, "key": "config"}}
    lowers = [{"name": "lower-a", "kubeconfig": "k"}, {"name": "b", "kubeconfigSecret": {"name": "lower-a"}}]
    found = below(lowers=lowers, lowerDefaults=defaults)
    assert "# kubeconfigSecret: {namespace: tensile, name: lower-a-2}\n" in found
    assert "-n tensile create secret generic lower-a-2 --from-file=config=/dev/stdin" in found


def test_the_directory_of_a_set_up_has_no_word_of_files() -> None:
    """Its topology names Secrets alone."""
    assert "names a file" not in manifest_files(setup())["lowers/lower-a/access.yaml"]
