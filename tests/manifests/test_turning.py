"""A machine's topology file is turned into one for a pod: each change is said, the rest stays as it was written."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from setupkit import TOPOLOGIES, text

from tensile.deploy.convert import ConvertedTopology, turned
from tensile.topology import TopologyErrors, parse
from tensile.topology.diff import edit

EXAMPLE = Path(__file__).resolve().parents[2] / "topology.example.yaml"
ADDRESS = "set it if pods below are to reach the upper cluster"
HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\n"
OPEN = "telemetry: {bind: 0.0.0.0}\n"
MACHINE = f"""\
# The topology of a machine.
{HEAD}
upper:  # the upper
  kubeconfig: kubeconfigs/upper  # there
  context: null
  qps: 50

# All lowers.
lowers:
- name: lower-a
  kubeconfig: below/a  # there too
  capacity: {{reserve: {{cpu: "2", memory: "1e9"}}}}
- kubeconfig: below/b
  name: lower-b

kubelet:
  bind: 127.0.0.1
  port: 10351  # not the default
  nodeAddress: 10.0.0.7
webhook:
  # Prepares pods.
  enabled: true
  ignoreSelectorKeys: ["no", clusterID]  # "no" is a label

telemetry:
  bind: 127.0.0.1  # only here
"""
POD = f"""\
# The topology of a machine.
{HEAD}
upper:  # the upper
  qps: 50

# All lowers.
lowers:
- name: lower-a
  kubeconfigSecret: {{namespace: tensile, name: lower-a}}  # there too
  capacity: {{reserve: {{cpu: "2", memory: "1e9"}}}}
- kubeconfigSecret: {{namespace: tensile, name: lower-b}}
  name: lower-b

kubelet:
  port: 10351  # not the default
webhook:
  # Prepares pods.
  enabled: true
  ignoreSelectorKeys: ["no", clusterID]  # "no" is a label
  service: {{namespace: tensile, name: tensile-webhook}}

telemetry:
  bind: 0.0.0.0  # only here
"""


def turn(file: str, namespace: str = "tensile") -> ConvertedTopology:
    """Turn a file's text."""
    return turned(file, "topology.yaml", namespace)


def refusal(file: str, namespace: str = "tensile") -> str:
    """Turn what cannot be, and return what is said."""
    with pytest.raises(TopologyErrors) as found:
        turn(file, namespace)
    return str(found.value)


def test_a_machines_file_becomes_that_of_a_pod_and_keeps_its_comments() -> None:
    """Whatever else is in a line, and in the form that it has."""
    assert turn(MACHINE).text == POD


def test_each_change_is_said_in_a_line() -> None:
    """By its place in the file, with the reason."""
    assert turn(MACHINE).words == (
        "upper.kubeconfig: left out: the engine runs in the upper cluster, as the account of its pod",
        "upper.context: left out: the engine runs in the upper cluster, as the account of its pod",
        "lowers[0].kubeconfig: kubeconfigSecret {namespace: tensile, name: lower-a}: a pod has no file below/a",
        "lowers[1].kubeconfig: kubeconfigSecret {namespace: tensile, name: lower-b}: a pod has no file below/b",
        "kubelet.bind: left out: a pod does not have the address 127.0.0.1, or is not reached there",
        "kubelet.nodeAddress: left out: the nodes have the address of the pod that drives",
        "telemetry.bind: now 0.0.0.0: at 127.0.0.1 nobody could ask for metrics; whoever reaches the pod can now",
        "webhook.service: now {namespace: tensile, name: tensile-webhook}: so the upper apiserver reaches it",
        "upper.advertiseURL: not given: it was the address in the kubeconfig; " + ADDRESS,
    )


def test_a_file_for_a_pod_stays_as_it_is() -> None:
    """To the byte, and nothing is said."""
    assert turn(POD) == (POD, parse(POD, configmap_mode=True), ())


