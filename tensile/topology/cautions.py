"""What is valid in a topology file and still unlikely to be meant: warnings, each with its place.

`tensile validate` prints them; nothing is refused for them. Like the checks of errors they open nothing.
"""

from collections.abc import Iterator

from tensile.topology.problems import Problem
from tensile.topology.resolved import Topology
from tensile.yamltext import compose
from tensile.yamltree import Path, locate


def cautions(text: str, topology: Topology) -> tuple[Problem, ...]:
    """Return the warnings about a valid topology, in the order of the file; `text` is what it was read from."""
    found = [*_webhook_without_address(topology), *_same_cluster(topology)]
    root = compose(text)[0] if found else None
    if root is None:
        return ()
    placed = (Problem(locate(root, path), path, words) for path, words in found)
    return tuple(sorted(placed, key=lambda problem: problem.position))


def _webhook_without_address(topology: Topology) -> Iterator[tuple[Path, str]]:
    if topology.webhook.enabled and not topology.webhook.is_reachable:
        words = "without service or url it is not registered, and the upper cluster never calls it; set one of them"
        yield ("webhook", "enabled"), words


def _same_cluster(topology: Topology) -> Iterator[tuple[Path, str]]:
    """Two lowers that are reached in one way are the same cluster; the engine leaves the second one alone."""
    seen: dict[tuple[object, ...], int] = {}
    for place, lower in enumerate(topology.lowers):
        first = seen.setdefault(lower.way, place)
        if first != place:
            words = (
                f"lowers[{first}] is reached in the same way, and one cluster cannot be two lowers; keep one of them"
            )
            yield ("lowers", place), words
