"""manifests/ is what `tensile manifests` makes of manifests/topology.yaml, and never drifts from it."""

from pathlib import Path

from tensile.manifests.commands import NAMESPACE, Wishes, rendering
from tensile.manifests.rendering import SCHEDULER, TOPOLOGY, files
from tensile.manifests.texts import scheduler

SHIPPED = Path(__file__).resolve().parents[2] / "manifests"
ADVICE = "mend: tensile manifests -f manifests/topology.yaml --dir manifests"


def test_the_directory_is_a_rendering_of_its_topology() -> None:
    """Every file, and none beside them but the configuration of a scheduler."""
    name = SHIPPED / TOPOLOGY
    found = rendering(name.read_bytes(), str(name), Wishes(NAMESPACE, None))
    assert found.told == (), "it is for the cluster as it is"
    held = {str(path.relative_to(SHIPPED)): path.read_text() for path in SHIPPED.rglob("*") if path.is_file()}
    configuration = held.pop(SCHEDULER)
    assert held == files(found.setup), ADVICE
    assert configuration == scheduler(found.setup)


def test_it_has_what_most_people_begin_with() -> None:
    """Two lower clusters, the webhook, the controllers of the default; nothing that needs a set-up elsewhere first."""
    topology = rendering((SHIPPED / TOPOLOGY).read_bytes(), TOPOLOGY, Wishes(NAMESPACE, None)).setup.topology
    assert [lower.name for lower in topology.lowers] == ["lower-a", "lower-b"]
    assert (topology.webhook.enabled, topology.extender.enabled) == (True, False)
    assert topology.enabled == {"PV", "Service", "ServiceAccount"}
