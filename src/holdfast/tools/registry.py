"""The registry: a tool is one typed function with a docstring, and everything else about it is derived.

The first parameter is the `Call` it serves; the others are the tool's parameters. `Annotated[type, "text"]` describes
one to the model. A required string may not be blank. What the function returns is the reply's data.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec

from holdfast.errors import Invalid
from holdfast.model.names import close_to
from holdfast.model.records import check_plain
from holdfast.tools.context import Context


class Param(msgspec.Struct, frozen=True):
    name: str
    type: Any
    required: bool
    default: Any = None
    about: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameter, with every definition in its place."""
        (found,), definitions = msgspec.json.schema_components([self.type], ref_template="{name}")
        schema: dict[str, Any] = _inline(found, definitions)
        if self.about:
            schema["description"] = self.about
        return schema

    @property
    def choices(self) -> str:
        """The values or the fields that it may have, where they are few."""
        schema = self.schema
        parts = schema.get("anyOf", [schema])
        values = [
            value
            for part in parts
            for value in part.get("enum") or part.get("items", {}).get("enum") or part.get("properties") or ()
        ]
        return f" (use {', '.join(map(str, values))})" if values else ""


class Tool(msgspec.Struct, frozen=True):
    """One tool. `agent` is the toolset it belongs to; `enveloped` replies are `{success, data}`."""

    name: str
    agent: str
    function: Callable[..., Any]
    about: str
    params: Mapping[str, Param]
    enveloped: bool = False
    reads: bool = False
    """It changes nothing, so calling it again does no harm."""
    render: Callable[[Any], str] | None = None
    """What the model reads, where that is not the reply as JSON."""
    mirrored: bool = False
    """Is that text the reply once more, in another form?"""
    private: bool = False
    """Is what it is told and tells nobody else's business? Then its traces do not hold it."""
    check: Callable[[Mapping[str, Any]], None] | None = None
    """Looks at the parameters first, where a contract has its own words for what is wrong with them."""

    within: bool = False
    """Does it keep to one scope, so that somebody may call it who is bound to one? No tool does unless it says so."""

    @property
    def harmless(self) -> bool:
        """May somebody call it who may only read? `useTools` itself changes nothing; each tool in it is looked at."""
        return self.reads or self.name == "useTools"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters, without the context."""
        required = [param.name for param in self.params.values() if param.required]
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {param.name: param.schema for param in self.params.values()},
        }
        return schema | ({"required": required} if required else {}) | {"additionalProperties": False}

    def read(self, given: Any) -> dict[str, Any]:
        """Check and convert the parameters of a call; all faults are told at once."""
        if given is None:
            given = {}
        if not isinstance(given, dict):
            raise Invalid(f"{self.name} takes an object of parameters.", self._takes())
        unknown = [str(name) for name in given if name not in self.params]
        if misplaced := [name for name in unknown if name in Context.__struct_fields__]:
            where = ", ".join(f"context.{name}" for name in misplaced)
            raise Invalid(
                f"{self.name} has no parameter {', '.join(misplaced)}: {where} says that.",
                f"Send it inside context; {self._takes()}",
            )
        if unknown:
            hint = close_to(unknown[0], self.params) if len(unknown) == 1 else ""
            raise Invalid(f"{self.name} has no parameter {', '.join(unknown)}.{hint}", self._takes())
        if self.check:
            self.check(given)
        missing = [name for name, param in self.params.items() if param.required and _blank(given.get(name))]
        if missing:
            raise Invalid(f"Missing or blank: {', '.join(missing)}.", self._takes())
        values, faults = {}, []
        for name, value in given.items():
            if value is None and not self.params[name].required:
                continue
            try:
                check_plain(value)
                values[name] = msgspec.convert(value, self.params[name].type, strict=True)
            except msgspec.ValidationError as error:
                faults.append(f"{name}: {error}{self.params[name].choices}")
        if faults:
            raise Invalid("; ".join(faults) + ".", self._takes())
        return values

    def _takes(self) -> str:
        needed = [name for name, param in self.params.items() if param.required]
        rest = [name for name, param in self.params.items() if not param.required]
        if not needed:
            return f"{self.name} takes {', '.join(rest)}." if rest else f"{self.name} takes nothing."
        return f"{self.name} needs {', '.join(needed)}" + (f"; it also takes {', '.join(rest)}" if rest else "") + "."


class Registry:
    """Tools by name, in the order in which they were added."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}

    def add(
        self,
        agent: str,
        *,
        enveloped: bool = False,
        reads: bool = False,
        render: Callable[[Any], str] | None = None,
        mirrored: bool = False,
        private: bool = False,
        check: Callable[[Mapping[str, Any]], None] | None = None,
        within: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make a tool of the function below; its name and docstring are the tool's."""

        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            name = function.__name__
            about = inspect.cleandoc(function.__doc__ or "")
            self.tools[name] = Tool(
                name,
                agent,
                function,
                about,
                _params(function),
                enveloped,
                reads,
                render,
                mirrored,
                private,
                check,
                within,
            )
            return function

        return make

    def agents(self) -> dict[str, list[str]]:
        """Return the tools of each agent."""
        found: dict[str, list[str]] = {}
        for tool in self.tools.values():
            found.setdefault(tool.agent, []).append(tool.name)
        return found


def _params(function: Callable[..., Any]) -> dict[str, Param]:
    hints = typing.get_type_hints(function, include_extras=True)
    params = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        hint, about = hints[name], ""
        if get_origin(hint) is Annotated:
            texts = [extra for extra in get_args(hint)[1:] if isinstance(extra, str)]
            rest = [extra for extra in get_args(hint)[1:] if not isinstance(extra, str)]
            about = texts[0] if texts else ""
            hint = Annotated[get_args(hint)[0], *rest] if rest else get_args(hint)[0]
        required = parameter.default is inspect.Parameter.empty
        params[name] = Param(name, hint, required, None if required else parameter.default, about)
    return params


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _inline(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Put definitions where they are referred to, and leave out what tells a model nothing."""
    if isinstance(schema, list):
        return [_inline(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"]], definitions)
    result = {name: _inline(part, definitions) for name, part in schema.items() if name not in ("title", "default")}
    options = result.get("anyOf")
    if options and {"type": "null"} in options:
        left = [option for option in options if option != {"type": "null"}]
        result = left[0] if len(left) == 1 else {"anyOf": left}
    return result
