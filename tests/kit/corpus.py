"""Every kind of bad topology file: those of bad_files.yaml, and those that are bad because of their size."""

from pathlib import Path

import yaml
from corpus_form import EMPTY, HEAD, ONE, Bad

_STARTS = {"HEAD": HEAD, "EMPTY": EMPTY, "ONE": ONE}
_CHAIN = "".join(f"x{level}: &x{level} {{y: *x{level - 1}}}\n" for level in range(1, 31))

LARGE = (
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
        "levels by aliases",
        EMPTY + "x0: &x0 {y: z}\n" + _CHAIN.replace("*x29", "^*x29"),
        "x30.y",
        "nested deeper than 32 levels",
    ),
    Bad("101 aliases", EMPTY + "x: &x v\ny: [" + "*x, " * 100 + "^*x]\n", "y[100]", "more than 100 aliases"),
    Bad("2 MiB", "^#" + " " * (2 << 20), "(file)", "larger than 1048576 bytes"),
    Bad("long key", EMPTY + "^" + "k" * 500 + ": 1\n", '["' + "k" * 60 + '..."]', "unknown key"),
    Bad(
        "path too long",
        EMPTY + "kubelet:\n  clientCAFile: ^" + "a" * 5000 + "\n",
        "kubelet.clientCAFile",
        "must be a file path",
    ),
    Bad(
        "33 windows",
        EMPTY + "^windows:\n" + "- {schedule: 0 2 * * *, duration: 4h}\n" * 33,
        "windows",
        "has 33 entries; must have at most 32",
    ),
    Bad(
        "33 windows that are not read one by one",
        EMPTY + "windows: ^[" + "{schedule: 0 0 30 2 *}, " * 33 + "]\n",
        "windows",
        "has 33 entries; must have at most 32",
    ),
    Bad(
        "annotations larger than Kubernetes takes",
        ONE + "  node:\n    ^annotations:\n      a: " + "x" * 262_144 + "\n",
        "lowers[0].node.annotations",
        "262145 bytes in total; Kubernetes allows 262144",
    ),
)


def _of_file() -> tuple[Bad, ...]:
    """Return the cases of bad_files.yaml."""
    found = yaml.safe_load(Path(__file__).with_name("bad_files.yaml").read_text(encoding="utf-8"))
    return tuple(Bad(marked=_STARTS.get(case.pop("after", ""), "") + case.pop("file"), **case) for case in found)


ALL = (*_of_file(), *LARGE)
