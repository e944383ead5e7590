"""The form of a bad topology file as test data: its text, where the error is, and what is said.

The place is marked in the text itself with a caret, so that a case reads as the file does and no line is
counted by hand.
"""

from dataclasses import dataclass

HEAD = """apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
"""
"""The first three lines of every file."""

EMPTY = HEAD + "lowers: []\n"
"""A valid file without lowers; more keys may follow."""

ONE = HEAD + "lowers:\n- name: a\n  kubeconfig: kubeconfigs/a\n"
"""A valid file with one lower; more fields of it may follow, indented by two."""


@dataclass(frozen=True)
class Bad:
    """One kind of bad file: `text` has a caret where the error is, `path` and `words` are what is told there.

    `alone` says that nothing else is wrong with the file; `configmap` that it is read as from a ConfigMap.
    """

    kind: str
    marked: str
    path: str
    words: str
    alone: bool = True
    configmap: bool = False

    @property
    def text(self) -> str:
        """The file."""
        return self.marked.replace("^", "", 1)

    @property
    def line(self) -> int:
        """The line of the error, counted from 1."""
        return self.marked[: self.marked.index("^")].count("\n") + 1

    @property
    def column(self) -> int:
        """The column of the error, counted from 1."""
        return self.marked.index("^") - (self.marked.rfind("\n", 0, self.marked.index("^")) + 1) + 1
