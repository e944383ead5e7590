"""manifests/ is what `tensile manifests` makes of manifests/topology.yaml, and never drifts from it.

Beside that it has manifests/monitoring, which is written by hand.
"""

import shutil
from pathlib import Path

from tensile.deploy.manifests import NAMESPACE, TOPOLOGY, RenderOptions, manifest_files, rendering, warnings, written

SHIPPED = Path(__file__).resolve().parents[2] / "manifests"
MONITORING = SHIPPED / "monitoring"
ADVICE = "mend: tensile manifests -f manifests/topology.yaml --dir manifests"


def test_the_directory_is_a_rendering_of_its_topology() -> None:
    """Every file, and none beside them."""
    name = SHIPPED / TOPOLOGY
    found = rendering(name.read_bytes(), str(name), RenderOptions(NAMESPACE, None))
    assert warnings(found, str(name)) == []
    paths = [path for path in SHIPPED.rglob("*") if path.is_file() and MONITORING not in path.parents]
    held = {str(path.relative_to(SHIPPED)): path.read_text() for path in paths}
    assert held == manifest_files(found), ADVICE


def test_what_people_enable_in_it_is_rendered_over_it(tmp_path: Path) -> None:
    """By the command that its topology gives: no file of it is taken for somebody else's."""
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


def test_it_has_what_most_people_begin_with() -> None:
    """Two lower clusters, the webhook, the controllers of the default; nothing that needs a set-up elsewhere first."""
    topology = rendering((SHIPPED / TOPOLOGY).read_bytes(), TOPOLOGY, RenderOptions(NAMESPACE, None)).topology
    assert [lower.name for lower in topology.lowers] == ["lower-a", "lower-b"]
    assert (topology.webhook.enabled, topology.extender.enabled) == (True, False)
    assert topology.enabled == {"PV", "Service", "ServiceAccount"}
