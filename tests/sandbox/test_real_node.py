"""Tests of a real node's configuration, and of the cleanup after it."""

import hashlib
import io
import json
import tarfile
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509

from tensile.sandbox import apiserver as manifests
from tensile.sandbox import credentials, real_node, start, stop
from tensile.sandbox import flags as arguments
from tensile.sandbox.state import LOOPBACK, Binaries, Layout, NodePrograms, Options, Runtime, SandboxError

IDENTITY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def real(lower: Layout) -> Layout:
    """Return the layout of a lower cluster with a real node."""
    return msgspec.structs.replace(lower, nodes=1, network="198.18.7")


@pytest.fixture
def programs(tmp_path: Path) -> NodePrograms:
    """Return programs that do not exist, except for a busybox that lists its names."""
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\necho busybox; echo cat; echo sh\n")
    busybox.chmod(0o755)
    return NodePrograms("/bin/kubelet", "/bin/tensile-node", Runtime("/a:/b", "/plugins", str(busybox)))


def test_the_network_of_the_node_is_one_that_the_machine_does_not_use() -> None:
    """It is in a range for benchmarks and depends on the identity, so that two sandboxes differ."""
    first, second = real_node.network(IDENTITY), real_node.network(IDENTITY[::-1])
    assert first == real_node.network(IDENTITY)
    assert first != second
    assert all(chosen.startswith(("198.18.", "198.19.")) for chosen in (first, second))
    assert not real_node._is_here(f"{first}.1")
    assert real_node._is_here(LOOPBACK)


def test_only_the_first_lower_gets_the_real_node(tmp_path: Path) -> None:
    """The real node replaces its simulated nodes, and other lower clusters keep theirs."""
    options = Options(nodes=3, real_node=True)
    assert [start.nodes_of(place, options) for place in range(3)] == [0, 1, 3]


def test_no_component_for_simulated_nodes_runs_beside_a_real_node(real: Layout, binaries: Binaries) -> None:
    """Kwok would write the node's status, and the endpoint has no purpose."""
    started = arguments.commands(real, binaries, Options(real_node=True), ())
    assert list(started) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]


def test_the_command_line_has_both_ends_of_the_network(real: Layout, programs: NodePrograms) -> None:
    """It has the device, both addresses, the loopback apiserver, and the node's own name and kubeconfig."""
    line = real_node.command(real, IDENTITY, programs)
    own, kubelet = line[: line.index("--")], line[line.index("--") + 1 :]
    assert own[0] == "/bin/tensile-node"
    assert {"--gateway=198.18.7.1/24", "--address=198.18.7.2/24", "--api=127.0.0.1:21001", "--path=/a:/b"} <= {*own}
    assert f"--device={stop.device(IDENTITY)}" in own
    assert f"--cgroup={stop.cgroup(IDENTITY)}" in own
    assert {"--hostname-override=lower-a-node-1", "--node-ip=198.18.7.2"} <= {*kubelet}
    assert f"--kubeconfig={real.pki / 'node.kubeconfig'}" in kubelet


def test_two_sandboxes_share_no_device_and_no_cgroup(real: Layout, programs: NodePrograms) -> None:
    """Their names contain the identity, and a device's name fits the kernel's limit."""
    assert stop.device(IDENTITY) != stop.device(IDENTITY[::-1])
    assert stop.cgroup(IDENTITY) != stop.cgroup(IDENTITY[::-1])
    assert len(stop.device(IDENTITY)) < 16


def test_every_file_of_the_command_line_is_written(real: Layout, programs: NodePrograms) -> None:
    """Configuration and images exist before the node starts."""
    real_node.write(real, programs)
    folder = real.node_folder
    flags = [argument.partition("=")[2] for argument in real_node.command(real, IDENTITY, programs)]
    files = [Path(value) for value in flags if value.startswith(str(folder))]
    assert len(files) == 3
    assert all(path.is_file() for path in files)
    assert f'conf_dir = "{folder / "networks"}"' in (folder / "containerd.toml").read_text()
    assert 'bin_dir = "/plugins"' in (folder / "containerd.toml").read_text()


def test_pods_are_on_the_nodes_network(real: Layout) -> None:
    """Pod addresses start after the node's, without a route to other networks and without masquerading."""
    (bridge,) = real_node.pod_network(real)["plugins"]
    ((addresses,),) = bridge["ipam"]["ranges"]
    assert addresses == {"subnet": "198.18.7.0/24", "rangeStart": "198.18.7.10", "gateway": "198.18.7.1"}
    assert "routes" not in bridge["ipam"]
    assert not bridge["ipMasq"]


