"""Translates a problem for the planner, once on each machine.

The translator (pure Python, 0.1 to 0.3 s per problem) runs once; the needed parts of its result are kept on disk under
a key of domain, problem and translator version.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from alignopsd_trl.environments.cache import cache_folder, write_atomically

FORMAT = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Translation:
    """The parts of a translated problem that play needs.

    Args:
        sas: the planning task in the planner's format, zlib-compressed.
        parameters: action name -> its parameters as (name, type).
        types: entity -> type.
        facts: initial facts that the translator lists, as (predicate, *entities).
    """

    sas: bytes
    parameters: dict[str, list[tuple[str, str]]]
    types: dict[str, str]
    facts: list[tuple[str, ...]]


def translate(domain: str, problem: str) -> Translation:
    """Returns the translation of a problem, from disk or from the translator.

    Raises:
        ValueError: if the translator refuses the problem.
    """
    path = _path(domain, problem)
    kept = _read(path)
    if kept is None:
        kept = _translate(domain, problem)
        _write(path, kept)
    return kept


def _path(domain: str, problem: str) -> Path:
    version = importlib.metadata.version("fast-downward-textworld")
    key = hashlib.sha256("\0".join((str(FORMAT), version, domain, problem)).encode()).hexdigest()
    return cache_folder("alfworld") / "translations" / key[:2] / f"{key}.z"


def _translate(domain: str, problem: str) -> Translation:
    from fast_downward import pddl2sas

    arguments = sys.argv
    try:
        task, sas = pddl2sas(domain, problem)
    except (Exception, SystemExit) as error:  # the translator exits on some malformed problems
        raise ValueError(f"the PDDL problem can't be translated: {type(error).__name__}: {error}") from error
    finally:
        sys.argv = arguments  # the translator replaces it
    facts: list[tuple[str, ...]] = [
        (atom.predicate, *atom.args) for atom in task.init if getattr(atom, "predicate", "=") != "="
    ]
    return Translation(
        sas=zlib.compress(sas.encode()),
        parameters={a.name: [(p.name.strip("?"), p.type_name) for p in a.parameters] for a in task.actions},
        types={entity.name: entity.type_name for entity in task.objects},
        facts=facts,
    )


def _read(path: Path) -> Translation | None:
    try:
        data = path.read_bytes()
        size = int.from_bytes(data[:4], "little")
        rest = json.loads(zlib.decompress(data[4 : 4 + size]))
        zlib.decompress(data[4 + size :])  # has a checksum of its own
        return Translation(
            sas=data[4 + size :],
            parameters={name: [tuple(pair) for pair in pairs] for name, pairs in rest["parameters"].items()},
            types=rest["types"],
            facts=[tuple(fact) for fact in rest["facts"]],
        )
    except FileNotFoundError:
        return None
    except (OSError, zlib.error, ValueError, KeyError) as error:
        _log.warning("translating again, as %s can't be read: %s", path, error)
        return None


def _write(path: Path, kept: Translation) -> None:
    rest = {"parameters": kept.parameters, "types": kept.types, "facts": kept.facts}
    packed = zlib.compress(json.dumps(rest).encode())
    try:
        write_atomically(path, len(packed).to_bytes(4, "little") + packed + kept.sas)
    except OSError as error:  # a game can be played without its cached translation
        _log.warning("the translation is not kept: %s", error)
