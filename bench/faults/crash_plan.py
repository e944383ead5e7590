"""The edits of a workload while the engine is repeatedly killed, drawn from a seed in advance.

Names are never used twice, so that a name in an audit log denotes one pod.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

GROUPS = 3
IN_GROUPS = 0.6
"""The share of the pods that belong to Deployments; the others have no owner."""
LATEST = 2.5
EARLY = 0.3
"""The share of the runs that end so soon after the launch that the engine has hardly started."""


class Edit(NamedTuple):
    """One request of a user.

    `verb` is "deploy" or "scale" (a Deployment, to `replicas`), "create" or "delete" (a pod without an owner).
    """

    verb: str
    name: str
    replicas: int = 0


@dataclass(frozen=True)
class Round:
    """One run of the engine: the time in seconds at which it is killed, and the earlier time at which the edits begin.

    Both count from its launch if it is `early`, otherwise from the time at which it logs that it has started.
    """

    early: bool
    kill: float
    begin: float
    edits: tuple[Edit, ...]


def draw(seed: int, pods: int, rounds: int, tag: str) -> list[Round]:
    """Draw the rounds in which so many pods are created; `tag` begins every name."""
    chance = Random(seed)
    replicas = {f"{tag}-group-{number}": round(pods * IN_GROUPS / GROUPS) for number in range(GROUPS)}
    single = [f"{tag}-{number}" for number in range(pods - sum(replicas.values()))]
    share = -(-len(single) // rounds)
    found, living = [], list[str]()
    for number in range(rounds):
        edits = [Edit("deploy", name, size) for name, size in replicas.items()] if number == 0 else []
        created = single[number * share : (number + 1) * share]
        edits += [Edit("create", name) for name in created]
        edits += _upheaval(chance, living, replicas)
        living += created
        early, kill = chance.random() < EARLY, chance.uniform(0, LATEST)
        found.append(Round(early, kill, chance.uniform(0, kill), tuple(edits)))
    return found


def standing(rounds: Sequence[Round]) -> int:
    """Return the number of pods after all rounds."""
    sizes: dict[str, int] = {}
    for edit in (edit for one in rounds for edit in one.edits):
        if edit.verb == "delete":
            del sizes[edit.name]
        else:
            sizes[edit.name] = 1 if edit.verb == "create" else edit.replicas
    return sum(sizes.values())


def _upheaval(chance: Random, living: list[str], replicas: dict[str, int]) -> list[Edit]:
    """Delete a quarter of the single pods that exist, and scale one Deployment up or down by up to a third."""
    gone = chance.sample(living, len(living) // 4)
    for name in gone:
        living.remove(name)
    group = chance.choice(sorted(replicas))
    size = max(1, round(replicas[group] * chance.uniform(0.67, 1.33)))
    return [*(Edit("delete", name) for name in gone), Edit("scale", group, size)]
