"""For how long statuses stay wrong, determined from repeated checks of all of them.

Under load new pods are always a moment behind, so a check for a moment at which everything is right would measure the
load. The measure is how long any single status stays wrong.
"""

from collections.abc import Mapping


class WrongTime:
    """Tracks the wrong statuses from `begin` on; times are monotonic seconds."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._since: dict[str, tuple[float, str]] = {}
        self.longest = 0.0
        self.description = ""

    def update(self, now: float, wrong: Mapping[str, str]) -> None:
        """Record the statuses that are wrong now, as descriptions by UID.

        A status that was wrong at the last check counts until this one: the measured time is rather too long than too
        short.
        """
        for since, description in self._since.values():
            if now - max(since, self._begin) > self.longest:
                self.longest, self.description = now - max(since, self._begin), description
        self._since = {uid: (self._since.get(uid, (now, ""))[0], description) for uid, description in wrong.items()}
