"""Files whose fields are right one by one and do not fit together: names, ports, pairs, sets, ConfigMaps."""

from corpus_form import EMPTY, HEAD, ONE, Bad

TWO = ONE + "- name: b\n  kubeconfig: kubeconfigs/b\n"
SECRET = HEAD + "lowers:\n- name: a\n  kubeconfigSecret: {namespace: n, name: a}\n"

NAMES = (
    Bad(
        "two lowers of one name",
        ONE + "- name: ^a\n  kubeconfig: k\n",
        "lowers[1].name",
        "a is the name of lowers[0] too; give each its own",
    ),
    Bad(
        "third lower with the name of the first",
        TWO + "- {kubeconfig: k, name: ^a}\n",
        "lowers[2].name",
        "a is the name of lowers[0] too",
    ),
    Bad(
        "one lower by an alias twice",
        HEAD + "lowers:\n- &a {name: ^a, kubeconfig: k}\n- *a\n",
        "lowers[1].name",
        "a is the name of lowers[0] too",
    ),
    Bad(
        "two lowers with one node",
        ONE + "  node: {name: n}\n- name: b\n  kubeconfig: k\n  node: {name: ^n}\n",
        "lowers[1].node.name",
        "n is the node of lowers[0] too",
    ),
    Bad(
        "node with the name of another lower",
        ONE + "- name: b\n  kubeconfig: k\n  node:\n    name: ^a\n",
        "lowers[1].node.name",
        "a is the node of lowers[0] too",
    ),
    Bad(
        "lower with the name of another's node",
        ONE + "  node: {name: b}\n- name: ^b\n  kubeconfig: k\n",
        "lowers[1].name",
        "b is the node of lowers[0] too",
    ),
    Bad(
        "one node name for all",
        HEAD
        + "lowerDefaults: {node: {name: n}}\nlowers:\n"
        + "- {name: a, kubeconfig: k}\n- {name: ^b, kubeconfig: k}\n",
        "lowers[1].name",
        "n is the node of lowers[0] too",
    ),
)

KUBECONFIGS = (
    Bad(
        "no kubeconfig",
        HEAD + "lowers:\n- ^name: a\n",
        "lowers[0].kubeconfig",
        "missing; give the path of a kubeconfig (not in a ConfigMap), or kubeconfigSecret",
    ),
    Bad(
        "kubeconfig null",
        HEAD + "lowers: [{name: a, kubeconfig: ^null}]\n",
        "lowers[0].kubeconfig",
        "is null, must have a value; leave the key out for its default",
    ),
    Bad(
        "both ways to a kubeconfig",
        ONE + "  ^kubeconfigSecret:\n    {namespace: a, name: b}\n",
        "lowers[0].kubeconfigSecret",
        "kubeconfig is given too; keep one of them",
    ),
    Bad(
        "secret without name",
        HEAD + "lowers:\n- name: a\n  ^kubeconfigSecret: {namespace: a}\n",
        "lowers[0].kubeconfigSecret.name",
        "write the namespace and the name of the Secret",
    ),
    Bad(
        "secret without namespace",
        HEAD + "lowers:\n- name: a\n  ^kubeconfigSecret: {name: a}\n",
        "lowers[0].kubeconfigSecret.namespace",
        "write the namespace and the name of the Secret",
    ),
    Bad(
        "secret of lowerDefaults without name",
        HEAD + "lowerDefaults:\n  ^kubeconfigSecret: {namespace: a}\nlowers: [{name: a}]\n",
        "lowerDefaults.kubeconfigSecret.name",
        "missing",
    ),
)

