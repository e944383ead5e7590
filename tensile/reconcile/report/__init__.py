"""What `plan` prints: the steps that came through a rehearsal, told object by object.

A recorder listens to the loop; what it heard is folded into one change for each object; that is written out for people
or for programs. Values of Secrets are taken out in the fold, so that nothing that is written out can show one.
"""

from tensile.reconcile.report.changes import (
    Change,
    Counts,
    Preview,
    Recorded,
    Recorder,
    count,
    defects,
    observed,
    preview,
)
from tensile.reconcile.report.render import as_json, as_markdown, as_text, summary_line

__all__ = [
    "Change",
    "Counts",
    "Preview",
    "Recorded",
    "Recorder",
    "as_json",
    "as_markdown",
    "as_text",
    "count",
    "defects",
    "observed",
    "preview",
    "summary_line",
]
