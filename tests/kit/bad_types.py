"""Files with a key that is missing or not known, or with a value of another type."""

from corpus_form import EMPTY, HEAD, ONE, Bad

NODE = ONE + "  node:\n"
CAPACITY = ONE + "  capacity:\n"

KEYS = (
    Bad(
        "apiVersion missing",
        "^kind: Topology\nname: a\nlowers: []\n",
        "apiVersion",
        "missing; write apiVersion: tensile-kube.io/v1alpha1",
    ),
    Bad(
        "kind missing",
        "^apiVersion: tensile-kube.io/v1alpha1\nname: a\nlowers: []\n",
        "kind",
        "missing; write kind: Topology",
    ),
    Bad(
        "name missing",
        "^apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nlowers: []\n",
        "name",
        "missing",
    ),
    Bad("lowers missing", "^" + HEAD, "lowers", "missing; it must be given"),
    Bad("everything missing", "^{}\n", "apiVersion", "missing", alone=False),
    Bad("lower without name", HEAD + "lowers:\n- ^kubeconfig: k\n", "lowers[0].name", "missing"),
    Bad("empty lower", HEAD + "lowers:\n- ^{}\n", "lowers[0].name", "missing", alone=False),
    Bad("taint without key", NODE + "    taints: [^{effect: NoSchedule}]\n", "lowers[0].node.taints[0].key", "missing"),
    Bad("taint without effect", NODE + "    taints: [^{key: a}]\n", "lowers[0].node.taints[0].effect", "missing"),
    Bad("service without name", EMPTY + "webhook:\n  ^service: {namespace: a}\n", "webhook.service.name", "missing"),
    Bad(
        "service without namespace", EMPTY + "webhook:\n  ^service: {name: a}\n", "webhook.service.namespace", "missing"
    ),
    Bad("unknown key", EMPTY + "^colour: red\n", "colour", "unknown key; known here: apiVersion, kind"),
    Bad("misspelt key", EMPTY + "^kublet: {}\n", "kublet", "unknown key; did you mean kubelet?"),
    Bad("singular", HEAD + "^lower: []\nlowers: []\n", "lower", "did you mean lowers?"),
    Bad("snake case", EMPTY + "^on_conflict: fail\n", "on_conflict", "did you mean onConflict?"),
    Bad("lower case", EMPTY + "^onconflict: fail\n", "onconflict", "did you mean onConflict?"),
    Bad("acronym", EMPTY + "upper: {^advertiseUrl: null}\n", "upper.advertiseUrl", "did you mean advertiseURL?"),
    Bad("CA", EMPTY + "kubelet:\n  ^clientCaFile: x\n", "kubelet.clientCaFile", "did you mean clientCAFile?"),
    Bad("unknown in a lower", ONE + "  ^kubeConfig: k\n", "lowers[0].kubeConfig", "did you mean kubeconfig?"),
    Bad("unknown in a node", NODE + "    ^label: {}\n", "lowers[0].node.label", "did you mean labels?"),
    Bad(
        "unknown in a taint",
        NODE + "    taints:\n    - key: a\n      ^efect: b\n      effect: NoExecute\n",
        "lowers[0].node.taints[0].efect",
        "did you mean effect?",
    ),
    Bad("name in lowerDefaults", EMPTY + "lowerDefaults: {^name: a}\n", "lowerDefaults.name", "unknown key"),
    Bad(
        "kubeconfig in lowerDefaults",
        EMPTY + "lowerDefaults:\n  ^kubeconfig: a\n",
        "lowerDefaults.kubeconfig",
        "unknown key",
    ),
    Bad("metadata as elsewhere", EMPTY + "^metadata: {name: a}\n", "metadata", "unknown key"),
    Bad("spec as elsewhere", HEAD + "lowers: []\n^spec: {}\n", "spec", "unknown key"),
    Bad("key with control characters", EMPTY + '^"a\\e[2Jb": 1\n', '["a\\u001b[2Jb"]', "unknown key"),
    Bad(
        "long key",
        EMPTY + "^" + "k" * 500 + ": 1\n",
        '["' + "k" * 60 + '..."]',
        "unknown key",
    ),
)

