"""Tests of the command lines of the sandbox's programs."""

import pytest
import yaml

from tensile.sandbox import flags as arguments
from tensile.sandbox.state import Binaries, Layout, Options

STAGES = ("/stages/a.yaml", "/stages/b.yaml")


def flags(command: list[str]) -> dict[str, str]:
    """Return the flags of a command line with their values; the last one counts, as it does for the programs."""
    return dict(argument.removeprefix("--").split("=", 1) for argument in command[1:] if "=" in argument)


def command(layout: Layout, binaries: Binaries, component: str, options: Options | None = None) -> dict[str, str]:
    """Return the flags of one component."""
    return flags(arguments.commands(layout, binaries, options or Options(), STAGES)[component])


def test_the_upper_cluster_has_a_control_plane_and_no_nodes(upper: Layout, binaries: Binaries) -> None:
    """It runs neither kwok nor a kubelet endpoint."""
    started = list(arguments.commands(upper, binaries, Options(), STAGES))
    assert started == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]


def test_an_upper_cluster_with_a_node_runs_kwok(upper: Layout, binaries: Binaries) -> None:
    """Kwok keeps that node alive."""
    with_node = Layout(upper.root, upper.name, 0, 1, upper.ports)
    assert "kwok" in arguments.commands(with_node, binaries, Options(), STAGES)


def test_a_lower_cluster_runs_kwok_and_the_endpoint(lower: Layout, binaries: Binaries) -> None:
    """Kwok manages its nodes, and the endpoint serves as their kubelet."""
    started = list(arguments.commands(lower, binaries, Options(), STAGES))
    assert started[:2] == ["etcd", "kube-apiserver"]
    assert started[-2:] == ["kwok", "endpoint"]


def test_each_component_runs_its_own_program(lower: Layout, binaries: Binaries) -> None:
    """The first word of each command line is the program of that component."""
    commands = arguments.commands(lower, binaries, Options(), STAGES)
    programs = {component: line[0] for component, line in commands.items()}
    assert programs == {
        "etcd": binaries.etcd,
        "kube-apiserver": binaries.apiserver,
        "kube-controller-manager": binaries.controller_manager,
        "kube-scheduler": binaries.scheduler,
        "kwok": binaries.kwok,
        "endpoint": binaries.endpoint,
    }


def test_addons_are_one_process_of_the_upper_cluster(upper: Layout, lower: Layout, binaries: Binaries) -> None:
    """The process serves all clusters, and does not run without the option."""
    line = arguments.commands(upper, binaries, Options(addons=True), STAGES)["addons"]
    assert line[1:] == ["-m", "tensile.sandbox.addons", upper.root]
    assert "addons" not in arguments.commands(lower, binaries, Options(addons=True), STAGES)
    assert "addons" not in arguments.commands(upper, binaries, Options(), STAGES)


def test_autoscaling_is_fast_only_with_addons(upper: Layout, binaries: Binaries) -> None:
    """Sandboxes with addons are for users; measurements keep the intervals of Kubernetes."""
    flag = "horizontal-pod-autoscaler-sync-period"
    assert command(upper, binaries, "kube-controller-manager", Options(addons=True))[flag] == "5s"
    assert flag not in command(upper, binaries, "kube-controller-manager")


def test_no_flag_is_repeated(lower: Layout, binaries: Binaries) -> None:
    """A repeated flag would hide one of its values; only kwok's --config repeats, once for each stage."""
    for component, line in arguments.commands(lower, binaries, Options(), STAGES).items():
        names = [argument.split("=")[0] for argument in line[1:]]
        repeated = {name for name in names if names.count(name) > 1}
        assert repeated <= ({"--config"} if component == "kwok" else set())


