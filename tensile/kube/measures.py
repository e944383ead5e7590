"""Counters and histograms as plain numbers, which become Prometheus samples at a scrape.

They are updated for each request and each reconciled key, where prometheus_client's objects would cost microseconds for
labels and locks. All updates happen on the event loop's thread, and so do scrapes.
"""

from bisect import bisect_left

LATENCIES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of every histogram, in seconds, inclusive."""
NO_RESPONSE = "<error>"
"""The code of a request without a response, as in client-go."""


class Histogram:
    """Numbers of durations, by bucket, and their sum in seconds.

    `counts` has one number for each bound of LATENCIES, and a last one for what is longer. They are not cumulative.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCIES) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(LATENCIES, seconds)] += 1
        self.total += seconds


class RequestMetrics:
    """The requests to all apiservers.

    `counts` is by address, port, HTTP method and status, which is 0 without a response. `durations` is by address, port
    and method: until the response is complete, for a watch until it begins.
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int, str, int], int] = {}
        self.durations: dict[tuple[str, int, str], Histogram] = {}

    def observe(self, address: str, port: int, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        series = (address, port, method, status)
        self.counts[series] = self.counts.get(series, 0) + 1
        timed = self.durations.get(series[:3])
        if timed is None:
            timed = self.durations[series[:3]] = Histogram()
        timed.observe(seconds)