TYPES = (
    Bad(
        "apiVersion of another version",
        "apiVersion: ^tensile-kube.io/v1\nkind: Topology\nname: a\nlowers: []\n",
        "apiVersion",
        "must be tensile-kube.io/v1alpha1; did you mean",
    ),
    Bad(
        "another kind",
        "apiVersion: tensile-kube.io/v1alpha1\nkind: ^Deployment\nname: a\nlowers: []\n",
        "kind",
        'is "Deployment"; must be Topology',
    ),
    Bad(
        "kind in lower case",
        "apiVersion: tensile-kube.io/v1alpha1\nkind: ^topology\nname: a\nlowers: []\n",
        "kind",
        "did you mean Topology?",
    ),
    Bad(
        "kind as a list",
        "apiVersion: tensile-kube.io/v1alpha1\nkind: ^[Topology]\nname: a\nlowers: []\n",
        "kind",
        "is a list; must be Topology",
    ),
    Bad(
        "name as a number",
        HEAD.replace("demo", "^12") + "lowers: []\n",
        "name",
        "is the number 12, must be text; put it in quotes",
    ),
    Bad("name as a leading-zero number", HEAD.replace("demo", "^012") + "lowers: []\n", "name", "is the number 12"),
    Bad("name as an octal number", HEAD.replace("demo", "^0o17") + "lowers: []\n", "name", "is the number 15"),
    Bad("name as a float", HEAD.replace("demo", "^1.5") + "lowers: []\n", "name", "is the number 1.5"),
    Bad("name as infinity", HEAD.replace("demo", "^.inf") + "lowers: []\n", "name", "is the number inf"),
    Bad("name as truth", HEAD.replace("demo", "^true") + "lowers: []\n", "name", "is true, must be text"),
    Bad("name as null", HEAD.replace("demo", "^null") + "lowers: []\n", "name", "is null, must be text"),
    Bad("name as a mapping", HEAD.replace("demo", "^{a: b}") + "lowers: []\n", "name", "is a mapping, must be text"),
    Bad("name of 50 digits", HEAD.replace("demo", "^" + "1" * 50) + "lowers: []\n", "name", "must be text"),
    Bad("lowers as a mapping", HEAD + "^lowers:\n  a: {kubeconfig: k}\n", "lowers", "is a mapping, must be a list"),
    Bad("lowers as text", HEAD + "lowers: ^a\n", "lowers", 'is "a", must be a list'),
    Bad("lowers empty", HEAD + "lowers:^\n", "lowers", "is null, must be a list"),
    Bad("lowers of names", HEAD + "lowers:\n- ^a\n", "lowers[0]", 'is "a", must be a mapping'),
    Bad(
        "lowers of null", HEAD + "lowers:\n- name: a\n  kubeconfig: k\n-^\n", "lowers[1]", "is null, must be a mapping"
    ),
    Bad("lower in a list of its own", HEAD + "lowers:\n- ^- name: a\n", "lowers[0]", "is a list, must be a mapping"),
    Bad(
        "upper as text",
        EMPTY + "upper: ^kubeconfigs/upper\n",
        "upper",
        "must be a mapping with keys out of kubeconfig, context",
    ),
    Bad("upper empty", EMPTY + "upper:^\nguard: {}\n", "upper", "leave the key out for its default"),
    Bad("section as a list", EMPTY + "^guard:\n- maxDeletes: 1\n", "guard", "is a list, must be a mapping"),
    Bad("section as truth", EMPTY + "webhook: ^true\n", "webhook", "is true, must be a mapping"),
    Bad(
        "labels as a list", NODE + "    ^labels:\n    - a=b\n", "lowers[0].node.labels", "is a list, must be a mapping"
    ),
    Bad("labels as text", NODE + "    labels: ^a=b\n", "lowers[0].node.labels", "must be a mapping"),
    Bad("label as a number", NODE + "    labels: {a: ^1}\n", "lowers[0].node.labels.a", "put it in quotes"),
    Bad(
        "label as truth",
        NODE + "    labels: {a: ^true}\n",
        "lowers[0].node.labels.a",
        "is true, must be text; put it in quotes",
    ),
    Bad("label as null", NODE + "    labels:\n      a:^\n", "lowers[0].node.labels.a", "is null, must be text"),
    Bad(
        "annotation as a mapping",
        NODE + "    annotations:\n      ^a:\n        b: c\n",
        "lowers[0].node.annotations.a",
        "is a mapping, must be text",
    ),
    Bad(
        "taints as a mapping",
        NODE + "    taints: ^{key: a, effect: NoSchedule}\n",
        "lowers[0].node.taints",
        "must be a list",
    ),
    Bad(
        "taint as text",
        NODE + "    taints: [^a=b:NoSchedule]\n",
        "lowers[0].node.taints[0]",
        "must be a mapping with keys out of key, value, effect",
    ),
    Bad(
        "port as text",
        EMPTY + 'kubelet: {port: ^"10250"}\n',
        "kubelet.port",
        "must be a whole number; write it without quotes",
    ),
    Bad("port as a word", EMPTY + "kubelet: {port: ^https}\n", "kubelet.port", 'is "https", must be a whole number'),
    Bad("port as a float", EMPTY + "kubelet: {port: ^10250.0}\n", "kubelet.port", "must be a whole number"),
    Bad("port as truth", EMPTY + "kubelet: {port: ^true}\n", "kubelet.port", "is true, must be a whole number"),
    Bad(
        "port as null",
        EMPTY + "telemetry: {port: ^null}\n",
        "telemetry.port",
        "is null, must be a whole number; leave the key out",
    ),
    Bad(
        "port as a time of old",
        EMPTY + "telemetry: {port: ^1:30}\n",
        "telemetry.port",
        'is "1:30", must be a whole number',
    ),
    Bad("port as a list", EMPTY + "telemetry: {port: ^[1]}\n", "telemetry.port", "is a list, must be a whole number"),
    Bad("qps as text", ONE + "  qps: ^fast\n", "lowers[0].qps", "must be a whole number"),
    Bad("qps as a fraction", EMPTY + "upper: {qps: ^0.5}\n", "upper.qps", "is the number 0.5, must be a whole number"),
    Bad(
        "enabled as a number",
        EMPTY + "webhook: {enabled: ^1}\n",
        "webhook.enabled",
        "is the number 1, must be true or false",
    ),
    Bad("enabled as yes", EMPTY + "webhook: {enabled: ^yes}\n", "webhook.enabled", 'is "yes", must be true or false'),
    Bad("enabled as on", EMPTY + "extender: {enabled: ^on}\n", "extender.enabled", 'is "on", must be true or false'),
    Bad(
        "enabled as quoted truth",
        EMPTY + "descheduler: {enabled: ^'true'}\n",
        "descheduler.enabled",
        "must be true or false",
    ),
    Bad("enabled as null", EMPTY + "extender: {enabled: ^}\n", "extender.enabled", "is null, must be true or false"),
    Bad("dryRun as no", EMPTY + "descheduler: {dryRun: ^no}\n", "descheduler.dryRun", 'is "no"'),
    Bad("kubeSystem as text", EMPTY + "services: {kubeSystem: ^all}\n", "services.kubeSystem", "true or false"),
    Bad("controllers as text", EMPTY + "controllers: ^PV\n", "controllers", 'is "PV", must be a list: [...]'),
    Bad("controllers as a mapping", EMPTY + "controllers: ^{PV: true}\n", "controllers", "must be a list"),
    Bad("controllers null above", EMPTY + "controllers: ^null\n", "controllers", "leave the key out for its default"),
    Bad("onConflict null above", EMPTY + "onConflict: ^null\n", "onConflict", "is null; must be fail or adopt"),
    Bad(
        "kubeconfig as a number", HEAD + "lowers: [{name: a, kubeconfig: ^1}]\n", "lowers[0].kubeconfig", "must be text"
    ),
    Bad(
        "kubeconfig of the upper empty",
        EMPTY + "upper:\n  kubeconfig:^\n",
        "upper.kubeconfig",
        "is null, must have a value; leave the key out",
    ),
    Bad(
        "node name null",
        ONE + "  node: {name: ^null}\n",
        "lowers[0].node.name",
        "is null, must have a value; leave the key out",
    ),
    Bad("secret null", ONE + "  kubeconfigSecret: ^~\n", "lowers[0].kubeconfigSecret", "is null, must have a value"),
    Bad("context as a list", EMPTY + "upper: {context: ^[a]}\n", "upper.context", "is a list, must be text"),
    Bad("bind as a number", EMPTY + "kubelet: {bind: ^0}\n", "kubelet.bind", "must be text"),
    Bad(
        "quantity as a number",
        CAPACITY + "    reserve: {cpu: ^2}\n",
        "lowers[0].capacity.reserve.cpu",
        "is the number 2, must be text; put it in quotes",
    ),
    Bad(
        "duration as a number",
        EMPTY + "descheduler: {interval: ^60}\n",
        "descheduler.interval",
        "is the number 60; must be a duration with its unit",
    ),
    Bad(
        "duration as null",
        EMPTY + "descheduler: {cooldown: ^null}\n",
        "descheduler.cooldown",
        "is null; must be a duration",
    ),
    Bad(
        "duration as a mapping",
        EMPTY + "descheduler: {cooldown: ^{}}\n",
        "descheduler.cooldown",
        "is a mapping; must be a duration",
    ),
    Bad(
        "secret as text",
        HEAD + "lowers:\n- name: a\n  kubeconfigSecret: ^ns/name\n",
        "lowers[0].kubeconfigSecret",
        "must be a mapping with keys out of namespace, name, key",
    ),
    Bad(
        "unreachable as a duration",
        ONE + "  unreachable: ^5m\n",
        "lowers[0].unreachable",
        "must be a mapping with keys out of evictAfter",
    ),
    Bad("identity as a word", EMPTY + "serviceAccounts: ^lower\n", "serviceAccounts", "with keys out of identity"),
    Bad("mapping as a word", ONE + "  namespaces: ^prefix\n", "lowers[0].namespaces", "with keys out of mapping"),
)

ALL = (*KEYS, *TYPES)
