"""The hostile kubeconfigs of hostile_kubeconfigs.yaml."""

from pathlib import Path
from typing import Any

import yaml
from hostile_form import BESIDE, TOKEN, HostileKubeconfig, kubeconfig_text


def _of(case: dict[str, Any]) -> HostileKubeconfig:
    """Return a case of the file."""
    user, cluster, top = case.pop("user", TOKEN), case.pop("cluster", None), case.pop("top", {})
    text = case.pop("text") if "text" in case else kubeconfig_text(user, cluster, **top)
    if beside := case.pop("beside", ""):
        case["prepare"] = BESIDE[beside]
    return HostileKubeconfig(text=text, opened=tuple(case.pop("opened", ())), **case)


ALL = tuple(
    _of(case)
    for case in yaml.load(
        Path(__file__).with_name("hostile_kubeconfigs.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
    )
)