def test_every_server_listens_only_on_loopback(lower: Layout, binaries: Binaries) -> None:
    """Every server has a flag with a loopback address, and no flag has the address 0.0.0.0."""
    for component, line in arguments.commands(lower, binaries, Options(), STAGES).items():
        given = flags(line)
        assert "0.0.0.0" not in " ".join(line)
        listening = [given.get(flag, "") for flag in ("bind-address", "listen", "listen-client-urls")]
        assert component == "kwok" or any("127.0.0.1" in value for value in listening)


@pytest.mark.parametrize(
    ("component", "flag", "value"),
    [
        ("etcd", "listen-client-urls", "http://127.0.0.1:21002"),
        ("etcd", "listen-peer-urls", "http://127.0.0.1:21003"),
        ("kube-apiserver", "secure-port", "21001"),
        ("kube-apiserver", "etcd-servers", "http://127.0.0.1:21002"),
        ("kube-controller-manager", "secure-port", "21004"),
        ("kube-scheduler", "secure-port", "21005"),
        ("endpoint", "listen", "127.0.0.1:21006"),
    ],
)
def test_each_server_has_its_port(lower: Layout, binaries: Binaries, component: str, flag: str, value: str) -> None:
    """Servers listen on the ports of the layout, and find each other there."""
    assert command(lower, binaries, component)[flag] == value


def test_the_apiserver_authorizes_requests_as_in_production(lower: Layout, binaries: Binaries) -> None:
    """Requests are authorized by node and role, and NodeRestriction limits nodes to their own objects."""
    given = command(lower, binaries, "kube-apiserver")
    assert given["authorization-mode"] == "Node,RBAC"
    assert given["enable-admission-plugins"] == "NodeRestriction"
    assert given["client-ca-file"] == str(lower.pki / "ca.crt")


def test_the_apiserver_reaches_kubelets_by_their_internal_address(upper: Layout, binaries: Binaries) -> None:
    """Logs and exec use the internal address, with the client certificate that kubelets accept."""
    given = command(upper, binaries, "kube-apiserver")
    assert given["kubelet-preferred-address-types"] == "InternalIP"
    assert given["kubelet-client-certificate"] == str(upper.pki / "kubelet-client.crt")


def test_the_apiserver_verifies_kubelets_unless_disabled(upper: Layout, binaries: Binaries) -> None:
    """It checks the kubelet's certificate unless the option turns verification off."""
    strict = command(upper, binaries, "kube-apiserver")
    lax = command(upper, binaries, "kube-apiserver", Options(verify_kubelet=False))
    assert strict["kubelet-certificate-authority"] == str(upper.pki / "ca.crt")
    assert "kubelet-certificate-authority" not in lax


def test_every_request_is_recorded_in_the_audit_log(lower: Layout, binaries: Binaries) -> None:
    """The log is never rotated while it is read, and it records metadata of all requests."""
    given = command(lower, binaries, "kube-apiserver")
    policy = yaml.safe_load(arguments.AUDIT_POLICY)
    assert given["audit-log-path"] == str(lower.audit_log)
    assert given["audit-log-maxsize"] == "0"
    assert policy["rules"] == [{"level": "Metadata"}]
    assert policy["omitStages"] == ["RequestReceived"]


@pytest.mark.parametrize("component", ["kube-controller-manager", "kube-scheduler"])
def test_client_limits_do_not_slow_the_controllers(lower: Layout, binaries: Binaries, component: str) -> None:
    """Their limits are far higher than the request rates of tests."""
    given = command(lower, binaries, component)
    assert (given["kube-api-qps"], given["kube-api-burst"]) == ("5000", "10000")
    assert given["leader-elect"] == "false"


def test_certificates_can_be_signed_on_request(upper: Layout, binaries: Binaries) -> None:
    """The controller-manager signs with the authority that the apiserver trusts."""
    given = command(upper, binaries, "kube-controller-manager")
    assert given["cluster-signing-cert-file"] == str(upper.pki / "ca.crt")
    assert given["cluster-signing-key-file"] == str(upper.pki / "ca.key")
    assert given["root-ca-file"] == str(upper.pki / "ca.crt")


