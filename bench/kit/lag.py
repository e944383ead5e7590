"""For how long statuses stay wrong, told from repeated looks at all of them.

Under load new pods are always a moment behind, so asking when everything is right at once would measure the load. What
counts is how long any single status stays wrong.
"""

from collections.abc import Mapping


class Lag:
    """Follows what is wrong from `begin` on; times are monotonic seconds."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._since: dict[str, tuple[float, str]] = {}
        self.longest = 0.0
        self.what = ""

    def look(self, now: float, wrong: Mapping[str, str]) -> None:
        """Take over what is wrong now, by UID with words.

        A status that was wrong at the last look counts up to this one: rather too long than too short.
        """
        for since, words in self._since.values():
            if now - max(since, self._begin) > self.longest:
                self.longest, self.what = now - max(since, self._begin), words
        self._since = {uid: (self._since.get(uid, (now, ""))[0], words) for uid, words in wrong.items()}