def test_the_kubelet_requires_authentication_and_authorization(real: Layout) -> None:
    """Anonymous requests are disabled, the apiserver authorizes callers, and their certificates are verified."""
    found = real_node.kubelet_configuration(real)
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert found["authorization"] == {"mode": "Webhook"}
    assert found["address"] == "198.18.7.2"
    assert found["authentication"]["x509"]["clientCAFile"] == str(real.pki / "ca.crt")


def test_the_node_has_separate_credentials(real: Layout, now: Any) -> None:
    """Its user is limited to this node; it serves at its address and reaches the apiserver at the gateway."""
    credentials.write(real, now)
    serving = x509.load_pem_x509_certificate((real.pki / "node-serving.crt").read_bytes())
    assert "CN=system:node:lower-a-node-1" in serving.subject.rfc4514_string()
    assert "O=system:nodes" in serving.subject.rfc4514_string()
    assert _addresses(serving) == ["198.18.7.2"]
    config = yaml.safe_load((real.pki / "node.kubeconfig").read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://198.18.7.1:21001"
    apiserver = x509.load_pem_x509_certificate((real.pki / "apiserver.crt").read_bytes())
    assert "198.18.7.1" in _addresses(apiserver)


def _addresses(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(address) for address in names.get_values_for_type(x509.IPAddress)]


def test_a_cluster_without_a_real_node_has_no_credential_for_it(lower: Layout, now: Any) -> None:
    """Credentials that are not needed are not created."""
    credentials.write(lower, now)
    assert not (lower.pki / "node.kubeconfig").exists()


def files_of(archive: bytes) -> dict[str, bytes]:
    """Return the files of an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {entry.name: tar.extractfile(entry) for entry in tar if entry.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def test_images_match_their_manifests() -> None:
    """Each has its tag, its command and the digest of its only layer, in which every name is a link to busybox."""
    files = files_of(real_node.archive(b"program", ["cat", "sh", "busybox"]))
    entries = {entry["RepoTags"][0]: entry for entry in json.loads(files["manifest.json"])}
    assert set(entries) == {real_node.IMAGE, real_node.PAUSE}
    for tag, entry in entries.items():
        config = json.loads(files[entry["Config"]])
        (name,) = entry["Layers"]
        assert config["rootfs"]["diff_ids"] == [f"sha256:{_sha(files[name])}"]
        assert entry["Config"] == f"{_sha(files[entry['Config']])}.json"
        assert config["config"].items() >= real_node.IMAGES[tag].items()
    with tarfile.open(fileobj=io.BytesIO(files[name])) as layer:
        links = {entry.name: entry.linkname for entry in layer if entry.issym()}
    assert links == {"bin/cat": "busybox", "bin/sh": "busybox"}
    assert files_of(files[name])["bin/busybox"] == b"program"


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def cgroups(root: Path) -> list[Path]:
    """Create cgroups of a sandbox in several hierarchies, and one of another program."""
    name = stop.cgroup(IDENTITY)
    made = [root / name / "node", root / "memory" / name / "k8s.io" / "one", root / "cpu" / name]
    for path in (*made, root / "memory" / "others"):
        path.mkdir(parents=True)
    return made


def test_cgroups_are_removed_in_every_hierarchy(tmp_path: Path) -> None:
    """Those of the sandbox are removed, the deepest first; those of other programs are kept."""
    made = cgroups(tmp_path)
    stop.clear(IDENTITY, tmp_path, tmp_path / "none")
    assert not any(path.exists() for path in made)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["cpu", "memory", "memory/others"]


def test_removing_no_cgroups_is_no_error(tmp_path: Path) -> None:
    """A node that never started has none."""
    stop.clear(IDENTITY, tmp_path, tmp_path)


def test_a_cgroup_that_cannot_be_removed_is_named(tmp_path: Path) -> None:
    """Its other content must not be removed, and the error has its path."""
    made = cgroups(tmp_path)
    (made[0] / "file").touch()
    with pytest.raises(SandboxError, match=f"cgroup {made[0]} cannot be removed"):
        stop.clear(IDENTITY, tmp_path, tmp_path / "none", limit=0)


def test_clear_waits_until_the_network_device_is_removed(tmp_path: Path) -> None:
    """It returns when the device is removed, and fails with a remedy if it is not."""
    device = tmp_path / stop.device(IDENTITY)
    device.touch()
    with pytest.raises(SandboxError, match="ip link delete"):
        stop.clear(IDENTITY, tmp_path / "none", tmp_path, limit=0)
    going = threading.Timer(0.1, device.unlink)
    going.start()
    stop.clear(IDENTITY, tmp_path / "none", tmp_path)
    assert not device.exists()
    going.join()


def test_readiness_waits_for_the_node_that_registers_itself(real: Layout) -> None:
    """The node's name is known, and the cluster is not ready without it."""
    assert real.node_names == ["lower-a-node-1"]
    assert manifests.ready([], 1) is False
