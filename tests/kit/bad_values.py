"""Files whose names, labels, ports, rates and quantities are of the right type and not right."""

from corpus_form import EMPTY, HEAD, ONE, Bad

NODE = ONE + "  node:\n"
CAPACITY = ONE + "  capacity:\n"

ALL = (
    Bad(
        "name with capitals",
        HEAD.replace("demo", "^Demo") + "lowers: []\n",
        "name",
        'is "Demo"; must be lower-case letters',
    ),
    Bad(
        "name with underscore", HEAD.replace("demo", "^my_demo") + "lowers: []\n", "name", "must be lower-case letters"
    ),
    Bad("name with a dot", HEAD.replace("demo", "^a.b") + "lowers: []\n", "name", "must be lower-case letters"),
    Bad(
        "name with a dash at the end",
        HEAD.replace("demo", "^demo-") + "lowers: []\n",
        "name",
        "ending with a letter or digit",
    ),
    Bad("name empty", HEAD.replace("demo", '^""') + "lowers: []\n", "name", 'is ""; must be'),
    Bad(
        "name of 64 characters",
        HEAD.replace("demo", "^" + "a" * 64) + "lowers: []\n",
        "name",
        "is 64 characters long; at most 63",
    ),
    Bad("name with a line break", HEAD.replace("demo", '^"demo\\n"') + "lowers: []\n", "name", "must be lower-case"),
    Bad(
        "name in other letters",
        HEAD.replace("demo", "^d\u00e9mo") + "lowers: []\n",
        "name",
        "must be lower-case letters",
    ),
    Bad(
        "name in other digits", HEAD.replace("demo", "^a\u0663") + "lowers: []\n", "name", "must be lower-case letters"
    ),
    Bad(
        "lower name",
        HEAD + "lowers:\n- name: ^Lower_A\n  kubeconfig: k\n",
        "lowers[0].name",
        "must be lower-case letters",
    ),
    Bad("node name", NODE + "    name: ^Node\n", "lowers[0].node.name", "each part starting and ending"),
    Bad(
        "node name with empty part", NODE + "    name: ^a..b\n", "lowers[0].node.name", "each part starting and ending"
    ),
    Bad("node name too long for a label", NODE + "    name: ^" + "a" * 64 + "\n", "lowers[0].node.name", "at most 63"),
    Bad(
        "label key with a space",
        NODE + '    labels: {^"a b": c}\n',
        'lowers[0].node.labels["a b"]',
        "must be letters, digits",
    ),
    Bad(
        "label key empty", NODE + "    labels: {^'': c}\n", "lowers[0].node.labels" + '[""]', "must be letters, digits"
    ),
    Bad(
        "label key with two slashes",
        NODE + "    labels: {^a/b/c: d}\n",
        'lowers[0].node.labels["a/b/c"]',
        "before the slash must be a DNS name",
    ),
    Bad(
        "label key without name",
        NODE + "    labels: {^example.com/: d}\n",
        'lowers[0].node.labels["example.com/"]',
        "must be letters, digits",
    ),
    Bad(
        "label key with capital domain",
        NODE + "    labels: {^Example.com/a: d}\n",
        'lowers[0].node.labels["Example.com/a"]',
        "DNS name",
    ),
    Bad(
        "label key too long",
        NODE + "    labels: {^" + "k" * 64 + ": d}\n",
        "lowers[0].node.labels" + '["' + "k" * 60 + '..."]',
        "at most 63",
    ),
    Bad(
        "label of the engine",
        NODE + "    labels: {^tensile-kube.io/owner: x}\n",
        'lowers[0].node.labels["tensile-kube.io/owner"]',
        "written by the engine",
    ),
    Bad(
        "annotation of the engine",
        NODE + "    annotations: {^tensile-kube.io/x: x}\n",
        'lowers[0].node.annotations["tensile-kube.io/x"]',
        "written by the engine",
    ),
    Bad(
        "taint of the engine",
        NODE + "    taints: [{key: ^tensile-kube.io/x, effect: NoSchedule}]\n",
        "lowers[0].node.taints[0].key",
        "written by the engine",
    ),
    Bad(
        "label value with a space",
        NODE + "    labels: {a: ^b c}\n",
        "lowers[0].node.labels.a",
        'is "b c"; must be empty, or letters',
    ),
    Bad(
        "label value with a slash",
        NODE + "    labels: {a: ^b/c}\n",
        "lowers[0].node.labels.a",
        "must be empty, or letters",
    ),
    Bad(
        "label value too long",
        NODE + "    labels:\n      a: ^" + "v" * 64 + "\n",
        "lowers[0].node.labels.a",
        "is 64 characters long",
    ),
    Bad(
        "annotation key",
        NODE + "    annotations: {^-a: c}\n",
        'lowers[0].node.annotations["-a"]',
        "starting and ending",
    ),
    Bad(
        "taint key",
        NODE + "    taints: [{key: ^a b, effect: NoSchedule}]\n",
        "lowers[0].node.taints[0].key",
        "must be letters",
    ),
    Bad(
        "taint value",
        NODE + "    taints: [{key: a, value: ^b c, effect: NoSchedule}]\n",
        "lowers[0].node.taints[0].value",
        "must be empty, or letters",
    ),
    Bad(
        "taint value null",
        NODE + "    taints: [{key: a, value: ^null, effect: NoSchedule}]\n",
        "lowers[0].node.taints[0].value",
        "is null, must be text",
    ),
    Bad(
        "taint effect misspelt",
        NODE + "    taints: [{key: a, effect: ^NoSchedul}]\n",
        "lowers[0].node.taints[0].effect",
        "did you mean NoSchedule?",
    ),
    Bad(
        "taint effect of its own",
        NODE + "    taints:\n    - key: a\n      effect: ^Never\n",
        "lowers[0].node.taints[0].effect",
        "must be NoSchedule or PreferNoSchedule or NoExecute",
    ),
    Bad("port 0", EMPTY + "kubelet: {port: ^0}\n", "kubelet.port", "is the number 0, must be at least 1"),
    Bad("port negative", EMPTY + "telemetry: {port: ^-1}\n", "telemetry.port", "must be at least 1"),
    Bad("port 65536", EMPTY + "webhook: {port: ^65536}\n", "webhook.port", "must be at most 65535"),
    Bad("port of a node", NODE + "    kubeletPort: ^70000\n", "lowers[0].node.kubeletPort", "must be at most 65535"),
    Bad("port huge", EMPTY + "extender: {port: ^99999999999999999999999}\n", "extender.port", "must be at most 65535"),
    Bad("port of hexadecimal size", EMPTY + "extender: {port: ^0x10000}\n", "extender.port", "is the number 65536"),
    Bad("qps negative", ONE + "  qps: ^-5\n", "lowers[0].qps", "must be at least 0"),
    Bad("qps of the upper negative", EMPTY + "upper: {qps: ^-1}\n", "upper.qps", "must be at least 0"),
    Bad("burst negative", EMPTY + "lowerDefaults: {burst: ^-1}\n", "lowerDefaults.burst", "must be at least 0"),
    Bad("qps absurd", ONE + "  qps: ^10000000\n", "lowers[0].qps", "must be at most 1000000"),
    Bad("basis", CAPACITY + "    basis: ^all\n", "lowers[0].capacity.basis", 'is "all"; must be free or allocatable'),
    Bad(
        "basis misspelt", CAPACITY + "    basis: ^alocatable\n", "lowers[0].capacity.basis", "did you mean allocatable?"
    ),
    Bad(
        "unknown resource",
        CAPACITY + '    limit: {^cpus: "2"}\n',
        "lowers[0].capacity.limit.cpus",
        "no resource of a node; cpu, ephemeral-storage",
    ),
    Bad(
        "resource with a bad domain",
        CAPACITY + '    limit: {^Nvidia.com/gpu: "2"}\n',
        'lowers[0].capacity.limit["Nvidia.com/gpu"]',
        "DNS name",
    ),
    Bad(
        "quantity as a word",
        CAPACITY + "    reserve: {cpu: ^two}\n",
        "lowers[0].capacity.reserve.cpu",
        'is "two": not a quantity',
    ),
    Bad("quantity empty", CAPACITY + "    reserve: {cpu: ^''}\n", "lowers[0].capacity.reserve.cpu", "not a quantity"),
    Bad(
        "quantity with a space",
        CAPACITY + "    reserve: {memory: ^1 Gi}\n",
        "lowers[0].capacity.reserve.memory",
        "not a quantity",
    ),
    Bad(
        "quantity with bytes",
        CAPACITY + "    reserve: {memory: ^1GB}\n",
        "lowers[0].capacity.reserve.memory",
        "not a quantity",
    ),
    Bad(
        "quantity with a comma",
        CAPACITY + "    reserve: {memory: ^'1,5Gi'}\n",
        "lowers[0].capacity.reserve.memory",
        "not a quantity",
    ),
    Bad(
        "quantity in lower case",
        CAPACITY + "    reserve: {memory: ^1gi}\n",
        "lowers[0].capacity.reserve.memory",
        "not a quantity",
    ),
    Bad(
        "quantity negative",
        CAPACITY + "    reserve: {cpu: ^'-1'}\n",
        "lowers[0].capacity.reserve.cpu",
        "must not be negative",
    ),
    Bad(
        "quantity in other digits",
        CAPACITY + "    reserve: {cpu: ^\u0663m}\n",
        "lowers[0].capacity.reserve.cpu",
        "not a quantity",
    ),
)
