"""What there is to say about the keys of a pydantic model: type, unit, default, and a sentence.

The sentence stands where the model says it: in the field's ``description``, in the text right
behind the field, or in the section "Attributes" of the class. A field that says nothing is refused,
so that a reference cannot have a gap.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from hwmodel.units import unit_of


class Key(NamedTuple):
    """A key that a user may write.

    Attributes
    ----------
    name
        As it is written.
    kind
        What its value may be, in words.
    unit
        Unit of a number; empty for counts, ratios and texts.
    default
        As TOML writes it; None where the key must be given.
    says
        What it is.
    """

    name: str
    kind: str
    unit: str
    default: str | None
    says: str


def keys_of(model: type[BaseModel], *, leave_out: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key of a model, in its order.

    Raises
    ------
    ValueError
        If a field has no sentence.
    """
    said = sentences(model)
    for name, field in model.model_fields.items():
        if name in leave_out:
            continue
        if not said.get(name):
            message = f"{model.__module__}.{model.__name__}.{name} is not described"
            raise ValueError(message)
        default = None if field.is_required() else _default(field)
        yield Key(field.alias or name, kind_of(field), unit_of(name), default, said[name])


def sentences(model: type[BaseModel]) -> Mapping[str, str]:
    """What a model says about each of its fields."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            found |= _behind_fields(one)
            found |= _of_section(inspect.getdoc(one) or "")
    found |= {name: one.description for name, one in model.model_fields.items() if one.description}
    return found


@cache
def _behind_fields(model: type[BaseModel]) -> dict[str, str]:
    """Texts that stand right behind fields in the source of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    return behind(body.body)


def behind(body: Iterable[ast.stmt]) -> dict[str, str]:
    """Texts that stand right behind names to which something is assigned, by name."""
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(body):
        targets: list[ast.expr] = []
        if isinstance(field, ast.AnnAssign):
            targets = [field.target]
        elif isinstance(field, ast.Assign):
            targets = field.targets
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            says = inspect.cleandoc(str(text.value.value))
            found |= {one.id: says for one in targets if isinstance(one, ast.Name)}
    return found


def _of_section(docstring: str) -> dict[str, str]:
    """Entries of the section "Attributes"; one entry may be about several fields."""
    _, _, section = docstring.partition("\nAttributes\n----------\n")
    section = re.split(r"\n\S+\n-{3,}\n", section)[0]
    found = {}
    for match in re.finditer(r"^(\S.*)\n((?:[ \t]+.*\n?|\n)+)", section + "\n", re.MULTILINE):
        for name in match[1].split(","):
            found[name.strip()] = " ".join(match[2].split())
    return found


def _default(field: FieldInfo) -> str:
    """A default as TOML writes it; a dash where there is no value."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "the defaults of its keys"
    return toml(value)


def toml(value: Any) -> str:
    """Write a plain value as TOML does; None has no form there."""
    if value is None:
        return "not given"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(toml(one) for one in value)}]"
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    return str(value)


def kind_of(field: FieldInfo) -> str:
    """What a field's value may be, in words, from the model's own schema."""
    annotation: Any = field.annotation
    for one in field.metadata:
        annotation = _annotated(annotation, one)
    schema = TypeAdapter(annotation).json_schema(mode="validation")
    return worded(schema, schema.get("$defs", {}))


def _annotated(annotation: Any, metadata: Any) -> Any:
    from typing import Annotated

    return Annotated[annotation, metadata]


def worded(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> str:
    """Put a JSON schema in words, such as "a whole number, at least 1".

    Parameters
    ----------
    schema
        Of a value.
    defined
        Schemas that it refers to, by name.
    """
    if "$ref" in schema:
        target = defined[schema["$ref"].rpartition("/")[2]]
        return worded(target, defined)
    if "const" in schema:
        return _word(schema["const"])
    if "enum" in schema:
        return " or ".join(_word(one) for one in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            kinds = [one for one in schema[several] if one.get("type") != "null"]
            return "; or ".join(dict.fromkeys(worded(one, defined) for one in kinds))
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _number(schema, "a whole number" if kind == "integer" else "a number")
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        return _list(schema, defined)
    if kind == "object":
        return _table(schema, defined)
    if kind == "string":
        pattern = schema.get("pattern")
        return f"text of the form `{pattern}`" if pattern else "text"
    return "any value"


def _word(value: Any) -> str:
    return f"`{toml(value)}`"


def _number(schema: Mapping[str, Any], kind: str) -> str:
    bounds = []
    for key, words in (
        ("minimum", "at least"),
        ("exclusiveMinimum", "more than"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "less than"),
    ):
        if key in schema:
            bounds.append(f"{words} {_plain(schema[key])}")
    return ", ".join([kind, *([" and ".join(bounds)] if bounds else [])])


def _plain(value: float) -> str:
    if isinstance(value, int) or float(value).is_integer():
        whole = int(value)
        power = whole.bit_length() - 1
        return f"2^{power}" if whole > 10_000 and whole == 1 << power else f"{whole:,}"
    return f"{value:g}"


def _list(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> str:
    least, most = schema.get("minItems"), schema.get("maxItems")
    size = f"{least} " if least is not None and least == most else ""
    items = schema.get("items", {})
    what = worded(items, defined) if items else "any values"
    plural = {"text": "texts", "any value": "any values"}.get(what, what)
    plural = re.sub(r"^(?:a|an) (whole number|number|table|list)", r"\1s", plural)
    more = " (one at least)" if least == 1 and most != 1 else ""
    return f"a list of {size}{plural}{more}"


def _table(schema: Mapping[str, Any], defined: Mapping[str, Any]) -> str:
    if "properties" in schema:
        if "confidence" in schema["properties"]:  # of a number with its source, the number
            return worded(schema["properties"]["value"], defined)
        return f"a table with {', '.join(f'`{name}`' for name in schema['properties'])}"
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values:
        return f"a table of {worded(values, defined)} by name"
    return "a table"
