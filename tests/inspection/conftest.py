"""The way to the small nodes and pods that the tests of placement share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "policy"))
