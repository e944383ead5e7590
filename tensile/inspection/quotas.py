"""What a namespace's quotas leave for one more pod."""

from collections.abc import Iterable, Iterator, Mapping

from tensile.objects import Manifest, metadata
from tensile.policy.placing.snapshot import Pod
from tensile.quantities import is_binary, parse_all, render

_WHOLE = 1000


def exceeded(pod: Pod, quotas: Iterable[Manifest], namespace: str) -> Iterator[tuple[str, str]]:
    """Give the quotas that another pod like this would break, by name, and in words how.

    Quotas for some pods only (with scopes) are left out: whether they hold is the apiserver's to say.
    """
    for quota in quotas:
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if metadata(quota)["namespace"] != namespace or spec.get("scopes") or spec.get("scopeSelector"):
            continue
        hard, used = parse_all(status.get("hard") or {}), parse_all(status.get("used") or {})
        short = [
            _words(name, asked, hard[name], used.get(name, 0))
            for name, asked in _wanted(pod, hard)
            if asked > hard[name] - used.get(name, 0)
        ]
        if short:
            yield metadata(quota)["name"], "; ".join(short)


def _wanted(pod: Pod, hard: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Give what the pod takes of each thing that is limited, as far as its requests say."""
    for name in hard:
        if name in ("pods", "count/pods"):
            yield name, _WHOLE
        elif name.removeprefix("requests.") in pod.requests:
            yield name, pod.requests[name.removeprefix("requests.")]


def _words(name: str, asked: int, hard: int, used: int) -> str:
    binary = is_binary(name.removeprefix("requests."))
    left = render(max(hard - used, 0), binary=binary)
    return f"{name}: {render(asked, binary=binary)} asked, {left} of {render(hard, binary=binary)} left"
