"""The way to the benches, whose random clusters the tests of placement share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
