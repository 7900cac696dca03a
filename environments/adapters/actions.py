"""Parses an action's text into a client's argument of `step`: JSON for the fields of its action class, or text."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from alignopsd_trl.environments.adapters.types import of_schema, shown_type

WAIT = 10.0  # seconds for a server to say what its actions are


class ActionRefused(ValueError):
    """Raised for an action of another form than the environment requires. The policy sees the message."""


@dataclass(frozen=True)
class ActionForm:
    """The form in which actions are written.

    Args:
        kind (`type`, *optional*): the client's action class; `None`: a dict.
        fields (`Mapping[str, tuple[type, bool, str]]`): type, whether it is required, and description of each; none
            if the server does not say.
        act (`Callable[[str], Any]`, *optional*): the user's own function, in place of all this.
    """

    kind: type | None
    fields: Mapping[str, tuple[Any, bool, str]]
    act: Callable[[str], Any] | None = None

    @classmethod
    def of(cls, client: Any, act: Callable[[str], Any] | None) -> ActionForm:
        """That of the client's action class, else what its server says that actions are."""
        if act is not None:
            return cls(None, {}, act)
        kind = action_class(client)
        return cls(kind, declared_fields(_served(client)) if kind is None else _fields(kind))

    @property
    def _alone(self) -> str | None:
        """The one required field, which plain text fills."""
        required = [name for name, (_, needed, _) in self.fields.items() if needed]
        return required[0] if len(required) == 1 else None

    @property
    def described(self) -> str:
        """Returns the form in words for the prompt; empty for a function of the user's."""
        if self.act is not None:
            return ""
        if not self.fields:
            return "The action is a JSON object."
        if self._alone is not None and len(self.fields) == 1:
            return f"The action is its {_named(self._alone, *self.fields[self._alone])} as plain text."
        shown = ", ".join(_named(name, *facts) for name, facts in self.fields.items())
        return f"The action is a JSON object with {shown}."

    def read(self, text: str) -> Any:
        """Returns the argument of `step`.

        Raises:
            ActionRefused: says what is wrong with the text.
        """
        try:
            if self.act is not None:
                return self.act(text)
            content = self._content(text)
            return content if self.kind is None else self.kind(**content)
        except Exception as error:  # of the user's function or of the client's class
            raise ActionRefused(str(error)) from error

    def _content(self, text: str) -> dict[str, Any]:
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if isinstance(content, dict):
            return content
        if self._alone is None:
            raise ValueError(f"{text!r:.80} is no JSON object. {self.described}")
        kind = self.fields[self._alone][0]
        return {self._alone: text if kind is str or content is None else content}


def action_class(client: Any) -> type | None:
    """Returns a client's action class, its first type argument (``EnvClient[Action, Observation, State]``)."""
    for holder in (client, getattr(client, "async_client", None)):
        for kind in type(holder).__mro__:
            for base in getattr(kind, "__orig_bases__", ()):
                first = next(iter(typing.get_args(base)), None)
                if isinstance(first, type) and not issubclass(first, dict):
                    return first
    return None


def _fields(kind: Any) -> dict[str, tuple[Any, bool, str]]:
    """Returns the fields of a pydantic class or a dataclass, without ``metadata``."""
    if hasattr(kind, "model_fields"):
        fields = {n: (f.annotation, f.is_required(), f.description or "") for n, f in kind.model_fields.items()}
    elif dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        missing = dataclasses.MISSING
        fields = {
            field.name: (hints[field.name], field.default is missing and field.default_factory is missing, "")
            for field in dataclasses.fields(kind)
        }
    else:
        fields = {}
    return {name: facts for name, facts in fields.items() if name != "metadata"}


def _served(client: Any) -> Mapping[str, Any]:
    """The JSON schema of actions at the client's server; empty where that has none."""
    address = getattr(client, "base_url", None) or getattr(client, "_ws_url", None)
    if not isinstance(address, str):
        return {}
    address = re.sub("^ws", "http", address).removesuffix("/ws")
    try:
        with urlopen(f"{address}/schema", timeout=WAIT) as answer:
            return json.load(answer).get("action") or {}
    except HTTPError:  # older servers have no such page, others refuse it
        return {}


def declared_fields(schema: Mapping[str, Any]) -> dict[str, tuple[Any, bool, str]]:
    """As `_fields`, of a JSON schema."""
    named, needed = schema.get("$defs") or {}, schema.get("required") or ()
    properties = schema.get("properties") or {}
    return {
        name: (of_schema(content, named), name in needed, content.get("description") or "")
        for name, content in properties.items()
        if name != "metadata"
    }


def _named(name: str, kind: Any, needed: bool, description: str) -> str:
    return f'"{name}" ({shown_type(kind)}{"" if needed else ", optional"}{": " + description if description else ""})'
