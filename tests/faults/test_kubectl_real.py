"""Tests that kubectl prints the same for both kinds of nodes; `make behaviour` tries an older kubectl, too."""

import os
from pathlib import Path

import pytest

from bench.conformance.kubectl.__main__ import trial
from tensile.sandbox import real_node
from tensile.sandbox.binaries import cache_directory


@pytest.mark.real
def test_kubectl_prints_the_same_for_a_real_and_a_virtual_node(tmp_path: Path) -> None:
    """Every command that reaches a kubelet or shows its pods is run; only the differences in docs/kubectl.md occur."""
    why = real_node.obstacle((tmp_path, cache_directory(os.environ)), os.environ)
    if why:
        pytest.skip(f"this machine cannot run a real node: {why}")
    _, result = trial(tmp_path, short=True)
    assert result["broken"] == []
    assert result["unmet"] == []
