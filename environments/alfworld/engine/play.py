"""Two engines with one interface: TextWorld's own (``plain``, the reference) and a fast one over the same planner.

As TextWorld does, `FastEngine` calls the planner's library for applicable operators, effects and the goal test. The
rest differs: commands come from a table by operator, texts from parsed rules, translations from a cache. Both give the
same observation, commands and verdict at every step.

Neither is safe in threads (the parsers and the translator are module-level): hold `LOCK` around every call.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

from alignopsd_trl.environments.alfworld.engine import library
from alignopsd_trl.environments.alfworld.engine.distance import PlannerGoal, least_commands, sub_goals
from alignopsd_trl.environments.alfworld.engine.grammar import Fact, Grammar, Key, World
from alignopsd_trl.environments.alfworld.engine.packages import require
from alignopsd_trl.environments.alfworld.engine.translation import Translation, translate

LOCK = threading.RLock()
NOTHING = "Nothing happens."


@dataclass(frozen=True)
class Moment:
    """The result of a reset or a command. ``admissible`` is sorted and includes ``help``."""

    observation: str
    admissible: tuple[str, ...]
    won: bool


class Engine(Protocol):
    """Plays one game at a time. ``load`` takes the keys of a ``game.tw-pddl`` file; ``reset`` starts it (again)."""

    def load(self, game: Mapping[str, Any]) -> None: ...

    def reset(self) -> Moment: ...

    def step(self, command: str) -> Moment: ...

    def least_commands(self) -> int:
        """Returns a lower bound on the commands from here to the goal, `MOST_NEEDED` at most."""

    def sub_goals(self) -> set[str]:
        """Returns the names of the parts of the goal that hold now."""

    def close(self) -> None: ...


def make_engine(name: str) -> Engine:
    """Makes an engine by name, ``fast`` or ``plain``. Raises `MissingPackage` without the extra ``alfworld``."""
    require()
    return {"fast": FastEngine, "plain": PlainEngine}[name]()


class FastEngine:
    """The planner's library with a text layer of our own. It holds a private copy of the library until `close`."""

    def __init__(self) -> None:
        from fast_downward import Atom, Operator

        self._atom_type, self._operator_type = Atom, Operator
        self._library, self._closed = library.acquire(), False

    def load(self, game: Mapping[str, Any]) -> None:
        self._game = known(game["pddl_domain"], game["pddl_problem"], game["grammar"])

    def reset(self) -> Moment:
        game = self._game
        self._library.load_sas(zlib.decompress(game.task.sas))
        if not game.facts:
            game.facts = self._initial_facts()
            game.entities = _entities(game.facts, game.task)
        self._world = World(game.entities, game.task.types, game.facts)
        if game.start is None:
            game.start = Moment(game.grammar.opening(self._world), *self._now())
            game.commands = self._commands
        self._moment, self._commands = game.start, game.commands
        return self._moment

    def step(self, command: str) -> Moment:
        operator = self._commands.get(command.strip())
        if operator is None:
            self._moment = replace(self._moment, observation=NOTHING)
            return self._moment
        effects = (self._atom_type * operator.effects)()
        self._library.apply_operator(operator.number, effects)
        for effect in effects:
            self._world.apply(*_literal(effect.name))
        text = self._game.grammar.feedback(operator.action, operator.mapping, self._world)
        self._moment = Moment(text, *self._now())
        return self._moment

    def least_commands(self) -> int:
        return 0 if self._moment.won else least_commands(self._game.goal, self._world.facts)

    def sub_goals(self) -> set[str]:
        return sub_goals(self._game.goal, self._world.facts)

    def close(self) -> None:
        if not self._closed:
            library.release(self._library)
            self._closed = True

    def _initial_facts(self) -> list[Fact]:
        atoms = (self._atom_type * self._library.get_state_size())()
        self._library.get_state(atoms)
        state = (_literal(atom.name) for atom in atoms)
        positive = [(name, *arguments) for name, arguments in state if not name.startswith("not_")]
        return self._game.task.facts + positive

    def _now(self) -> tuple[tuple[str, ...], bool]:
        """Rebuilds the command table. The first operator of a command counts, as in TextWorld."""
        found = (self._operator_type * self._library.get_applicable_operators_count())()
        self._library.get_applicable_operators(found)
        self._commands: dict[str, _Operator] = {}
        for raw in found:
            operator = self._game.operators.get(raw.id) or self._learn(raw)
            self._commands.setdefault(operator.command, operator)
        return tuple(sorted(self._commands)), bool(self._library.check_goal())

    def _learn(self, raw: Any) -> _Operator:
        action, *arguments = raw.name.split()
        mapping = dict(zip(self._game.task.parameters[action], arguments, strict=False))
        command = self._game.grammar.command(action, mapping, self._world)
        operator = _Operator(raw.id, action, mapping, command, raw.nb_effect_atoms)
        self._game.operators[raw.id] = operator
        return operator


