"""Tests of the manifests for a topology: the objects agree with each other and with the engine."""

from typing import Any

import pytest
import yaml
from setupkit import ALL, TOPOLOGIES, applied, lower, only_object, parse_rendered, setup, text

import tensile
from tensile.deploy.manifests import (
    OF_LOWER,
    OF_UPPER,
    RenderOptions,
    lower_stream,
    manifest_files,
    rendering,
    upper_stream,
)
from tensile.deploy.setup import Setup
from tensile.engine.topology_reader import CONFIGMAP_KEY, ConfigMapKey
from tensile.errors import TensileError
from tensile.names import LEADS, VIRTUAL_NODE
from tensile.objects import Manifest
from tensile.policy.webhook.registration import names_of
from tensile.topology import parse

EVERY = pytest.mark.parametrize("fields", TOPOLOGIES.values(), ids=TOPOLOGIES)


def pod(found: Setup) -> Manifest:
    """Return the template of the engine's pods."""
    return only_object(applied(found), "Deployment")["spec"]["template"]


def container(found: Setup) -> Manifest:
    """Return the only container of the engine's pods."""
    (only,) = pod(found)["spec"]["containers"]
    return only


def called(found: Setup) -> set[int]:
    """Return every port on which the engine listens with a topology, and the port of probes."""
    topology = found.topology
    ports = {topology.telemetry.port, int(container(found)["args"][-1])}
    ports |= {lower.node.kubelet_port or first for first, lower in enumerate(topology.lowers, topology.kubelet.port)}
    return ports | {server.port for server in (topology.webhook, topology.extender) if server.enabled}


def allowed(found: Setup) -> set[int]:
    """Return the ports that the NetworkPolicy opens to callers."""
    (rule,) = only_object(applied(found), "NetworkPolicy")["spec"]["ingress"]
    assert set(rule) == {"ports"}, "all callers"
    return {port for row in rule["ports"] for port in range(row["port"], row.get("endPort", row["port"]) + 1)}


@EVERY
def test_every_port_of_the_engine_is_open(fields: dict[str, Any]) -> None:
    """The policy does not restrict egress, because lower clusters may be anywhere."""
    found = setup(**fields)
    assert called(found) <= allowed(found)
    assert only_object(applied(found), "NetworkPolicy")["spec"]["policyTypes"] == ["Ingress"]


def test_ports_of_later_lower_clusters_are_open() -> None:
    """Their ports follow kubelet.port, so that an edit of the ConfigMap is enough; none exceeds 65535."""
    assert set(range(10350, 10450)) <= allowed(setup())
    assert max(allowed(setup(kubelet={"port": 65500}))) == 65535
    among = setup(kubelet={"port": 8080})
    assert not set(range(8080, 8180)) & {int(container(among)["args"][-1])}
    many = [lower(f"l{number}") for number in range(150)]
    assert set(range(10350, 10500)) <= allowed(setup(lowers=many))


