"""What telemetry and the status ask of the engine while it runs: plain answers, also before it has started."""

from collections.abc import Callable

from tensile.app import Engine
from tensile.objects import UPPER
from tensile.reconcile.ownership import strays
from tensile.status.lowers import Row, are_known, rows
from tensile.telemetry import Readings


def readings(engine: Engine) -> Readings:
    """Give what metrics ask of the engine at each scrape."""

    def problems() -> list[tuple[str, str]]:
        """List the lower and the reason of every key that is stuck."""
        world = engine.clusters.world if engine.is_running else None
        return [(key.lower, problem.reason) for key, problem in world.problems.items()] if world else []

    return Readings(
        depth=lambda: engine.loop.depth if engine.is_running else {},
        silent=lambda: {name: joined.lower.silent for name, joined in engine.clusters.joined.items()},
        problems=problems,
        events=lambda: _events(engine),
        skipped=lambda: engine.clusters.fleet.skipped() if engine.is_running else {},
        leads=lambda: engine.drives,
        strays=lambda: _strays(engine),
    )


def lowers(engine: Engine) -> Callable[[], list[Row] | None]:
    """Make what gives how each lower is, None until that is known of every one: a start is no news of them."""
    known = False

    def now() -> list[Row] | None:
        """Give the rows as of now."""
        nonlocal known
        known = known or (engine.drives and are_known(engine.clusters.world))
        if not known:
            return None
        fleet = engine.clusters.fleet
        return rows(engine.clusters.world, {name: fleet.health(name).error for name in fleet.names()})

    return now


def _events(engine: Engine) -> dict[tuple[str, str], int]:
    """Count what became of events, by lower and result."""
    mirrors = {name: joined.events for name, joined in engine.clusters.joined.items()}
    return {(name, end): count for name, one in mirrors.items() if one for end, count in one.counts.items()}


def _strays(engine: Engine) -> dict[str, int]:
    """Count the strays of each lower."""
    owner = engine.clusters.world.owner if engine.drives else None
    joined = engine.clusters.joined.items() if owner else ()
    return {name: strays(one.lower, owner) for name, one in joined if owner}


def missing(engine: Engine) -> str:
    """Say why the engine is not ready, "" when it is.

    Its upper cluster answered, what every lower needs of it is listed, and the upper's apiserver trusts its webhook.
    What a controller follows does not count: an edit may enable one without its rights, and then all replicas would be
    called unready at once, and the webhook by them, for what costs that controller alone. The log names such a right.
    """
    if not engine.is_running:
        return "the upper cluster has not answered yet"
    upper = engine.clusters.world.upper
    behind = [one.lower.name for one in engine.clusters.joined.values() if not one.lower.upper_pods.synced]
    if all(cache.synced for cache in upper.caches()) and not behind:
        return engine.hook.server.waits()
    denied = engine.clusters.fleet.denied(UPPER)
    return "the upper cluster's objects are not all listed yet" + (f": {denied}" if denied else "")
