"""Tests of the example topology, the JSON schema, and the meaning of valid files."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from corpus_form import EMPTY, HEAD, ONE

from tensile.topology import Guard, Topology, TopologyErrors, decode, models, parse, schema
from tensile.yaml_document import compose, plain

EXAMPLE = Path(__file__).parents[2] / "topology.example.yaml"


def as_json(text: str) -> Any:
    """Return the data of a file as JSON has it."""
    root = compose(text).root
    assert root is not None
    return json.loads(json.dumps(plain(root)))


def keys_of(data: Any) -> Iterator[str]:
    """Yield every key in some data, at any depth."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from keys_of(value)
    for item in data if isinstance(data, list) else ():
        yield from keys_of(item)


def fields_at(section: type[models.Section], data: Any) -> None:
    """Check that a section of the example has every field of its model."""
    assert set(data) == {str(field.alias) for field in section.model_fields.values()}


@pytest.mark.parametrize(
    ("version", "kind", "message"),
    [
        ("apps/v1", "Deployment", "this is a Deployment, and no topology: apply it with kubectl"),
        ("v1", "Config", "this is a kubeconfig: write its path under lowers[].kubeconfig"),
    ],
)
def test_a_file_of_another_kind_has_one_error(version: str, kind: str, message: str) -> None:
    """There is no error about keys of a topology."""
    with pytest.raises(TopologyErrors) as refused:
        parse(f"apiVersion: {version}\nkind: {kind}\nspec: {{}}\n")
    assert str(refused.value).startswith(f"topology.yaml:2:7: kind: {message}")
    assert len(refused.value.problems) == 1


def test_the_example_is_a_valid_topology() -> None:
    """It has two lowers, and is read from bytes like any file."""
    topology = parse(decode(EXAMPLE.read_bytes()), name=str(EXAMPLE))
    assert [lower.name for lower in topology.lowers] == ["lower-a", "lower-b"]


