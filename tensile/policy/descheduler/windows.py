"""Maintenance windows: whether pods may be moved now, and if not, when.

A window opens by a cron schedule and stays open for a duration. The library cronsim computes the schedule, also where
the clock changes. It finds the last opening before a time as well as the next one, so that nothing has to be remembered
of earlier openings.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from tensile.topology.models import Window

_LONGEST_WAIT = 3600.0
"""Maximum seconds until a check whether a window is open: the clock of the machine may be set meanwhile."""


def next_opening(windows: Iterable[Window], now: datetime) -> datetime | None:
    """Return when a window opens, in its time zone, if none is open now; None if pods may be moved now."""
    minute = now.replace(second=0, microsecond=0)
    found: list[datetime] = []
    for window in windows:
        last, following = _openings(window.schedule, window.time_zone, minute)
        if last is not None and now - last < window.duration:
            return None
        if following is not None:
            found.append(following)
    return min(found, default=None)


def seconds_until(opening: datetime, now: datetime) -> float:
    """Return the seconds after which to check again whether a window is open."""
    return min(max((opening - now).total_seconds(), 0.0), _LONGEST_WAIT)


@lru_cache(maxsize=64)
def _openings(schedule: str, zone: str, minute: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the last opening up to a minute, and the next one after it; None for none within fifty years.

    No window opens within a minute, so that the pods of a large drain share one computation.
    """
    local = minute.astimezone(ZoneInfo(zone))
    last = next(CronSim(schedule, (minute + timedelta(seconds=1)).astimezone(local.tzinfo), reverse=True), None)
    following = next(CronSim(schedule, local), None)
    return last, following
