"""Files that are no YAML, or YAML that nobody means: syntax, bombs, keys twice, tags, characters."""

from corpus_form import EMPTY, HEAD, ONE, Bad

_BOMB = "".join(
    f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 9 if level else ['lol'] * 9)}]\n" for level in range(4)
)
_CHAIN = "".join(f"x{level}: &x{level} {{y: *x{level - 1}}}\n" for level in range(1, 31))

SYNTAX = (
    Bad("empty text", "^", "(file)", "empty; a topology starts with apiVersion"),
    Bad("only a comment", "^# nothing\n", "(file)", "empty"),
    Bad("only a document mark", "^---\n", "(file)", "empty"),
    Bad("null document", "^~\n", "(file)", "empty"),
    Bad("a scalar", "^topology\n", "(file)", "no mapping"),
    Bad("a list", "^- a\n- b\n", "(file)", "no mapping"),
    Bad("a number", "^42\n", "(file)", "no mapping"),
    Bad(
        "unclosed bracket",
        EMPTY + "controllers: ^[PV, Service\nonConflict: fail\n",
        "controllers",
        "a bracket that is not closed",
    ),
    Bad(
        "unclosed brace",
        HEAD + "lowers:\n- ^{name: a, kubeconfig: k\n- {name: b, kubeconfig: k}\n",
        "lowers[0]",
        "a bracket that is not closed",
    ),
    Bad(
        "unclosed brace in a field",
        ONE + "  capacity: ^{reserve: {cpu: '2'}\n",
        "lowers[0].capacity",
        "a bracket that is not closed",
    ),
    Bad("bracket too many", EMPTY + "controllers: [PV]^]\n", "(file)", "or a bracket or quote too many"),
    Bad("closing bracket first", EMPTY + "controllers: ^]\n", "controllers", "was not opened"),
    Bad(
        "unclosed double quotes",
        HEAD + 'lowers: []\nonConflict: ^"fail\nkubelet: {}\n',
        "onConflict",
        "quotes that are not closed",
    ),
    Bad("unclosed single quotes", HEAD + "upper: {context: ^'x}\n", "upper.context", "quotes"),
    Bad(
        "document mark inside quotes",
        HEAD + "lowers: []\nonConflict: ^'fa\n---\nil'\n",
        "onConflict",
        "quotes that are not closed",
    ),
    Bad("unknown escape", EMPTY + 'upper: {context: "a^\\qb"}\n', "upper.context", "two backslashes"),
    Bad("tab as indentation", EMPTY + "kubelet:\n^\tport: 1\n", "kubelet", "indent with spaces"),
    Bad("tab before the first key", "^\tapiVersion: x\n", "(file)", "indent with spaces"),
    Bad("two colons in a line", EMPTY + "onConflict: fail^: 1\n", "(file)", "no key can be"),
    Bad(
        "key without colon",
        EMPTY + "kubelet:\n  bind: 0.0.0.0\n  ^port\n  nodeAddress: null\n",
        "kubelet",
        'a key without its ":"',
    ),
    Bad(
        "indented under a value",
        EMPTY + "onConflict: fail\n  port^: 1\n",
        "(file)",
        "wrong indentation",
    ),
    Bad(
        "dedent to no level",
        EMPTY + "kubelet:\n    bind: 0.0.0.0\n  ^port: 1\n",
        "(file)",
        "indentation that fits no line above",
    ),
    Bad("list item beside a key", EMPTY + "controllers: ^- PV\n", "controllers", "line of its own"),
    Bad(
        "key at the level of list items",
        HEAD + "lowers:\n  - name: a\n    kubeconfig: k\n  ^node: {}\n",
        "lowers[1]",
        'must start with "- "',
    ),
    Bad("starts with at", EMPTY + "onConflict: ^@fail\n", "onConflict", "put the text in quotes"),
    Bad("starts with backtick", EMPTY + "onConflict: ^`fail`\n", "onConflict", "in quotes"),
    Bad("starts with percent", EMPTY + "onConflict: ^%fail\n", "onConflict", "in quotes"),
    Bad("anchor without name", EMPTY + "onConflict: &^ fail\n", "onConflict", "in quotes"),
    Bad("alias without name", EMPTY + "onConflict: *^\n", "onConflict", "in quotes"),
    Bad("glob as value", EMPTY + "onConflict: *^.yaml\n", "onConflict", "in quotes"),
    Bad("second document", EMPTY + "^---\nkind: Topology\n", "(file)", "a second document"),
    Bad("empty second document", EMPTY + "^---\n", "(file)", "a second document"),
    Bad("text after the end", EMPTY + "...\n^x\n", "(file)", "something follows the document"),
    Bad("unknown directive", "%FOO^\n---\n" + EMPTY, "(file)", "unknown directive name"),
    Bad("YAML 1.1 asked for", "^%YAML 1.1\n---\n" + EMPTY, "(file)", "an old version of YAML"),
    Bad("YAML 2", "^%YAML 2.0\n---\n" + EMPTY, "(file)", "not valid YAML"),
    Bad("unknown tag handle", EMPTY + "onConflict: ^!x!y fail\n", "onConflict", "tag handle"),
)