PAIRS = (
    Bad(
        "certificate without key",
        EMPTY + "kubelet: {tlsCertFile: ^a.crt}\n",
        "kubelet.tlsCertFile",
        "given without tlsKeyFile; give both or neither",
    ),
    Bad(
        "key without certificate",
        EMPTY + "kubelet:\n  tlsKeyFile: ^a.key\n",
        "kubelet.tlsKeyFile",
        "given without tlsCertFile",
    ),
    Bad(
        "certificate with null for its key",
        EMPTY + "kubelet: {tlsCertFile: ^a.crt, tlsKeyFile: null}\n",
        "kubelet.tlsCertFile",
        "given without tlsKeyFile",
    ),
    Bad(
        "webhook's certificate without key",
        EMPTY + "webhook: {tlsCertFile: ^a.crt}\n",
        "webhook.tlsCertFile",
        "given without tlsKeyFile",
    ),
    Bad(
        "webhook's key without certificate",
        EMPTY + "webhook: {tlsKeyFile: ^a.key}\n",
        "webhook.tlsKeyFile",
        "given without tlsCertFile",
    ),
    Bad(
        "webhook reached two ways",
        EMPTY + "webhook:\n  service: {namespace: a, name: b}\n  url: ^https://a\n",
        "webhook.url",
        "service is given too; keep one of them",
    ),
    Bad("no burst", ONE + "  burst: ^0\n", "lowers[0].burst", "no request could go"),
    Bad("no burst for the upper", EMPTY + "upper: {burst: ^0, qps: 5}\n", "upper.burst", "at least 1"),
    Bad(
        "no burst for all",
        HEAD + "lowerDefaults: {burst: ^0}\nlowers: [{name: a, kubeconfig: k}]\n",
        "lowerDefaults.burst",
        "or set qps: 0 for no limit",
    ),
    Bad(
        "half a device",
        ONE + "  capacity:\n    limit: {nvidia.com/gpu: ^'0.5'}\n",
        'lowers[0].capacity.limit["nvidia.com/gpu"]',
        "counted in whole numbers",
    ),
    Bad(
        "half a pod",
        ONE + "  capacity:\n    reserve: {pods: ^1500m}\n",
        "lowers[0].capacity.reserve.pods",
        "counted in whole numbers",
    ),
    Bad(
        "part of a page, for all",
        EMPTY + "lowerDefaults: {capacity: {limit: {hugepages-2Mi: ^1m}}}\n",
        "lowerDefaults.capacity.limit.hugepages-2Mi",
        "counted in whole numbers",
    ),
    Bad(
        "annotations larger than Kubernetes takes",
        ONE + "  node:\n    ^annotations:\n      a: " + "x" * 262_144 + "\n",
        "lowers[0].node.annotations",
        "262145 bytes; Kubernetes takes 262144 in all",
    ),
)

SETS = (
    Bad("controller twice", EMPTY + "controllers: [PV, ^PV]\n", "controllers[1]", "PV is named twice"),
    Bad("label twice", EMPTY + "ignoreLabels: [a, b, ^a]\n", "ignoreLabels[2]", "a is named twice"),
    Bad("namespace twice", EMPTY + "excludeNamespaces: [a, ^a]\n", "excludeNamespaces[1]", "twice"),
    Bad(
        "selector key twice",
        EMPTY + "webhook: {ignoreSelectorKeys: [a, ^a]}\n",
        "webhook.ignoreSelectorKeys[1]",
        "a is named twice; name it once",
    ),
    Bad(
        "controller of a lower twice",
        ONE + "  controllers:\n  - RBAC\n  - ^RBAC\n",
        "lowers[0].controllers[1]",
        "RBAC is named twice",
    ),
    Bad(
        "label of lowerDefaults twice",
        EMPTY + "lowerDefaults: {ignoreLabels: [a/b, ^a/b]}\n",
        "lowerDefaults.ignoreLabels[1]",
        '"a/b" is named twice',
    ),
    Bad(
        "taint twice",
        ONE
        + "  node:\n    taints:\n    - {key: a, effect: NoSchedule}\n"
        + "    - ^{key: a, value: b, effect: NoSchedule}\n",
        "lowers[0].node.taints[1]",
        "a second taint a with effect NoSchedule; keep one",
    ),
    Bad(
        "taint of lowerDefaults twice",
        EMPTY + "lowerDefaults: {node: {taints: [{key: a, effect: NoExecute}," + " ^{key: a, effect: NoExecute}]}}\n",
        "lowerDefaults.node.taints[1]",
        "a second taint a with effect NoExecute",
    ),
)