@pytest.mark.parametrize("fields", TOPOLOGIES.values(), ids=TOPOLOGIES)
def test_what_is_no_matter_of_the_place_means_the_same(fields: dict[str, Any]) -> None:
    """Of all that changes from one to the other only what was said counts, and turning it again changes nothing."""
    before, after = parse(text(**fields)), turn(text(**fields))
    assert turn(after.text) == after._replace(words=())
    places = ("kubeconfig", "telemetry.bind", "webhook.service")
    assert all(any(place in words for place in places) for words in edit(before, after.topology).words)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("upper: {kubeconfig: k}\n", ""),
        ("upper: {context: c, kubeconfig: k, burst: 5000}\n", "upper: {burst: 5000}\n"),
        ("upper: {burst: 5000, kubeconfig: k}\n", "upper: {burst: 5000}\n"),
        ("upper: {}\n", "upper: {}\n"),
        ("webhook: {enabled: true, bind: 10.0.0.1, url: 'https://a/mutate'}\n", None),
        ("extender: {bind: 127.0.0.1, enabled: true}\n", "extender: {enabled: true}\n"),
        ("extender: {bind: '::1', enabled: true}\n", "extender: {bind: '::', enabled: true}\n"),
        ("kubelet:\n  nodeAddress: 10.0.0.1\n", ""),
        ("kubelet: {bind: 0.0.0.0}\n", "kubelet: {bind: 0.0.0.0}\n"),
        ('kubelet: {bind: "::"}\n', 'kubelet: {bind: "::"}\n'),
        (
            "webhook: {enabled: true}\n",
            "webhook: {service: {namespace: tensile, name: tensile-webhook}, enabled: true}\n",
        ),
        ("webhook: {enabled: false}\n", "webhook: {enabled: false}\n"),
        (
            "lowers:\n- {name: a, kubeconfig: k}\n",
            "lowers:\n- {name: a, kubeconfigSecret: {namespace: tensile, name: a}}\n",
        ),
    ],
)
def test_forms_in_which_it_is_written(file: str, wanted: str | None) -> None:
    """In braces, with a section's last field, with none left; what says nothing of a machine stays."""
    lowers = "" if "lowers" in file else "lowers: []\n"
    whole = HEAD + lowers + file
    wanted = "webhook: {enabled: true, url: 'https://a/mutate'}\n" if wanted is None else wanted
    assert turn(whole).text == HEAD + lowers + wanted + OPEN


def test_a_form_that_cannot_be_kept_loses_its_comments_and_says_so() -> None:
    """An anchor that is used elsewhere would change two places with one."""
    file = HEAD + "# comment\nlowers:\n- {name: a, kubeconfig: &k shared}\n- {name: b, kubeconfig: *k}\n" + OPEN
    found = turn(file)
    assert "comment" not in found.text
    assert found.words[-1].startswith("comments are left out: ")
    assert [lower.kubeconfig_secret.name for lower in found.topology.lowers if lower.kubeconfig_secret] == ["a", "b"]


def test_text_that_looks_like_something_else_stays_text_when_a_file_is_written_anew() -> None:
    """For readers of YAML 1.1 and of 1.2."""
    labels = {"a": "yes", "b": "1e3", "c": "0o17", "d": "012", "e": "null", "f": "1_0", "g": "plain"}
    quoted = ", ".join(f'{key}: "{value}"' for key, value in labels.items())
    lower = f"lowers:\n- {{name: a, kubeconfig: &k shared, node: {{labels: {{{quoted}}}}}}}\n"
    anchored = HEAD + lower + "- {name: b, kubeconfig: *k}\n"
    found = turn(anchored)
    assert found.words[-1].startswith("comments are left out: ")
    assert found.topology.lowers[0].node.labels == {"clusterID": "a", **labels}
    assert yaml.safe_load(found.text)["lowers"][0]["node"]["labels"] == labels


def test_a_secret_that_is_named_already_stays() -> None:
    """In whatever namespace; what defaults say of keys holds for those that are named here."""
    file = HEAD + (
        "lowerDefaults: {kubeconfigSecret: {namespace: ops, key: config}}\n"
        "lowers:\n- {name: a, kubeconfigSecret: {name: mine}}\n- {name: b, kubeconfig: k}\n"
    )
    secrets = [lower.kubeconfig_secret for lower in turn(file).topology.lowers]
    assert [(one.namespace, one.name, one.key) for one in secrets if one] == [
        ("ops", "mine", "config"),
        ("tensile", "b", "config"),
    ]


