"""The way to the certificates and kubeconfigs that the tests of cluster access share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kube"))
