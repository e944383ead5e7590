"""What a claim is to be filled from: another claim above, or nothing.

A source is named, and the lower cluster would take what it has under that name: the data of somebody whose claim or
snapshot it is. A claim of the same namespace is safe where its copy below is ours. Snapshots, and whatever else may be
a source, are not mirrored, so one of that name below is never the one above.
"""

from collections.abc import Iterator

from tensile.objects import CLAIM, Manifest

_FIELDS = ("dataSource", "dataSourceRef")


def foreign_source(spec: Manifest) -> str:
    """Return the source in a claim's spec that no copy of ours can stand for, in words; "" for none."""
    for source in _sources(spec):
        if not _is_claim(source):
            where = f" of namespace {source['namespace']}" if source.get("namespace") else ""
            named = f"{source.get('kind', 'an object')} {source.get('name', '')}{where}"
            return f"{named}: only claims of its own namespace are mirrored"
    return ""


def source_claims(spec: Manifest) -> frozenset[str]:
    """Return the names of the claims that a claim is to be a clone of; both fields name the same one as a rule."""
    return frozenset(str(source.get("name", "")) for source in _sources(spec) if _is_claim(source))


def _sources(spec: Manifest) -> Iterator[Manifest]:
    for field in _FIELDS:
        if spec.get(field):
            yield spec[field]


def _is_claim(source: Manifest) -> bool:
    return source.get("kind") == CLAIM.name and not source.get("apiGroup") and not source.get("namespace")
