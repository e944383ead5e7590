"""Lets the first event of a sort through in a while, and counts those in between.

Whoever can make an event happen can make it happen without end; what a person reads stays short.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping

PAUSE = 60.0
"""Seconds in which an event of one sort is not told again."""
AT_ONCE, EVERY = 20, 30.0
"""Lines of one author that may come together, and the seconds after which there may be one more."""
_REMEMBERED = 10_000


class Seldom:
    """Remembers when each sort was told last; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def tell(self, sort: Hashable, tell: Callable[[Mapping[str, int]], object]) -> bool:
        """Call `tell` unless an event of that sort was told lately, and report whether it was called.

        It gets the field `more_since`, the number held back since the last one, {} for none.
        """
        now = self._clock()
        until, count = self._told.get(sort, (now, 0))
        if now < until:
            self._told[sort] = (until, count + 1)
            return False
        self._told[sort] = (now + PAUSE, 0)
        self._told.move_to_end(sort)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        tell({"more_since": count} if count else {})
        return True


class Ration:
    """Lines of one author, whose words are new each time: so many at once, and then one in a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(AT_ONCE)
        self._at = clock()

    def take(self) -> bool:
        """Report whether another line may be written now, and count it."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) / EVERY, float(AT_ONCE))
        self._at = now
        may = self._left >= 1
        self._left -= may
        return may