def test_certificates_in_files_cannot_be_turned() -> None:
    """All at once, each with its place and what there is in its stead."""
    told = refusal(EXAMPLE.read_text()).splitlines()
    assert [line.split(": ")[1] for line in told] == [
        "kubelet.tlsCertFile",
        "kubelet.tlsKeyFile",
        "kubelet.clientCAFile",
    ]
    assert told[0].startswith("topology.yaml:")
    assert all("leave it out" in line for line in told)
    hook = HEAD + "lowers: []\nwebhook: {tlsCertFile: c, tlsKeyFile: k}\n"
    assert "topology.yaml:5:24: webhook.tlsCertFile: a file of this machine" in refusal(hook)


def test_a_service_of_another_namespace_cannot_lead_to_the_engine() -> None:
    """Kubernetes' Services lead to pods of their own namespace only."""
    file = HEAD + "lowers: []\nwebhook: {enabled: true, service: {namespace: ops, name: hook}}\n"
    assert "write tensile, or give --namespace ops" in refusal(file)
    service = turn(file, "ops").topology.webhook.service
    assert service is not None
    assert (service.namespace, service.name) == ("ops", "hook")


def test_a_url_of_the_webhook_stays_and_is_said_to_have_to_lead_elsewhere() -> None:
    """What it leads to outside of the clusters is not ours to say."""
    found = turn(HEAD + "lowers: []\nwebhook: {enabled: true, url: 'https://hook.example.com/mutate'}\n" + OPEN)
    assert found.topology.webhook.service is None
    assert found.words == (
        "webhook.url: stays: it has to lead to Service tensile-webhook now; leave it out to have that called directly",
    )


def test_a_bad_file_is_refused_as_ever() -> None:
    """With every error and its place."""
    assert refusal(HEAD + "lowers: []\nwebhok: {}\n").startswith("topology.yaml:5:1: webhok: ")


def test_what_pods_below_need_to_reach_the_upper_is_not_lost_silently() -> None:
    """The address was the kubeconfig's; where nobody asks for it, or it is given, nothing is said."""
    quiet = [
        {"controllers": []},
        {"upper": {"kubeconfig": "k", "advertiseURL": "https://upper:6443"}},
        {"upper": {"qps": 5}},
    ]
    for fields in quiet:
        file = text(**{"upper": {"kubeconfig": "k"}, **fields})
        assert not any("advertiseURL" in words for words in turn(file).words)
    asked = turn(text(upper={"kubeconfig": "k"}, controllers=["ServiceAccount"], serviceAccounts={"identity": "upper"}))
    assert "upper.advertiseURL" in asked.words[-1]


def test_two_lower_clusters_never_get_one_secret_by_being_turned() -> None:
    """The engine would come to one of them with the credential of the other; the other way round it is refused too."""
    theirs = "{name: b, kubeconfigSecret: {namespace: tensile, name: a}}"
    mine = "{name: a, kubeconfig: k}"
    for lowers, line in ((f"- {mine}\n- {theirs}\n", 5), (f"- {theirs}\n- {mine}\n", 6)):
        told = refusal(HEAD + f"lowers:\n{lowers}")
        assert told.startswith(f"topology.yaml:{line}:")
        assert "kubeconfig: it would be kubeconfigSecret tensile/a, which is that of b; write kubeconfigSecret" in told
        assert len(told.splitlines()) == 1
    assert turn(HEAD + f"lowers:\n- {mine}\n- {theirs}\n", "ops").topology.lowers[0].kubeconfig_secret is not None