@pytest.mark.parametrize(
    ("section", "path"),
    [
        (models.TopologyFile, ()),
        (models.Upper, ("upper",)),
        (models.NodeEntry, ("lowers", 0, "node")),
        (models.Taint, ("lowers", 0, "node", "taints", 0)),
        (models.Capacity, ("lowers", 0, "capacity")),
        (models.Namespaces, ("lowers", 0, "namespaces")),
        (models.UnreachableLower, ("lowers", 0, "unreachable")),
        (models.SecretEntry, ("lowers", 1, "kubeconfigSecret")),
        (models.ServiceAccounts, ("serviceAccounts",)),
        (models.Services, ("services",)),
        (models.Kubelet, ("kubelet",)),
        (models.Webhook, ("webhook",)),
        (models.ServiceRef, ("webhook", "service")),
        (models.Extender, ("extender",)),
        (models.Descheduler, ("descheduler",)),
        (models.Telemetry, ("telemetry",)),
        (models.Guard, ("guard",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_section_of_the_example_has_every_field_of_its_model(
    section: type[models.Section], path: tuple[Any, ...]
) -> None:
    """The example shows all fields that a file can have."""
    data = as_json(EXAMPLE.read_text())
    for step in path:
        data = data[step]
    fields_at(section, data)


def test_the_two_lowers_of_the_example_have_every_field_together() -> None:
    """A kubeconfig path and a kubeconfigSecret exclude each other, so one lower cannot have all fields."""
    data = as_json(EXAMPLE.read_text())
    fields_at(models.LowerEntry, {**data["lowers"][0], **data["lowers"][1]})


def test_every_field_of_every_model_occurs_in_the_example() -> None:
    """This also covers models that the test of sections does not list."""
    sections = [
        model for model in vars(models).values() if isinstance(model, type) and issubclass(model, models.Section)
    ]
    known = {str(field.alias) for section in sections for field in section.model_fields.values()}
    assert len(sections) > 15
    assert known <= set(keys_of(as_json(EXAMPLE.read_text())))


def test_more_than_half_of_the_lines_of_the_example_have_a_comment() -> None:
    """The example explains its fields."""
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert sum("#" in line for line in lines) > len(lines) / 2


def test_the_schema_is_valid_and_accepts_the_example() -> None:
    """It is a valid JSON schema of draft 2020-12."""
    made = schema()
    jsonschema.Draft202012Validator.check_schema(made)
    jsonschema.Draft202012Validator(made).validate(as_json(EXAMPLE.read_text()))


@pytest.mark.parametrize("text", [EMPTY, ONE], ids=["no lowers", "one lower"])
def test_the_schema_accepts_minimal_files(text: str) -> None:
    """Optional keys are optional in the schema too."""
    jsonschema.Draft202012Validator(schema()).validate(as_json(text))


@pytest.mark.parametrize(
    "text",
    [
        HEAD,
        EMPTY + "colour: red\n",
        EMPTY + "kubelet: {port: 0}\n",
        EMPTY + "kubelet: {port: '1'}\n",
        EMPTY + "upper: {kubeconfig: null}\n",
        EMPTY + "controllers: [PVC]\n",
        EMPTY + "controllers: [PV, PV]\n",
        EMPTY + "descheduler: {interval: 60}\n",
        EMPTY + "descheduler: {interval: 1d}\n",
        EMPTY + "upper: {advertiseURL: 'http://a:1'}\n",
        HEAD + "lowers: [{kubeconfig: k}]\n",
        HEAD + "lowers: [{name: A, kubeconfig: k}]\n",
        ONE + "  node: {labels: {'a b': c}}\n",
        ONE + "  node: {labels: {a: 1}}\n",
        ONE + "  node: {taints: [{key: a}]}\n",
        ONE + "  capacity: {limit: {cpu: 1}}\n",
    ],
)
def test_the_schema_rejects_invalid_files(text: str) -> None:
    """An editor that only has the schema finds unknown keys, wrong types and invalid values."""
    assert not jsonschema.Draft202012Validator(schema()).is_valid(as_json(text))


def test_every_field_of_the_schema_has_a_description() -> None:
    """An editor shows the documentation of each field from the models."""
    made = schema()
    sections = [made, *made["$defs"].values()]
    entries = [entry for section in sections for entry in section["properties"].values()]
    assert len(entries) > 80
    assert all(entry["description"].endswith(".") for entry in entries)
    assert all(section["additionalProperties"] is False for section in sections)
    assert made["properties"]["guard"]["description"].startswith("Blocks large numbers of deletions")


def test_the_schema_has_the_defaults_as_they_are_written_in_a_file() -> None:
    """A field has no default of null if null is not allowed in the file."""
    sections = schema()["$defs"]
    assert sections["Kubelet"]["properties"]["port"]["default"] == 10350
    assert sections["Descheduler"]["properties"]["cooldown"]["default"] == "5m"
    assert sections["Webhook"]["properties"]["ignoreSelectorKeys"]["default"] == ["clusterID"]
    assert sections["NodeEntry"]["properties"]["kubeletPort"]["default"] is None
    assert "default" not in sections["Upper"]["properties"]["kubeconfig"]
    assert "default" not in schema()["properties"]["guard"]
    assert sections["NodeEntry"]["properties"]["taints"]["default"] == [
        {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
    ]


def test_the_schema_can_be_written_as_json_and_read_again() -> None:
    """It can be stored in a file."""
    assert json.loads(json.dumps(schema())) == schema()


def test_a_minimal_topology_has_the_documented_defaults() -> None:
    """The file has only the required keys."""
    topology = parse(EMPTY)
    assert topology.upper.kubeconfig is None
    assert (topology.upper.qps, topology.upper.burst) == (500, 1000)
    assert topology.controllers == ("PV", "Service", "ServiceAccount")
    assert topology.ignore_labels == ("pod-group.scheduling.sigs.k8s.io",)
    assert (topology.on_conflict, topology.service_accounts.identity) == ("fail", "lower")
    assert topology.exclude_namespaces == ("kube-system",)
    assert (topology.services.kube_system, topology.services.upper_alias) == (
        False,
        "kubernetes-upper",
    )


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("kubelet", {"bind": "0.0.0.0", "port": 10350, "node_address": None}),
        ("webhook", {"enabled": False, "bind": "0.0.0.0", "port": 8443, "service": None}),
        ("extender", {"enabled": False, "port": 8888, "strategy": "spread"}),
        ("descheduler", {"enabled": False, "max_evictions_per_node": 10, "dry_run": False}),
        ("descheduler", {"recreate_bare_pods": False}),
        ("telemetry", {"bind": "127.0.0.1", "port": 9095}),
        ("guard", {"max_deletes": 20, "max_delete_percent": 30}),
    ],
)
def test_an_absent_section_has_the_documented_defaults(section: str, values: dict[str, Any]) -> None:
    """The documentation has the same values for these fields."""
    found = getattr(parse(EMPTY), section)
    assert {name: getattr(found, name) for name in values} == values


def test_durations_of_a_section_are_parsed() -> None:
    """They may have several units."""
    descheduler = parse(
        EMPTY + "descheduler: {interval: 1m30s, cooldown: 1h30m, pendingLongerThan: 500ms}\n"
    ).descheduler
    assert descheduler.interval == timedelta(seconds=90)
    assert descheduler.cooldown == timedelta(minutes=90)
    assert descheduler.pending_longer_than == timedelta(milliseconds=500)


@pytest.mark.parametrize(
    "text",
    [
        EMPTY + "upper: {kubeconfig: u, context: c, advertiseURL: 'https://[fd00::1]:6443'}\n",
        EMPTY + "kubelet: {bind: '::', nodeAddress: 'fd00::1'}\n",
        EMPTY + "webhook: {enabled: true, url: 'https://10.0.0.1/mutate'}\n",
        EMPTY + "webhook: {service: {namespace: a, name: b}}\n",
        EMPTY + "webhook: {port: 9095}\nextender: {port: 9095}\n",
        EMPTY + "controllers: []\nignoreLabels: []\nexcludeNamespaces: []\n",
        EMPTY + "serviceAccounts: {identity: upper}\nonConflict: adopt\n",
        ONE + "  node: {name: a.b.c, taints: []}\n  maintenance: drain\n",
        ONE + "  node: {labels: {a: '', example.com/b: C_d.e-f}, annotations: {a: 'any, \u00fc'}}\n",
        ONE + "  capacity: {basis: allocatable, reserve: {memory: 1.5Gi, pods: '0', a/b: 2k}}\n",
        ONE + "  qps: 0\n  burst: 0\n",
        ONE + "  namespaces: {mapping: prefix}\n  unreachable: {evictAfter: 30m}\n",
        ONE + "  controllers: null\n  ignoreLabels: null\n  onConflict: null\n",
        HEAD.replace("demo", "no") + "lowers: []\n",
        HEAD.replace("demo", "2024-01-01") + "lowers: []\n",
        HEAD + "lowers: [&a {name: a, kubeconfig: k, node: &n {taints: []}}]\nguard: {}\n",
        "%YAML 1.2\n---\n" + EMPTY + "...\n",
        "\ufeff" + EMPTY,
        EMPTY.replace("\n", "\r\n"),
        "# a comment\n\n" + EMPTY + "\n# another\n",
        '{"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "a", "lowers": []}',
        '{\n\t"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology",\n\t"name": "a", "lowers": []\n}\n',
    ],
)
def test_valid_files_of_many_forms_are_accepted(text: str) -> None:
    """Every form that the format allows is accepted."""
    assert isinstance(parse(text), Topology)


def test_a_topology_in_a_configmap_may_name_kubeconfigs_in_secrets() -> None:
    """It is valid there because it has no path of a file."""
    text = HEAD + "lowers: [{name: a, kubeconfigSecret: {namespace: n, name: s}}]\n"
    assert parse(text, configmap_mode=True).lowers[0].kubeconfig is None


def test_topologies_are_equal_if_their_values_are_equal() -> None:
    """Comments, the order of sets, quotes and the form of durations do not matter."""
    one = ONE + "controllers: [PV, Service]\ndescheduler: {interval: 60s}\n"
    other = "# same\n" + ONE + 'descheduler: {"interval": 1m}\ncontrollers:\n- Service\n- PV\n'
    assert parse(one) == parse(other, name="elsewhere.yaml")
    assert parse(one) != parse(one.replace("60s", "61s"))


@pytest.mark.parametrize("text", [EMPTY, ONE, EXAMPLE.read_text()], ids=["empty", "one", "example"])
def test_a_topology_that_is_serialized_and_parsed_again_is_equal(text: str) -> None:
    """Writing default values explicitly makes no difference."""
    first = parse(text)
    file = models.TopologyFile.model_validate(plain(compose(text).root or pytest.fail("no file")))
    again = json.dumps(file.model_dump(mode="json", by_alias=True, exclude_none=True))
    assert parse(again).lowers == first.lowers
    assert parse(again).model_dump(exclude={"lower_defaults"}) == first.model_dump(exclude={"lower_defaults"})


def test_a_topology_is_immutable() -> None:
    """Its parts are immutable too, so that code can rely on a topology that it holds."""
    topology = parse(ONE)
    with pytest.raises(ValueError, match="frozen"):
        topology.name = "other"
    with pytest.raises(ValueError, match="frozen"):
        topology.lowers[0].node.name = "other"


def test_a_section_can_be_constructed_with_attribute_names() -> None:
    """This is for code and has the same checks; a file must have the keys instead."""
    assert Guard(max_deletes=1) == parse(EMPTY + "guard: {maxDeletes: 1}\n").guard
    with pytest.raises(ValueError, match="less than or equal to 100"):
        Guard(max_delete_percent=101)
    with pytest.raises(TopologyErrors, match="unknown key; did you mean maxDeletes"):
        parse(EMPTY + "guard: {max_deletes: 1}\n")
