"""kubectl says the same of both kinds of nodes, in short; `make behaviour` tries an older kubectl, too."""

import os
from pathlib import Path

import pytest

from bench.conformance.kubectl.__main__ import trial
from tensile.sandbox import real_node
from tensile.sandbox.binaries import cache_directory


@pytest.mark.real
def test_kubectl_says_the_same_of_a_real_node_and_of_a_virtual_one(tmp_path: Path) -> None:
    """Every command that ends at a kubelet or shows its pods; docs/kubectl.md has what differs, and no more."""
    why = real_node.obstacle((tmp_path, cache_directory(os.environ)), os.environ)
    if why:
        pytest.skip(f"this machine cannot run a real node: {why}")
    _, result = trial(tmp_path, short=True)
    assert result["broken"] == []
    assert result["unmet"] == []
