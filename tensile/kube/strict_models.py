"""Strict pydantic models for kubeconfigs and plugin output: shared field types, and errors for users.

Errors contain positions and the keys that Kubernetes defines, never a value: it may be a secret.
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
    "json_invalid": ("is not JSON", "correct it"),
    "wrong": ("{what}", "{advice}"),
}
_OTHER = ("is not valid", "correct it")


class KubeconfigSection(Strict):
    """A part of a kubeconfig, or of a plugin's output. It may contain a secret, so its repr() is empty."""

    def __repr_args__(self) -> list[tuple[str, Any]]:
        """Return nothing."""
        return []


_S = TypeVar("_S", bound=KubeconfigSection)


def wrong(what: str, advice: str) -> PydanticCustomError:
    """Return the error of a custom check."""
    return PydanticCustomError("wrong", "{what}", {"what": what, "advice": advice})


def demanding(holds: Callable[[Any], object], what: str, advice: str) -> Callable[[Any], Any]:
    """Return a validator that passes values for which `holds`, and raises the error for others."""

    def checked(value: Any) -> Any:
        if not holds(value):
            raise wrong(what, advice)
        return value

    return checked


def is_token(token: str) -> bool:
    """Report whether a text is safe in a request's header: a line break could begin another header."""
    return _TOKEN.fullmatch(token) is not None


_IS_TOKEN = demanding(
    is_token, f"is not one line of at most {LONGEST_TOKEN} visible characters", "write only the token"
)
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""A text. Null equals absent."""
Name = Annotated[str, StringConstraints(min_length=1)]
Token = Annotated[Text, AfterValidator(str.strip), AfterValidator(_IS_TOKEN)]


def read(section: type[_S], values: Any, where: str, context: object = None) -> _S:
    """Return the section with these values. `where` names its place in the AccessError."""
    try:
        return section.model_validate(values, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        what, advice = validation_message(section, error)
        raise AccessError(f"{where}: {what}", advice) from None


def validation_message(section: type[KubeconfigSection], error: ValidationError) -> tuple[str, str]:
    """Return what is wrong with a section, and what to do. Of several errors it is the first.

    A missing key is explained by the description of its field.
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