MEANING = (
    Bad("key twice", EMPTY + "onConflict: fail\n^onConflict: adopt\n", "onConflict", "(first in line 5)"),
    Bad(
        "key twice in flow",
        EMPTY + "kubelet: {port: 1, ^port: 2}\n",
        "kubelet.port",
        "the same key twice (first in line 5)",
    ),
    Bad("key twice, quoted", EMPTY + '^"lowers": []\n', "lowers", "(first in line 4)"),
    Bad(
        "key twice in a lower",
        ONE + "  ^name: b\n",
        "lowers[0].name",
        "the same key twice (first in line 5)",
    ),
    Bad(
        "label key twice",
        ONE + "  node:\n    labels:\n      a: b\n      ^a: c\n",
        "lowers[0].node.labels.a",
        "the same key twice (first in line 9)",
    ),
    Bad("merge key", ONE + "  ^<<: {qps: 1}\n", 'lowers[0]["<<"]', "lowerDefaults"),
    Bad(
        "merge of an alias",
        HEAD + "lowers:\n- &a {name: a, kubeconfig: k}\n- ^<<: *a\n  name: b\n  kubeconfig: k\n",
        'lowers[1]["<<"]',
        "a merge key",
    ),
    Bad("number as key", ONE + "  node: {labels: {^1: a}}\n", 'lowers[0].node.labels["1"]', "not text"),
    Bad("truth as key", ONE + "  node: {labels: {^true: a}}\n", "lowers[0].node.labels.true", "not text"),
    Bad("null as key", EMPTY + "^~: a\n", '["~"]', "not text", alone=False),
    Bad("list as key", EMPTY + "? ^[a]\n: b\n", "(file)", "a key that is not text"),
    Bad("template as value", EMPTY + "onConflict: {^{ .Values.x }}\n", "onConflict", "template", alone=False),
    Bad("alias as key", EMPTY + "kubelet: &a {}\n? ^*a\n: b\n", "(file)", "a key that is not text"),
    Bad("tag of a program", EMPTY + "onConflict: ^!!python/name:os.system x\n", "onConflict", "a tag", alone=False),
    Bad("tag of one's own", EMPTY + "onConflict: ^!env fail\n", "onConflict", "a tag; remove it"),
    Bad("tag of text", HEAD + "lowers: []\nonConflict: ^!!str fail\n", "onConflict", "a tag; remove it"),
    Bad("tag on a mapping", EMPTY + "kubelet: ^!!map {}\n", "kubelet", "a tag; remove it"),
    Bad("unknown alias", EMPTY + "onConflict: ^*fail\n", "onConflict", "the alias *fail has no anchor"),
    Bad("alias of itself", EMPTY + "controllers: &a [^*a]\n", "controllers[0]", "inside its own anchor"),
    Bad("NUL", EMPTY + "onConflict: fa^\0il\n", "(file)", "the character U+0000 cannot stand here"),
    Bad("escape character", EMPTY + "# ^\x1b[31m\n", "(file)", "U+001B"),
    Bad("C1 control", EMPTY + "# ^\x9b\n", "(file)", "U+009B"),
    Bad("line separator", EMPTY + "upper: {context: a^\u2028b}\n", "(file)", "U+2028"),
    Bad("byte order mark inside", EMPTY + "^\ufeffkubelet: {}\n", "(file)", "U+FEFF"),
    Bad("half a surrogate pair", EMPTY + "upper: {context: ^\ud83d}\n", "(file)", "U+D83D"),
)

BOMBS = (
    Bad("30,000 brackets", "[" * 32 + "^" + "[" * 30_000, "[0]" * 32, "nested deeper than 32 levels"),
    Bad("30,000 braces", "{a: " * 31 + "{^a: " + "{a: " * 30_000, ".".join("a" * 31), "nested deeper"),
    Bad("30,000 dashes", "- " * 32 + "^" + "- " * 30_000, "[0]" * 32, "nested deeper than 32 levels"),
    Bad(
        "90,000 keys",
        HEAD + "".join(f"k{n}: {'^' if n == 997 else ''}v\n" for n in range(90_000)),
        "k997",
        "more than 1000 entries",
    ),
    Bad(
        "60,000 values",
        EMPTY + "x:\n" + "".join(f"- [{'v, ' * 6}{'^' if n == 161 else ''}{'v, ' * 55}]\n" for n in range(1000)),
        "x[161][6]",
        "more than 10000 values",
    ),
    Bad(
        "a billion laughs",
        EMPTY + _BOMB + "x4: [^" + "*x3, " * 9 + "]\n",
        "x4[0]",
        "more than 10000 values (aliases followed)",
    ),
    Bad(
        "levels by aliases",
        EMPTY + "x0: &x0 {y: z}\n" + _CHAIN.replace("*x29", "^*x29"),
        "x30.y",
        "nested deeper than 32 levels",
    ),
    Bad(
        "101 aliases",
        EMPTY + "x: &x v\ny: [" + "*x, " * 100 + "^*x]\n",
        "y[100]",
        "more than 100 aliases",
    ),
    Bad("2 MiB", "^#" + " " * (2 << 20), "(file)", "larger than 1048576 bytes"),
)

ALL = (*SYNTAX, *MEANING, *BOMBS)
