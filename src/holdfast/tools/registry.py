"""The registry: a tool is one typed function with a docstring; everything else about it is derived.

The first parameter of the function is the `Call` it serves, the others are the parameters of the tool.
`Annotated[type, "text"]` describes a parameter to the model. The function returns the data of the reply.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec

_UNSAID: tuple[Any, ...] = (None, "", [], {})
"""Defaults that a schema does not name: they mean that nothing was given."""


class Param(msgspec.Struct, frozen=True):
    name: str
    type: Any
    required: bool
    """A required string may not be blank, unless the tool allows it."""
    default: Any = None
    about: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameter, with all definitions inlined."""
        (found,), definitions = msgspec.json.schema_components([self.type], ref_template="{name}")
        schema: dict[str, Any] = _inline(found, definitions)
        schema |= {"description": self.about} if self.about else {}
        return schema | ({} if self.default in _UNSAID else {"default": self.default})

    @property
    def choices(self) -> str:
        """The allowed values, or the names of its fields, as a hint in an error."""
        schema = self.schema
        values = [
            value
            for part in schema.get("anyOf", [schema])
            for value in part.get("enum") or part.get("items", {}).get("enum") or part.get("properties") or ()
        ]
        return f" (use {', '.join(map(str, values))})" if values else ""


class Tool(msgspec.Struct, frozen=True):
    name: str
    agent: str
    """The toolset it belongs to."""
    function: Callable[..., Any]
    about: str
    params: Mapping[str, Param]
    types: Any
    """The parameters as a `TypedDict`, to convert them all at once."""
    enveloped: bool = False
    """Replies are `{success, data}`."""
    reads: bool = False
    """It changes nothing, so it can be called again."""
    render: Callable[[Any], str] | None = None
    """Makes the text for the model; without it the model reads the reply as JSON."""
    mirrored: bool = False
    """The text is the same data as the reply."""
    private: bool = False
    """Its traces are not searched and have no results; of notes of a run they have no parameters either."""
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Checks the parameters first, where a contract has its own error texts."""
    blank: tuple[str, ...] = ()
    """Required strings that may be blank."""
    within: bool = False
    """It stays in one scope, so a token that is bound to a scope may call it."""

    @property
    def harmless(self) -> bool:
        """May a caller use it who may only read? The calls inside `useTools` are checked one by one."""
        return self.reads or self.name == "useTools"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters, without the context."""
        required = [param.name for param in self.params.values() if param.required]
        schema = {"type": "object", "properties": {param.name: param.schema for param in self.params.values()}}
        return schema | ({"required": required} if required else {}) | {"additionalProperties": False}

    @property
    def takes(self) -> str:
        """A sentence that lists the parameters."""
        needed = ", ".join(name for name, param in self.params.items() if param.required)
        rest = ", ".join(name for name, param in self.params.items() if not param.required)
        if not needed:
            return f"{self.name} takes {rest or 'nothing'}."
        return f"{self.name} needs {needed}" + (f"; it also takes {rest}" if rest else "") + "."


class Registry:
    """Tools by name, in the order in which they were added."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}

    def add(self, agent: str, function: Callable[..., Any], **options: Any) -> None:
        """Make a function a tool of an agent; `options` are the other fields of `Tool`."""
        name, params = function.__name__, dict[str, Param]()
        hints = typing.get_type_hints(function, include_extras=True)
        for each, parameter in list(inspect.signature(function).parameters.items())[1:]:
            hint, about = hints[each], ""
            if get_origin(hint) is Annotated:
                inner, *extras = get_args(hint)
                about = next((extra for extra in extras if isinstance(extra, str)), "")
                rest = [extra for extra in extras if not isinstance(extra, str)]
                hint = Annotated[inner, *rest] if rest else inner
            required = parameter.default is inspect.Parameter.empty
            params[each] = Param(each, hint, required, None if required else parameter.default, about)
        types = typing.TypedDict(name, {each: param.type for each, param in params.items()}, total=False)  # type: ignore[misc]
        about = inspect.cleandoc(function.__doc__ or "")
        self.tools[name] = Tool(name, agent, function, about, params, types, **options)

    def agents(self) -> dict[str, list[str]]:
        """Return the tools of each agent."""
        found: dict[str, list[str]] = {}
        for tool in self.tools.values():
            found.setdefault(tool.agent, []).append(tool.name)
        return found


def _inline(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Replace references by their definitions, and drop titles, empty defaults and null, which do not help a model."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"]], definitions)
    result = {
        name: _inline(part, definitions)
        for name, part in schema.items()
        if name != "title" and (name != "default" or part not in _UNSAID)
    }
    options = result.get("anyOf")
    if options and {"type": "null"} in options:
        left = [option for option in options if option != {"type": "null"}]
        result = left[0] if len(left) == 1 else {"anyOf": left}
    return result