def test_eviction_has_the_default_times_without_the_option(upper: Layout, binaries: Binaries) -> None:
    """Without compressed eviction the sandbox keeps the times of Kubernetes."""
    manager = command(upper, binaries, "kube-controller-manager")
    assert "node-monitor-grace-period" not in manager
    assert "default-not-ready-toleration-seconds" not in command(upper, binaries, "kube-apiserver")


def test_eviction_can_be_compressed_in_the_upper_cluster(upper: Layout, binaries: Binaries) -> None:
    """A silent node has a grace period of 12 s, and pods tolerate its taints for 5 s by default."""
    options = Options(compressed_eviction=True)
    manager = command(upper, binaries, "kube-controller-manager", options)
    server = command(upper, binaries, "kube-apiserver", options)
    assert manager["node-monitor-grace-period"] == "12s"
    assert manager["node-monitor-period"] == "1s"
    assert float(manager["node-eviction-rate"]) >= 1
    assert server["default-not-ready-toleration-seconds"] == "5"
    assert server["default-unreachable-toleration-seconds"] == "5"


@pytest.mark.parametrize("component", ["kube-controller-manager", "kube-apiserver"])
def test_eviction_in_a_lower_cluster_is_never_compressed(lower: Layout, binaries: Binaries, component: str) -> None:
    """The option concerns only virtual nodes, so flags of lower clusters do not change."""
    options = Options(compressed_eviction=True)
    assert command(lower, binaries, component, options) == command(lower, binaries, component)


def test_kwok_manages_only_annotated_nodes(lower: Layout, binaries: Binaries) -> None:
    """Other nodes, such as real ones, are not changed; kwok gets every stage and serves no API itself."""
    line = arguments.kwok(lower, binaries, STAGES)
    assert "--config=/stages/a.yaml" in line
    assert "--config=/stages/b.yaml" in line
    assert "--manage-all-nodes=false" in line
    assert "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in line
    assert not [argument for argument in line if argument.startswith(("--node-port", "--server-address"))]


def test_the_endpoint_accepts_only_the_apiserver(lower: Layout, binaries: Binaries) -> None:
    """Callers need the client certificate that the apiserver shows to kubelets."""
    given = command(lower, binaries, "endpoint")
    server = command(lower, binaries, "kube-apiserver")
    assert given["client-name"] == "kube-apiserver-kubelet-client"
    assert given["client-ca-file"] == str(lower.pki / "ca.crt")
    assert server["kubelet-client-key"] == str(lower.pki / "kubelet-client.key")


def test_only_the_front_proxy_may_impersonate_users(upper: Layout, binaries: Binaries) -> None:
    """Headers that name a user count only with the front proxy's certificate."""
    given = command(upper, binaries, "kube-apiserver")
    assert given["requestheader-client-ca-file"] == str(upper.pki / "front-proxy-ca.crt")
    assert given["requestheader-allowed-names"] == "front-proxy-client"
    assert given["requestheader-client-ca-file"] != given["client-ca-file"]


def test_service_ranges_agree_between_the_components(lower: Layout, binaries: Binaries) -> None:
    """The controller-manager has the range from which the apiserver allocates addresses."""
    server = command(lower, binaries, "kube-apiserver")
    manager = command(lower, binaries, "kube-controller-manager")
    assert server["service-cluster-ip-range"] == manager["service-cluster-ip-range"] == "10.97.0.0/16"


@pytest.mark.parametrize("extender", [False, True])
def test_only_an_upper_scheduler_with_the_extender_has_a_configuration(
    upper: Layout, lower: Layout, binaries: Binaries, *, extender: bool
) -> None:
    """All other schedulers have no extender, and therefore no requests to one."""
    options = Options(extender=extender)
    upper_object, lower_object = (command(one, binaries, "kube-scheduler", options) for one in (upper, lower))
    assert upper_object.get("config") == (str(upper.directory / "scheduler.yaml") if extender else None)
    assert "config" not in lower_object
