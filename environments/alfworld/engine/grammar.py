"""Fills a game's texts from its own grammar, without parsing the grammar again at every step.

TextWorld's grammar is a context-sensitive one: a rule has alternatives with conditions over the facts, and its right
side holds queries over the facts. TextWorld parses rules, conditions and queries again each time that they are used.
Here each text is parsed once (by TextWorld's parsers) and evaluated on a plain set of facts. The evaluation follows
`textworld.envs.pddl.textgen` and `textworld.logic.State.all_assignments`: first applicable alternative, answers in the
order of the sorted facts, distinct placeholders never on the same entity.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

Fact = tuple[str, ...]
Key = tuple[str, str]  # a placeholder: name and type

_GOAL = re.compile(r'("Your task is to: )([A-Za-z0-9 ,.\'-]*)(")')
_PLACEHOLDER = "THE GOAL"


class World:
    """The state that texts describe: entities and the facts that hold now.

    Attributes:
        entities: id -> TextWorld's `EntityInfo`.
        types: id -> PDDL type.
        facts: predicate -> tuples of ids. Effects add ``not_<predicate>`` facts; initial facts are positive only.
    """

    def __init__(self, entities: Mapping[str, Any], types: Mapping[str, str], facts: Iterable[Fact]):
        self.entities, self.types = entities, types
        self.facts: dict[str, set[Fact]] = {}
        for fact in facts:
            self.facts.setdefault(fact[0], set()).add(fact[1:])

    def apply(self, predicate: str, arguments: Fact) -> None:
        """Makes a literal true: adds its fact, and removes that of its negation."""
        opposite = predicate[4:] if predicate.startswith("not_") else f"not_{predicate}"
        self.facts.get(opposite, set()).discard(arguments)
        self.facts.setdefault(predicate, set()).add(arguments)

    def answers(self, query: Query, mapping: Mapping[Key, str], depth: int = 0) -> Iterator[dict[Key, str]]:
        """Yields all ways to make every literal of a query true, on top of ``mapping``."""
        if depth == len(query):
            yield dict(mapping)
            return
        predicate, placeholders = query[depth]
        for arguments in sorted(self.facts.get(predicate, ())):
            extended = self._match(placeholders, arguments, mapping)
            if extended is not None:
                yield from self.answers(query, extended, depth + 1)

    def _match(self, placeholders: tuple[Key, ...], arguments: Fact, mapping: Mapping[Key, str]) -> dict | None:
        extended = dict(mapping)
        used = set(mapping.values())
        for key, entity in zip(placeholders, arguments, strict=True):
            bound = extended.get(key)
            if bound is None:
                if entity in used or key[1] not in (self.types[entity], "object"):
                    return None
                extended[key] = entity
                used.add(entity)
            elif bound != entity:
                return None
        return extended


Query = tuple[tuple[str, tuple[Key, ...]], ...]


class Grammar:
    """Texts and command templates of a game's grammar.

    Args:
        text: a game's ``grammar``, in TextWorld's ``twl2`` format.

    Raises:
        ValueError: if the text does not parse.
    """

    def __init__(self, text: str):
        match = _GOAL.findall(text)
        self._goal = match[0][1] if len(match) == 1 else ""
        text = _GOAL.sub(rf"\g<1>{_PLACEHOLDER}\g<3>", text) if self._goal else text
        self._rules, self._templates, self._feedback = _parse(text)

    def opening(self, world: World) -> str:
        """Returns the first observation."""
        return self._expand("intro", world, {}).replace(_PLACEHOLDER, self._goal)

    def feedback(self, action: str, mapping: Mapping[Key, str], world: World) -> str:
        """Returns the answer to an action that has just been applied."""
        return self._render(self._feedback[action], world, mapping)

    def command(self, action: str, mapping: Mapping[Key, str], world: World) -> str:
        """Returns an action as a player types it."""
        return self._render(self._templates[action], world, mapping)

    def _expand(self, symbol: str, world: World, mapping: Mapping[Key, str]) -> str:
        for condition, symbols in self._rules.get(symbol, ()):
            if not condition or next(world.answers(_query(condition), mapping), None) is not None:
                return self._render(symbols, world, mapping)
        raise ValueError(f"the game's grammar has no applicable rule for #{symbol}#")

    def _render(self, symbols: Iterable[Any], world: World, mapping: Mapping[Key, str]) -> str:
        return "".join(self._symbol(symbol, world, mapping) for symbol in symbols)

    def _symbol(self, symbol: Any, world: World, mapping: Mapping[Key, str]) -> str:
        match type(symbol).__name__:
            case "TerminalSymbol":
                return str(symbol.symbol)
            case "NonterminalSymbol":
                return self._expand(symbol.symbol, world, mapping)
            case "EvalSymbol":
                names = {key[0]: world.entities[entity] for key, entity in mapping.items()}
                return str(_value(_expression(symbol.expression), names))
            case "ConditionalSymbol":
                return "".join(self._instances(symbol, world, mapping))
            case "ListSymbol":
                return self._list(self._instances(symbol.symbol, world, mapping), world, mapping)
            case kind:
                raise ValueError(f"the game's grammar has an unknown kind of symbol, {kind}")

    def _instances(self, symbol: Any, world: World, mapping: Mapping[Key, str]) -> list[str]:
        mappings = world.answers(_query(symbol.given), mapping) if symbol.given else [mapping]
        return [self._symbol(symbol.expression, world, extended) for extended in mappings]

    def _list(self, items: list[str], world: World, mapping: Mapping[Key, str]) -> str:
        if not items:
            return self._expand("list_empty", world, mapping)
        if len(items) == 1:
            return items[0]
        separator = self._expand("list_separator", world, mapping)
        return separator.join(items[:-1]) + self._expand("list_last_separator", world, mapping) + items[-1]


@lru_cache(maxsize=8)
def _parse(text: str) -> tuple[dict[str, list[tuple[str, list[Any]]]], dict[str, list[Any]], dict[str, list[Any]]]:
    from tatsu.exceptions import ParseException
    from textworld.envs.pddl.logic import GameLogic

    try:
        logic = GameLogic(domain="", grammar=text)
        rules = {
            name: [(rule.condition, rule.rhs) for rule in alternatives]
            for name, alternatives in logic.grammar._rules.items()
        }
        templates = {name: _symbols(action.template) for name, action in logic.actions.items()}
        feedback = {name: _symbols(action.feedback_rule) for name, action in logic.actions.items()}
    except (ParseException, ValueError) as error:
        raise ValueError(f"the game's grammar does not parse: {type(error).__name__}: {error}") from error
    _check([*templates.values(), *feedback.values(), *(rhs for rule in rules.values() for _, rhs in rule)])
    return rules, templates, feedback


def _check(texts: Iterable[Iterable[Any]]) -> None:
    """Refuses unknown expressions in all texts, also in those that no play comes to."""
    for symbol in (symbol for text in texts for symbol in text):
        if type(symbol).__name__ == "EvalSymbol":
            _expression(symbol.expression)
        else:
            inner = [getattr(symbol, name, None) for name in ("expression", "symbol")]
            _check([[part for part in inner if part is not None and not isinstance(part, str)]])


def _symbols(text: str) -> list[Any]:
    from textworld.envs.pddl.textgen import ContextSensitiveGrammar

    return ContextSensitiveGrammar.parse(json.dumps({"text": [{"rhs": text}]}))._rules["text"][0].rhs


@lru_cache(maxsize=1024)
def _query(text: str) -> Query:
    from textworld.logic import Rule

    rule = Rule.parse_conjunctive_query(text)
    return tuple((p.name, tuple((ph.name, ph.type) for ph in p.parameters)) for p in rule.preconditions)


@lru_cache(maxsize=1024)
def _expression(text: str) -> ast.expr:
    """Parses an expression: fields of entities and texts, joined by ``+``, ``or`` and ``and``.

    Raises:
        ValueError: for any other one. A game's file is data, so nothing in it is run.
    """
    try:
        parsed = ast.parse(text.strip(), "<grammar>", "eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the game's grammar has the expression {text[:80]!r}, which can't be read: {error}") from None
    for node in ast.walk(parsed):
        if not _known(node):
            raise ValueError(
                f"the game's grammar has the expression {text[:80]!r}; known are texts, names and fields of entities, "
                "joined by +, or, and"
            )
    return parsed


def _known(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(), attr=field):
            return not field.startswith("_")
        case ast.Constant(value=value):
            return isinstance(value, str)
        case ast.BinOp(op=operator):
            return isinstance(operator, ast.Add)
    return isinstance(node, ast.Name | ast.BoolOp | ast.boolop | ast.Add | ast.expr_context)


def _value(node: ast.expr, entities: Mapping[str, Any]) -> Any:
    """Returns the value of an expression that `_expression` has parsed."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name)):
            if name not in entities:
                raise ValueError(f"the game's grammar names {name!r}, which stands for nothing here")
            value = getattr(entities[name], node.attr) if isinstance(node, ast.Attribute) else entities[name]
            if callable(value):
                raise ValueError(f"the game's grammar has {ast.unparse(node)!r}, which is no text")
            return value
        case ast.BinOp(left=left, right=right):
            return _value(left, entities) + _value(right, entities)
        case ast.BoolOp(op=operator, values=values):
            result = None
            for part in values:
                result = _value(part, entities)
                if bool(result) is isinstance(operator, ast.Or):
                    break
            return result
    raise AssertionError("`_expression` refuses it")