PORTS = (
    Bad(
        "kubelet on the port of telemetry",
        ONE + "kubelet: {port: ^9095}\n",
        "kubelet.port",
        "port 9095 of lowers[0] (kubelet.port + 0) is that of telemetry.port too",
    ),
    Bad(
        "kubelet on the port of telemetry, without lowers",
        EMPTY + "kubelet: {port: ^9095}\n",
        "kubelet.port",
        "port 9095 of kubelet.port is that of telemetry.port too",
    ),
    Bad(
        "telemetry on the port of the second lower",
        TWO + "telemetry: {port: ^10351}\n",
        "telemetry.port",
        "is that of lowers[1] (kubelet.port + 1) too",
    ),
    Bad(
        "webhook on the port of the extender",
        EMPTY + "webhook: {enabled: true, port: ^8888}\nextender: {enabled: true}\n",
        "webhook.port",
        "port 8888 of webhook.port is that of extender.port too",
    ),
    Bad(
        "webhook and extender on one port",
        EMPTY + "webhook: {enabled: true, port: 1}\nextender: {enabled: true, port: ^1}\n",
        "extender.port",
        "port 1 of extender.port is that of webhook.port too",
    ),
    Bad(
        "webhook on the port of the kubelet",
        ONE + "webhook:\n  enabled: true\n  port: ^10350\n",
        "webhook.port",
        "is that of lowers[0] (kubelet.port + 0) too",
    ),
    Bad(
        "extender on the port of telemetry",
        EMPTY + "extender:\n  enabled: true\n  port: ^9095\n",
        "extender.port",
        "is that of telemetry.port too",
    ),
    Bad(
        "two nodes on one port",
        ONE + "  node: {kubeletPort: 5}\n- {name: b, kubeconfig: k, node: {kubeletPort: ^5}}\n",
        "lowers[1].node.kubeletPort",
        "port 5 of lowers[1] is that of lowers[0] too",
    ),
    Bad(
        "one port for all nodes",
        HEAD
        + "lowerDefaults: {node: {kubeletPort: ^5}}\nlowers:\n"
        + "- {name: a, kubeconfig: k}\n- {name: b, kubeconfig: k}\n",
        "lowerDefaults.node.kubeletPort",
        "port 5 of lowers[1] is that of lowers[0] too",
    ),
    Bad(
        "node on the port of telemetry",
        ONE + "  node:\n    kubeletPort: ^9095\n",
        "lowers[0].node.kubeletPort",
        "port 9095 of lowers[0] is that of telemetry.port too",
    ),
    Bad(
        "no port left for the second lower",
        TWO + "kubelet: {port: ^65535}\n",
        "kubelet.port",
        "leaves no port for lowers[1] (kubelet.port + 1)",
    ),
)

CONFIGMAPS = (
    Bad(
        "kubeconfig of the upper in a ConfigMap",
        SECRET + "upper: {kubeconfig: ^u}\n",
        "upper.kubeconfig",
        "a path, and a topology in a ConfigMap has no files beside it; leave it out",
        configmap=True,
    ),
    Bad(
        "kubeconfig of a lower in a ConfigMap",
        ONE.replace("kubeconfigs/a", "^k"),
        "lowers[0].kubeconfig",
        "use kubeconfigSecret",
        configmap=True,
    ),
    Bad(
        "CA in a ConfigMap",
        SECRET + "kubelet: {clientCAFile: ^a}\n",
        "kubelet.clientCAFile",
        "no files beside it",
        configmap=True,
    ),
    Bad(
        "certificate of the kubelet in a ConfigMap",
        SECRET + "kubelet: {tlsCertFile: ^a, tlsKeyFile: b}\n",
        "kubelet.tlsCertFile",
        "a path, and a topology in a ConfigMap has no files",
        alone=False,
        configmap=True,
    ),
    Bad(
        "key of the webhook in a ConfigMap",
        SECRET + "webhook: {tlsCertFile: a, tlsKeyFile: ^b}\n",
        "webhook.tlsKeyFile",
        "a path, and a topology in a ConfigMap has no files",
        alone=False,
        configmap=True,
    ),
    Bad(
        "nothing in a ConfigMap",
        HEAD + "lowers:\n- ^name: a\n",
        "lowers[0].kubeconfig",
        "missing",
        configmap=True,
    ),
)

ALL = (*NAMES, *KUBECONFIGS, *PAIRS, *SETS, *PORTS, *CONFIGMAPS)
