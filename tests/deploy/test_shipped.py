"""Tests that manifests/ is always the output of `tensile manifests` for manifests/topology.yaml.

In addition it contains manifests/monitoring, which is written by hand.
"""

import shutil
from pathlib import Path

from tensile.deploy.manifests import NAMESPACE, TOPOLOGY, RenderOptions, manifest_files, rendering, warnings, written

SHIPPED = Path(__file__).resolve().parents[2] / "manifests"
MONITORING = SHIPPED / "monitoring"
ADVICE = "mend: tensile manifests -f manifests/topology.yaml --dir manifests"


def test_the_directory_is_a_rendering_of_its_topology() -> None:
    """Every file matches, and there are no others."""
    name = SHIPPED / TOPOLOGY
    found = rendering(name.read_bytes(), str(name), RenderOptions(NAMESPACE, None))
    assert warnings(found, str(name)) == []
    paths = [path for path in SHIPPED.rglob("*") if path.is_file() and MONITORING not in path.parents]
    held = {str(path.relative_to(SHIPPED)): path.read_text() for path in paths}
    assert held == manifest_files(found), ADVICE


def test_an_edited_topology_is_rendered_into_a_copy_of_the_directory(tmp_path: Path) -> None:
    """The command of the topology works, and no file is mistaken for a foreign one."""
    shutil.copytree(SHIPPED, tmp_path / "mine", ignore=shutil.ignore_patterns(MONITORING.name))
    own = tmp_path / "mine" / TOPOLOGY
    enabled = own.read_text() + "extender: {enabled: true, port: 9999}\n"
    for text in (enabled, (SHIPPED / TOPOLOGY).read_text()):
        own.write_text(text)
        found = rendering(own.read_bytes(), str(own), RenderOptions(NAMESPACE, None))
        assert written(found, own.parent, str(own)) != []
        assert {
            str(path.relative_to(own.parent)): path.read_text() for path in own.parent.rglob("*.yaml")
        } == manifest_files(found)
    assert (own.parent / "scheduler-extender.yaml").read_text() == (SHIPPED / "scheduler-extender.yaml").read_text()


def test_the_topology_has_common_defaults() -> None:
    """It has two lowers, the webhook and the default controllers, and needs no other set-up first."""
    topology = rendering((SHIPPED / TOPOLOGY).read_bytes(), TOPOLOGY, RenderOptions(NAMESPACE, None)).topology
    assert [lower.name for lower in topology.lowers] == ["lower-a", "lower-b"]
    assert (topology.webhook.enabled, topology.extender.enabled) == (True, False)
    assert topology.enabled == {"PV", "Service", "ServiceAccount"}
