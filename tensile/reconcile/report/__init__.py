"""The output of `plan`: the steps that succeeded in a dry run, object by object.

A recorder observes the loop. Its steps are folded into one change per object, which is formatted for people or
programs. The values of Secrets are removed in the fold, so that no output can show one.
"""

from tensile.reconcile.report.changes import (
    WHOLE_PLAN,
    Change,
    Counts,
    Lines,
    PlanScope,
    Preview,
    RecordedStep,
    Recorder,
    arranged,
    count,
    defects,
    folded,
    lines_of,
    observed,
    preview,
    preview_of,
)
from tensile.reconcile.report.render import Later, as_json, as_markdown, as_text, fenced, summary_line
from tensile.reconcile.report.saved import LARGEST, SavedPlan, SavedTopology, as_file, identities, moved, parsed, saved

__all__ = [
    "LARGEST",
    "WHOLE_PLAN",
    "Change",
    "Counts",
    "Later",
    "Lines",
    "PlanScope",
    "Preview",
    "RecordedStep",
    "Recorder",
    "SavedPlan",
    "SavedTopology",
    "arranged",
    "as_file",
    "as_json",
    "as_markdown",
    "as_text",
    "count",
    "defects",
    "fenced",
    "folded",
    "identities",
    "lines_of",
    "moved",
    "observed",
    "parsed",
    "preview",
    "preview_of",
    "saved",
    "summary_line",
]
