"""YAML as people read it: everything where it stands, instead of an alias of what stood elsewhere."""

from typing import Any

import yaml


class Unaliased(yaml.SafeDumper):
    """Writes in full what several places share."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Have nothing written as an alias."""
        return True
