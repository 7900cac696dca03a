"""The skill bank, which holds the privileged information of the teacher view.

    bank = SkillBank.load("webshop", encoder)
    found = bank.retrieve(task_text)                      # once per task, at reset
    block = render(found, count_tokens, skill_budget(max_prompt_tokens))
    block.text                                            # fills the {skill_context} slot

A bank is one JSON file of schema ``skillbank/1``: general skills, task types with their own skills, and mistakes.
Retrieval depends only on the task text and two optional hints of its data set.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from alignopsd_trl.common.options import near
from alignopsd_trl.encoder import Encoder
from alignopsd_trl.skills.schema import Mistake, Skill, SkillBankError, TaskType, read_content

GENERAL, MISTAKES = 4, 4
"""General skills and mistakes of a task, at most; a type's own mistakes come before general ones."""
CONSTRAINT_THRESHOLD, MAX_CONSTRAINTS = 0.3, 2
"""Smallest cosine at which a type of group ``constraint`` is added to the best type, and their number at most."""
# Types that fit questions of any source: a data source neither excludes them nor speaks for them.
ANY_SOURCE = ("temporal", "numeric", "entity_disambiguation")
_FOLDER = Path(__file__).parents[1] / "data" / "skills"


@dataclass(frozen=True)
class Retrieved:
    """The skills of one task, best first. ``scores`` are the cosines of ``skills``, rounded to 6 decimals, or 0 if the
    skills are in file order. General skills and mistakes are always in file order."""

    type_keys: tuple[str, ...]
    skills: tuple[Skill, ...]
    scores: tuple[float, ...]
    general: tuple[Skill, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Identifiers in the order of rank: type skills, general skills, mistakes."""
        return tuple(item.id for item in (*self.skills, *self.general, *self.mistakes))


class SkillBank:
    """A checked bank of skills and its rule of retrieval. `SkillBank.load` reads one from a file.

    Args:
        encoder: scores task types and skills. Without one, hints, whole-word keywords and file order decide. Keywords
            also come before the cosines of an encoder that is not `Encoder.semantic`: on 206 requests of the embedded
            shop, keywords always find the product's category; lexical cosines find it once in four.

    ``environment``, ``version`` and ``language`` are the file's; ``general``, ``task_types`` and ``mistakes`` are its
    content in file order. ``checksum`` (first 16 hex digits of the sha256 over the content) goes into the results.

    Raises:
        SkillBankError: if the content breaks the schema; the message has one line per missing or wrong item.
    """

    def __init__(self, content: dict[str, Any], source: str, encoder: Encoder | None = None):
        read = read_content(content, source)
        self.environment, self.version, self.language = read.environment, read.version, read.language
        self.general, self.task_types, self.mistakes = read.general, read.task_types, read.mistakes
        self.checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
        self.encoder = encoder
        self._cached, self._known = lru_cache(maxsize=65536)(self._retrieve), lru_cache(maxsize=None)(_vector)

    @classmethod
    def load(
        cls, bank: str | Path | SkillBank, encoder: Encoder | None = None, columns: Collection[str] = ()
    ) -> SkillBank:
        """Loads a shipped bank by name or a bank from a file; returns a loaded bank as it is.

        Args:
            bank (`str`, `Path` or `SkillBank`): ``webshop``, ``alfworld``, ``searchqa``, or the path of a JSON file.
            columns (`Collection[str]`, *optional*): columns of the dataset, for the message.

        Raises:
            SkillBankError: if there is no such bank, or it breaks the schema ``skillbank/1``.
        """
        if isinstance(bank, SkillBank):
            return bank
        shipped = _FOLDER / f"{bank}.json"
        path = shipped if shipped.is_file() else Path(bank).expanduser()
        if not path.is_file():
            names = sorted(file.stem for file in _FOLDER.glob("*.json"))
            own = f"a column of the tasks ({', '.join(columns)})" if columns else "a column of the tasks"
            raise SkillBankError(
                f"skill bank {str(bank)!r} is unknown; {near(str(bank), names)}use one of {', '.join(names)}, the path "
                f"of a JSON file, {own}, or module:function"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise SkillBankError(f"{path}: file is no UTF-8 JSON ({error}); correct it there") from error
        return cls(content, str(path), encoder)

    def retrieve(self, task_text: str, task_key: str | None = None, data_source: str | None = None) -> Retrieved:
        """Retrieves the skills of a task. Equal arguments give equal results, in every process and on every device.

        Types: the one that ``task_key`` names; else the best candidate that is no constraint, and up to two
        constraints. Skills: all skills of these types by cosine, then the first general ones, then the mistakes.

        Args:
            task_text: the request alone: goal sentence, shopping request or question. Never an observation.
            task_key: names the type if the environment knows it (ALFWorld's game type).
            data_source: source of a question; limits types to those that list it and those of `ANY_SOURCE`.
        """
        return self._cached(task_text, task_key, data_source)

    def _retrieve(self, task_text: str, task_key: str | None, data_source: str | None) -> Retrieved:
        types = self._types(task_text, task_key, data_source)
        skills = [skill for kind in types for skill in kind.skills]
        ranked = _ranked(skills, self._cosines(task_text, [f"{s.title}. {s.text} {s.when}" for s in skills]))
        keys = [kind.key for kind in types]
        specific = [mistake for mistake in self.mistakes if set(mistake.applies_to) & set(keys)]
        always = [mistake for mistake in self.mistakes if "*" in mistake.applies_to and mistake not in specific]
        return Retrieved(
            type_keys=tuple(keys),
            skills=tuple(skill for skill, _ in ranked),
            scores=tuple(score for _, score in ranked),
            general=self.general[:GENERAL],
            mistakes=tuple([*specific, *always][:MISTAKES]),
        )

    def _types(self, task_text: str, task_key: str | None, data_source: str | None) -> list[TaskType]:
        for kind in self.task_types:
            if task_key is not None and task_key in (kind.key, *kind.match.task_key):
                return [kind]
        listed = [kind for kind in self.task_types if data_source in kind.match.data_sources]
        candidates = [kind for kind in self.task_types if not listed or kind in listed or kind.key in ANY_SOURCE]
        if self.encoder is None and listed:
            return [min(listed, key=lambda kind: kind.key in ANY_SOURCE)]
        if self.encoder is None or not self.encoder.semantic:
            hits = [float(sum(_occurs(word, task_text) for word in kind.match.keywords)) for kind in candidates]
            found = [(kind, hit) for kind, hit in _ranked(candidates, hits) if hit]
            if found or self.encoder is None:
                return _best(found, threshold=1.0) or [self.task_types[0]]
        scores = self._cosines(task_text, [f"{kind.label}. {kind.description}" for kind in candidates])
        return _best(_ranked(candidates, scores), CONSTRAINT_THRESHOLD)

    def _cosines(self, task_text: str, texts: list[str]) -> list[float]:
        """Returns cosines rounded to 6 decimals. Texts are encoded one by one, so that no batch changes them."""
        if self.encoder is None:
            return [0.0] * len(texts)
        query = _vector(self.encoder, " ".join(task_text.split()))
        return [round(float(self._known(self.encoder, text) @ query), 6) + 0.0 for text in texts]


def _vector(encoder: Encoder, text: str) -> torch.Tensor:
    return encoder([text])[0].double().cpu()


def _ranked(items: Sequence[Any], scores: Sequence[float]) -> list[tuple[Any, float]]:
    """Sorts items by falling score. Python's sort is stable, so ties keep the order of the file."""
    return sorted(zip(items, scores, strict=True), key=lambda pair: -pair[1])


def _best(ranked: list[tuple[TaskType, float]], threshold: float) -> list[TaskType]:
    """Returns the best type that is no constraint, then the best `MAX_CONSTRAINTS` constraints whose score is at least
    ``threshold``. ``ranked`` begins with the best."""
    main = [kind for kind, _ in ranked if kind.group != "constraint"]
    constraints = [kind for kind, score in ranked if kind.group == "constraint" and score >= threshold]
    return [*main[:1], *constraints[:MAX_CONSTRAINTS]]


def _occurs(keyword: str, text: str) -> bool:
    """Returns whether a keyword occurs as a whole word, in any case; a regular plural counts."""
    return re.search(rf"(?<!\w){re.escape(keyword)}(?:e?s)?(?!\w)", text, re.IGNORECASE) is not None


# The block of a prompt


class Rendered(NamedTuple):
    """A skill block: its ``text`` without a final line break, and the ``ids`` of its items."""

    text: str
    ids: tuple[str, ...]


def skill_budget(max_prompt_tokens: int) -> int:
    """Returns the tokens of a prompt that the skill block may take: a quarter, at most 512."""
    return min(512, max_prompt_tokens // 4)


def render(retrieved: Retrieved, count_tokens: Callable[[str], int], budget: int) -> Rendered:
    """Renders the skill block of a prompt, from as many whole items as ``budget`` tokens hold.

    If all are too long, the last item is dropped until the rest fits: first mistakes, then general skills, then skills
    of the task's type. The first of these always stays.
    """
    sections: list[list[Any]] = [list(retrieved.skills), list(retrieved.general), list(retrieved.mistakes)]
    while count_tokens(_block(*sections)) > budget and sum(map(len, sections)) > 1:
        next(section for section in reversed(sections) if section).pop()
    return Rendered(_block(*sections), tuple(item.id for section in sections for item in section))


def _block(skills: Sequence[Skill], general: Sequence[Skill], mistakes: Sequence[Mistake]) -> str:
    lines = ["Guidance for this kind of task:", *(item.line for item in (*skills, *general))]
    if mistakes:
        lines += ["Mistakes to avoid:", *(item.line for item in mistakes)]
    return "\n".join(lines)
