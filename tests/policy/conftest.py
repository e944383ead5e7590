"""The way to the kits of other folders, and to the benches, whose random clusters the tests of placement share."""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_TESTS / "kubelet"), str(_TESTS / "e2e"), str(_TESTS / "sandbox")]
sys.path.insert(0, str(_TESTS.parent))
