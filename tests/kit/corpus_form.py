"""The form of a bad topology file as test data: its text, the position of the error, and the error message.

A caret in the text itself marks the position, so that a case reads as the file does and no line is counted by hand.
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
    """One kind of bad file: `text` is bad at the caret, and the error there has `path` and contains `message`.

    `alone` means that the file has no other error; `configmap` that it is parsed as a topology from a ConfigMap.
    """

    kind: str
    marked: str
    path: str
    message: str
    alone: bool = True
    configmap: bool = False

    @property
    def text(self) -> str:
        """The text of the file, without the caret."""
        return self.marked.replace("^", "", 1)

    @property
    def line(self) -> int:
        """The line of the error, counted from 1."""
        return self.marked[: self.marked.index("^")].count("\n") + 1

    @property
    def column(self) -> int:
        """The column of the error, counted from 1."""
        return self.marked.index("^") - (self.marked.rfind("\n", 0, self.marked.index("^")) + 1) + 1