@EVERY
def test_all_objects_agree(fields: dict[str, Any]) -> None:
    """Selectors match the pods, named ports exist, and all objects use the same ServiceAccount and labels."""
    found = setup(**fields)
    objects, labels = applied(found), pod(found)["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container(found)["ports"]}
    for service in (each for each in objects if each["kind"] == "Service"):
        assert dict(service["spec"]["selector"]).items() <= {**labels, LEADS: found.topology.name}.items()
        assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    budget, policy = only_object(objects, "PodDisruptionBudget"), only_object(objects, "NetworkPolicy")
    assert budget["spec"]["selector"] == {"matchLabels": labels}
    assert policy["spec"]["podSelector"] == {"matchLabels": labels}
    assert only_object(objects, "Deployment")["spec"]["selector"] == {"matchLabels": labels}
    assert len(set(ports.values())) == len(ports)
    for probe in ("livenessProbe", "readinessProbe"):
        assert ports[container(found)[probe]["httpGet"]["port"]] == int(container(found)["args"][-1])
    assert pod(found)["spec"]["serviceAccountName"] == only_object(objects, "ServiceAccount")["metadata"]["name"]


@EVERY
def test_the_engine_finds_its_topology(fields: dict[str, Any]) -> None:
    """The argument names the rendered ConfigMap, whose text is valid for that mode."""
    found = setup(**fields)
    held = only_object(applied(found), "ConfigMap")
    assert parse(held["data"][CONFIGMAP_KEY], configmap_mode=True) == found.topology
    args = container(found)["args"]
    assert args[:2] == ["run", "--configmap"]
    assert args[2] == str(ConfigMapKey(held["metadata"]["namespace"], held["metadata"]["name"]))


def test_only_enabled_features_have_objects() -> None:
    """There are Services for enabled servers, and a StorageClass if volumes are created."""
    little, whole = (applied(setup(**TOPOLOGIES[name])) for name in ("little", "whole"))
    names = [{each["metadata"]["name"] for each in some if each["kind"] == "Service"} for some in (little, whole)]
    assert names == [{"tensile-metrics"}, {"tensile-metrics", "tensile-webhook", "tensile-extender"}]
    assert [sum(each["kind"] == "StorageClass" for each in some) for some in (little, whole)] == [0, 1]


def test_the_webhooks_service_has_the_name_of_its_certificate() -> None:
    """The engine registers port 443; a name in the topology is used."""
    for fields in (TOPOLOGIES["whole"], TOPOLOGIES["ports"]):
        found = setup(**fields)
        name = names_of(found.topology.webhook)[0].removesuffix(".tensile.svc")
        (port,) = only_object(applied(found), "Service", name)["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (443, "webhook")


def test_the_extenders_service_selects_the_leading_pod() -> None:
    """The scheduler's configuration has the Service's port and the command that shows its address."""
    found = setup(**TOPOLOGIES["whole"])
    service = only_object(applied(found), "Service", "tensile-extender")
    assert service["spec"]["selector"][LEADS] == "demo"
    (configuration,) = parse_rendered(found, "scheduler-extender.yaml")
    (extender,) = configuration["extenders"]
    assert extender["urlPrefix"].endswith(f":{service['spec']['ports'][0]['port']}")
    assert "get service tensile-extender" in manifest_files(found)["scheduler-extender.yaml"]
    assert "Write IPv6 in brackets" in manifest_files(found)["scheduler-extender.yaml"]


def test_the_schedulers_configuration_is_rendered_before_the_extender_is_enabled() -> None:
    """It notes that the extender is disabled, and has its port and namespace once it is enabled."""
    name = "scheduler-extender.yaml"
    early, late = setup(), setup(namespace="ops", extender={"enabled": True, "port": 9999})
    assert "this topology does not enable the extender" in manifest_files(early)[name]
    assert parse_rendered(early, name)[0]["kind"] == "KubeSchedulerConfiguration"
    assert "not enable" not in manifest_files(late)[name]
    assert parse_rendered(late, name)[0]["extenders"][0]["urlPrefix"].endswith(":9999")
    assert "kubectl -n ops get service tensile-extender" in manifest_files(late)[name]
    assert all(name not in parse_rendered(found, "kustomization.yaml")[0]["resources"] for found in (early, late))


@EVERY
def test_every_rendered_file_has_a_known_name(fields: dict[str, Any]) -> None:
    """Otherwise a file would not be removed when it is no longer rendered."""
    places = [path.rpartition("/") for path in manifest_files(setup(**fields))]
    assert {name for folder, _, name in places if not folder} <= set(OF_UPPER)
    assert {name for folder, _, name in places if folder} <= set(OF_LOWER)


def test_the_engines_file_names_the_port_that_a_topology_must_not_use() -> None:
    """The port of probes is in the Deployment, and users edit the topology without it."""
    for fields in TOPOLOGIES.values():
        found = setup(**fields)
        message = f"Port {container(found)['args'][-1]} is for the probes: do not use it in the topology."
        assert message in manifest_files(found)["engine.yaml"].replace("\n# ", " ")


def test_the_pods_never_run_on_a_virtual_node() -> None:
    """An engine on a node that it serves itself could not start, so affinity excludes these nodes."""
    (term,) = pod(setup())["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    key, value = VIRTUAL_NODE
    assert term["matchExpressions"] == [{"key": key, "operator": "NotIn", "values": [value]}]
    assert "tolerations" not in pod(setup())["spec"]


def test_the_image_is_that_of_this_version_or_the_given_one() -> None:
    """It has no registry by default, because only the operator knows it."""
    assert container(setup())["image"] == f"tensile-kube:{tensile.__version__}"
    assert container(setup(image="mine/tensile@sha256:0"))["image"] == "mine/tensile@sha256:0"


def test_all_objects_are_in_the_given_namespace() -> None:
    """Some roles must be in other namespaces; lower clusters use the given one too."""
    found = setup(namespace="ops", **ALL)
    elsewhere = {"kube-node-lease", "kube-system"}
    places = {each["metadata"].get("namespace") for each in applied(found)}
    assert places == {None, "ops", *elsewhere}
    lower_objects = list(yaml.safe_load_all(lower_stream(found, "lower-a", "tensile manifests")))
    assert {each["metadata"].get("namespace") for each in lower_objects} == {None, "ops"}
    assert {only_object(objects, "Namespace")["metadata"]["name"] for objects in (applied(found), lower_objects)} == {
        "ops"
    }


def test_a_lower_cluster_gets_the_rights_of_its_own_controllers() -> None:
    """It also gets an account, whose token is in the kubeconfig."""
    lowers = [lower("a"), lower("b", controllers=[])]
    found = setup(lowers=lowers)
    rights = []
    for name in "ab":
        objects = parse_rendered(found, f"lowers/{name}/access.yaml")
        rights.append(
            {resource for rule in only_object(objects, "ClusterRole")["rules"] for resource in rule["resources"]}
        )
        token = only_object(objects, "Secret")
        account = token["metadata"]["annotations"]["kubernetes.io/service-account.name"]
        assert (token["type"], account) == (
            "kubernetes.io/service-account-token",
            only_object(objects, "ServiceAccount")["metadata"]["name"],
        )
    assert rights[0] - rights[1] >= {"services", "persistentvolumeclaims"}


def test_the_head_lists_the_required_secrets() -> None:
    """It has their keys and the commands that create them; a directory refers to its own files."""
    secret = {"namespace": "ops", "name": "mine", "key": "config"}
    found = setup(lowers=[{"name": "a", "kubeconfigSecret": secret}])
    assert "#   Secret ops/mine, key config: see lowers/a/access.yaml\n" in manifest_files(found)["kustomization.yaml"]
    access = manifest_files(found)["lowers/a/access.yaml"]
    assert "-n ops create secret generic mine --from-file=config=/dev/stdin" in access
    assert 'kubectl --kubeconfig "$LOWER" apply -k lowers/a\n' in access
    assert "Secret" not in manifest_files(setup(lowers=[]))["kustomization.yaml"]


def test_an_unknown_lower_is_refused() -> None:
    """The error lists the known ones."""
    with pytest.raises(
        TensileError, match=r"^--lower c: the topology has no such lower cluster \(it has: lower-a, lower-b\)$"
    ):
        lower_stream(setup(), "c", "")
    with pytest.raises(TensileError, match="it has: none"):
        lower_stream(setup(lowers=[]), "c", "")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (RenderOptions("kube-system", None), "--namespace kube-system: other pods use it"),
        (RenderOptions("default", None), "--namespace default: other pods use it"),
        (RenderOptions("Tensile", None), '--namespace: is "Tensile"; must be lower-case'),
        (RenderOptions("", None), '--namespace: is ""; must be'),
        (RenderOptions("tensile", ""), "--image ''"),
        (RenderOptions("tensile", "a b"), "--image 'a b': not an image name"),
    ],
)
def test_invalid_options_are_refused(wishes: RenderOptions, message: str) -> None:
    """The error names the option; strict Pod Security would affect other pods in a shared namespace."""
    with pytest.raises(TensileError) as refusal:
        rendering(text().encode(), "topology.yaml", wishes)
    assert str(refusal.value).startswith(message)


def test_a_secret_that_two_lowers_share_is_announced_before_the_commands() -> None:
    """The commands would replace the kubeconfig of one by that of the other."""
    lowers = [
        {"name": name, "kubeconfigSecret": {"namespace": "ops", "name": "both", "key": f"{name}.yaml"}} for name in "ab"
    ]
    shared = lower_stream(setup(lowers=lowers), "a", "tensile manifests")
    assert "# Lower cluster b uses the same Secret: these commands replace its whole content.\n" in shared
    assert "the same Secret" not in lower_stream(setup(), "lower-a", "tensile manifests")


def test_the_head_repeats_the_given_command() -> None:
    """It includes the other options, without which the output would differ."""
    found = setup(extender={"enabled": True})
    command = "tensile manifests -f my.yaml --namespace ops"
    text = upper_stream(found, command)
    assert f"#   Secret tensile/lower-a, key kubeconfig: see {command} --lower lower-a\n" in text
    assert f"`{command} --dir DIR` writes it" in text.replace("\n#", "")
    assert f'#   {command} --lower lower-a | kubectl --kubeconfig "$LOWER" apply -f -\n' in lower_stream(
        found, "lower-a", command
    )
