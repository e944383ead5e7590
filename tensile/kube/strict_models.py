"""What the sections of a kubeconfig and a plugin's answer have in common: sorts of values, and errors in our words.

The words give the place and the keys that Kubernetes has there, never a value: it may be a secret.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from tensile.errors import AccessError
from tensile.text import key_shown
from tensile.topology.messages import fields_at
from tensile.topology.models import Section as Strict
from tensile.yaml_document import show_path

LONGEST_TOKEN = 1 << 15
_TOKEN = re.compile(rf"[\x21-\x7e]{{0,{LONGEST_TOKEN}}}")
_WORDS = {
    "extra_forbidden": ("is not known", "remove it, or correct its spelling"),
    "missing": ("is missing", "add it"),
    "string_type": ("must be text", "put it in quotes"),
    "string_too_short": ("is empty", "write a name"),
    "bool_type": ("must be true or false", "write it without quotes"),
    "tuple_type": ("must be a list", "write one line with - for each"),
    "model_type": ("must be a mapping", "write its keys below it"),
    "literal_error": ("must be {expected}", "correct it"),
    "json_invalid": ("no JSON", "correct it"),
    "wrong": ("{what}", "{advice}"),
}
_OTHER = ("is not understood", "correct it")


class Section(Strict):
    """A part of a kubeconfig, or of what a plugin printed; it may hold a secret, so its repr() is empty."""

    def __repr_args__(self) -> list[tuple[str, Any]]:
        """Return nothing."""
        return []


_S = TypeVar("_S", bound=Section)


def wrong(what: str, advice: str) -> PydanticCustomError:
    """Return the error of a check of our own."""
    return PydanticCustomError("wrong", "{what}", {"what": what, "advice": advice})


def demanding(holds: Callable[[Any], object], what: str, advice: str) -> Callable[[Any], Any]:
    """Return what passes on a value for which something holds, and says of any other what is wrong."""

    def checked(value: Any) -> Any:
        if not holds(value):
            raise wrong(what, advice)
        return value

    return checked


def is_token(token: str) -> bool:
    """Report whether a text may stand in a request's header as it is: what else may follow a line break there."""
    return _TOKEN.fullmatch(token) is not None


_IS_TOKEN = demanding(is_token, f"is not one line of at most {LONGEST_TOKEN} visible characters", "give it bare")
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""A text; null is as good as absent."""
Name = Annotated[str, StringConstraints(min_length=1)]
Token = Annotated[Text, AfterValidator(str.strip), AfterValidator(_IS_TOKEN)]


def read(section: type[_S], values: Any, where: str, context: object = None) -> _S:
    """Return the section that `values` are; `where` says in the AccessError where it stands."""
    try:
        return section.model_validate(values, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        what, advice = told(section, error)
        raise AccessError(f"{where}: {what}", advice) from None


def told(section: type[Section], error: ValidationError) -> tuple[str, str]:
    """Return what is wrong with a section, and what to do: of several errors the first.

    What is missing is described by its field.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    path, place = first["loc"], show_path(first["loc"])
    known = fields_at(section, path[:-1])
    if first["type"] == "extra_forbidden":
        place = f"{show_path(path[:-1])}.{key_shown(path[-1], known)}"
    what, advice = (words.format_map(first.get("ctx", {})) for words in _WORDS.get(first["type"], _OTHER))
    if first["type"] == "missing":
        advice = known[str(path[-1])].description or advice
    return f"{place} {what}".removeprefix("(file)").lstrip(" ."), advice