@dataclass(frozen=True)
class _Operator:
    number: int
    action: str
    mapping: Mapping[Key, str]
    command: str
    effects: int


@dataclass
class GameFacts:
    """Facts that all plays of a game share, computed at its first reset; each operator when it first occurs."""

    grammar: Grammar
    task: Translation
    goal: PlannerGoal | None
    facts: list[Fact] = field(default_factory=list)
    entities: Mapping[str, Any] = field(default_factory=dict)
    operators: dict[int, _Operator] = field(default_factory=dict)
    start: Moment | None = None
    commands: dict[str, _Operator] = field(default_factory=dict)


@lru_cache(maxsize=64)
def known(domain: str, problem: str, grammar: str) -> GameFacts:
    """Returns the cached facts of a game. Raises as `translate`."""
    return GameFacts(_grammar(grammar), translate(domain, problem), PlannerGoal.of(problem))


class PlainEngine:
    """TextWorld's PDDL environment with ALFWorld's names, unchanged: the reference."""

    def __init__(self) -> None:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs.pddl import PddlEnv

        self._environment: Any = AlfredDemangler(PddlEnv(EnvInfos(won=True, admissible_commands=True)), shuffle=False)

    def load(self, game: Mapping[str, Any]) -> None:
        _grammar(game["grammar"])  # refuses expressions that TextWorld would run
        self._environment.load(dict(game))

    def reset(self) -> Moment:
        return self._moment(self._environment.reset())

    def step(self, command: str) -> Moment:
        return self._moment(self._environment.step(command)[0])

    def least_commands(self) -> int:
        return 0

    def sub_goals(self) -> set[str]:
        return set()

    def close(self) -> None:
        self._environment = None

    @staticmethod
    def _moment(state: Mapping[str, Any]) -> Moment:
        return Moment(state["feedback"], tuple(state["admissible_commands"]), bool(state["won"]))


def display_names(ids: list[str]) -> dict[str, str]:
    """Returns ALFWorld's names for a game's entities. Within a class of n the first of the sorted ids has number n."""
    members: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for identity in sorted(ids):
        kind, separator, _ = identity.partition("_bar_")
        if separator:
            members.setdefault(kind + "basin" * ("basin" in identity), []).append(identity)
        else:
            names[identity] = f"{identity} "
    for kind, group in members.items():
        names |= {identity: f"{kind} {len(group) - index}" for index, identity in enumerate(group)}
    return names


def _entities(facts: list[Fact], task: Translation) -> dict[str, Any]:
    from textworld.generator.game import EntityInfo

    names = display_names(list({entity for fact in facts for entity in fact[1:]}))
    entities = {}
    for identity, name in names.items():
        entity = entities[identity] = EntityInfo(identity, task.types[identity])
        entity.name, entity.definite, entity.indefinite = name, "the", "a"
    return entities


@lru_cache(maxsize=64)
def _grammar(text: str) -> Grammar:
    return Grammar(text)


@lru_cache(maxsize=1 << 16)
def _literal(name: str) -> tuple[str, Fact]:
    """Parses ``NegatedAtom opened(r)`` into ``("not_opened", ("r",))``."""
    sign, _, atom = name.partition(" ")
    predicate, _, arguments = atom.rstrip(")").partition("(")
    return ("not_" if sign == "NegatedAtom" else "") + predicate, tuple(a for a in arguments.split(", ") if a)