def test_a_secret_with_two_kubeconfigs_that_is_named_stays() -> None:
    """By contexts or by keys: whoever wrote it so meant it, but the commands that fill a Secret put one of them there.

    What defaults name is nobody's by itself.
    """
    one, other = ("{name: %s, context: %s, kubeconfigSecret: {namespace: tensile, name: c}}" % (2 * (x,)) for x in "ab")
    found = turn(HEAD + f"lowers:\n- {one}\n- {other}\n" + OPEN)
    assert (found.text, [words.partition(" too: ")[0] for words in found.words]) == (
        HEAD + f"lowers:\n- {one}\n- {other}\n" + OPEN,
        ["lowers[0].kubeconfigSecret: stays: that of b", "lowers[1].kubeconfigSecret: stays: that of a"],
    )
    defaults = "lowerDefaults: {kubeconfigSecret: {namespace: tensile}}\n"
    found = turn(HEAD + defaults + "lowers:\n- {name: a, kubeconfig: k}\n- {name: b, kubeconfig: k}\n")
    assert [lower.kubeconfig_secret.name for lower in found.topology.lowers if lower.kubeconfig_secret] == ["a", "b"]


@pytest.mark.parametrize("name", ["tensile-extender", "tensile-metrics"])
def test_the_webhooks_service_has_a_name_of_its_own(name: str) -> None:
    """Two Services of one name would be one, whose ports lead nowhere."""
    service = f"service: {{namespace: tensile, name: {name}}}"
    told = refusal(HEAD + f"lowers: []\nwebhook: {{enabled: true, {service}}}\n")
    assert told.startswith("topology.yaml:5:")
    assert f"webhook.service.name: {name} is a Service of the engine for something else; write tensile-webhook" in told
    assert turn(HEAD + f"lowers: []\nwebhook: {{enabled: false, {service}}}\n" + OPEN).words == ()


@pytest.mark.parametrize(("bind", "wanted"), [("::1", "'::'"), ("127.0.0.1", "0.0.0.0"), ("fd00::5", "'::'")])
def test_metrics_are_served_on_every_address_of_the_family_that_was_meant(bind: str, wanted: str) -> None:
    """A pod may have addresses of IPv6 alone, on which 0.0.0.0 does not answer."""
    found = turn(HEAD + f"lowers: []\ntelemetry: {{bind: '{bind}'}}\n")
    assert found.text.splitlines()[-1] == f"telemetry: {{bind: {wanted}}}"
    assert found.words[0].startswith(f"telemetry.bind: now {wanted}: at {bind} nobody could ask for metrics")


LOW = "stays: a pod without rights listens below 1024 only where its runtime lets anybody; leave it out"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("lowers: []\nwebhook: {enabled: true, port: 443}\n", [f"webhook.port: {LOW}, its Service has 443 anyway"]),
        ("lowers: []\nwebhook: {enabled: false, port: 443}\n", []),
        ("lowers: []\nwebhook: {enabled: true, port: 1024}\n", []),
        ("lowers: []\nextender: {enabled: true, port: 1023}\n", [f"extender.port: {LOW}"]),
        (
            "lowers: [{name: a, kubeconfig: k}, {name: b, kubeconfig: k}]\nkubelet: {port: 80}\n",
            [f"kubelet.port: {LOW}"],
        ),
        ("lowers: [{name: a, kubeconfig: k, node: {kubeletPort: 1025}}]\nkubelet: {port: 80}\n", []),
        (
            "lowers: [{name: a, kubeconfig: k}]\nlowerDefaults: {node: {kubeletPort: 80}}\n",
            [f"lowerDefaults.node.kubeletPort: {LOW}"],
        ),
    ],
)
def test_a_port_that_takes_rights_is_told_where_something_listens(fields: str, told: list[str]) -> None:
    """Each place once, and it stays: some runtimes let anybody listen there, on others the engine would end at once."""
    found = turn(HEAD + fields + OPEN)
    assert [words for words in found.words if LOW in words] == told
    assert parse(found.text).kubelet.port == parse(HEAD + fields).kubelet.port


def test_a_port_for_metrics_that_takes_rights_is_told() -> None:
    """Telemetry is always served."""
    found = turn(HEAD + "lowers: []\ntelemetry: {bind: 0.0.0.0, port: 90}\n")
    assert found.words == (f"telemetry.port: {LOW}",)
