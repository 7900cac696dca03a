"""``alignopsd skills write``: contrasts of a run become proposals; those that help become a new bank."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from alignopsd_trl.encoder import Encoder
from alignopsd_trl.environments.shipped import BENCHMARKS
from alignopsd_trl.launch.errors import setup
from alignopsd_trl.runs.files import write_json
from alignopsd_trl.runs.owned import owned, refuse
from alignopsd_trl.skill_work.check import assess, encoder_of, open_bench, open_session
from alignopsd_trl.skill_work.contrasts import Contrast, contrasts
from alignopsd_trl.skill_work.worth import HELPS, UNTOLD
from alignopsd_trl.skills import SkillBank
from alignopsd_trl.writer import MALFORMED, EndpointWriter, bounded, read_object

COMMAND = "alignopsd skills write"
MOST_WORDS = {"title": 8, "text": 40, "when": 40}
MOST_SKILLS = 99  # that the schema's identifiers can number
NEAR = 0.95  # cosine from which two texts of a category say the same
NOTHING = {"title": "Open", "text": "Nothing is known yet.", "when": "Always."}
"""The schema wants a skill where nothing helped."""

QUESTION = """An agent plays this task: {task_text}
It saw: {state}
Agents that won did: {did}
Agents that lost did: {instead}
Write one rule that a player of other tasks of this kind can follow. Answer with JSON alone:
{{"title": "a few words", "text": "what to do, at most 40 words", "when": "when it applies, a few words"}}"""

Writer = Callable[[Contrast], Mapping[str, str]]
"""Words a contrast as ``title``, ``text`` and ``when``."""


@dataclass(frozen=True)
class Proposal:
    """A skill with the turns it comes from, and what it is worth once it was measured."""

    category: str
    title: str
    text: str
    when: str
    turns: tuple[str, ...]
    id: str = ""
    verdict: str = UNTOLD
    lift: float = 0.0


def write(given: argparse.Namespace, shown: str) -> None:
    """Writes the bank unless nothing helps, and ``.written.json`` beside it with all proposals."""
    written = given.output.with_suffix(".written.json")
    with setup():
        refuse([written], "skills write")
        found = contrasts(given.run, given.proposals)
        session = open_session(given)
        encoder = encoder_of(given, session)
        special = {str(token) for token in session.tokenizer.added_tokens_decoder.values() if token.special}
        writer = ByEndpoint(given.endpoint, given.endpoint_model) if given.endpoint else in_own_words
        proposals, malformed = propose(found, writer, special)
        proposals = [*(earlier(SkillBank.load(given.bank)) if given.bank else ()), *proposals]
        prefix, family = names_of(session.suite.name)
        numbered = enumerate(distinct(proposals, encoder)[:MOST_SKILLS], 1)
        proposals = [replace(one, id=f"{prefix}-t{number:02d}") for number, one in numbered]
        bank = SkillBank(bank_of(proposals, family, shown), str(given.output), encoder)
    with closing(session.player.environments):
        bench = open_bench(given, session)
        worth = {one.id: one for one in assess(given, session, bench, bank, [one.id for one in proposals])}
    proposals = [replace(one, verdict=worth[one.id].verdict, lift=worth[one.id].lift) for one in proposals]
    kept = [one for one in proposals if one.verdict == HELPS]
    result = {"command": shown, "run": given.run, "malformed": malformed, "kept": len(kept), "proposals": proposals}
    with owned("skills write", written):
        write_json(written, result)
    for one in proposals:
        print(f"{one.verdict} ({one.lift:+.2f}): {one.category}: {one.text}")
    if kept:
        with given.output.open("x", encoding="utf-8") as file:  # fails if it is there by now
            json.dump(bank_of(kept, family, shown), file, indent=1, ensure_ascii=False)
    told = f"{given.output} has {len(kept)} new skills" if kept else "none helps, so no bank is written"
    print(f"{len(proposals)} proposals, {len(malformed)} malformed answers; {told}")


def in_own_words(one: Contrast) -> dict[str, str]:
    """Words a contrast by the environment's own words."""
    text = f"Do {one.won}, not {one.lost}. Here the first won and the second lost."
    return {"title": one.won, "text": text, "when": f"After: {one.state or 'the beginning'}"}


class ByEndpoint:
    """Asks an OpenAI-compatible endpoint for the words."""

    def __init__(self, url: str, model: str):
        self._writer = EndpointWriter(url, model)

    def __call__(self, one: Contrast) -> dict[str, str]:
        shown = {name: value[:600] for name, value in asdict(one).items() if isinstance(value, str)}
        return read_object(self._writer(QUESTION.format(**shown)))


def propose(
    found: Sequence[Contrast], writer: Writer, special: Collection[str] = ()
) -> tuple[list[Proposal], list[str]]:
    """Returns what the writer made of the contrasts, and why other answers can't be used.

    Raises:
        ValueError: if no answer can be used.
    """
    proposals, malformed = [], []
    for one in found:
        try:
            said = writer(one)
            title, text, when = (bounded(said[name], most, special) for name, most in MOST_WORDS.items())
            proposals.append(Proposal(one.category, title, text, when, one.turns))
        except MALFORMED as error:
            malformed.append(f"{type(error).__name__}: {error}")
    if not proposals:
        raise ValueError(f"the writer gave no answer that can be used; the first: {malformed[0]}")
    return proposals, malformed


def earlier(bank: SkillBank) -> list[Proposal]:
    """Returns the skills of a written bank as proposals, whose turns are named in their own words.

    Raises:
        ValueError: for a bank that was not written, whose general skills and mistakes have no category.
    """
    if not bank.version.startswith(COMMAND):
        raise ValueError(f"--bank has the version {bank.version!r}; give a bank that {COMMAND} made")
    return [Proposal(kind.key, one.title, one.text, one.when, ()) for kind in bank.task_types for one in kind.skills]


def distinct(proposals: Sequence[Proposal], encoder: Encoder) -> list[Proposal]:
    """Merges proposals of a category that say nearly the same; the first one gets the turns of both, if it has any."""
    kept: list[Proposal] = []
    for one in proposals:
        same = [place for place, other in enumerate(kept) if other.category == one.category]
        near = [place for place in same if float(encoder([one.text])[0] @ encoder([kept[place].text])[0]) >= NEAR]
        if near:
            first = kept[near[0]]
            kept[near[0]] = replace(first, turns=first.turns and first.turns + one.turns)
        else:
            kept.append(one)
    return kept


def names_of(environment: str) -> tuple[str, str]:
    """Returns the beginning of skills' identifiers, and the name of the environment, as a bank has them."""
    family = environment.partition("_")[0]
    if family in BENCHMARKS:
        return BENCHMARKS[family].skill_prefix, family
    return re.sub("[^a-z]", "", environment) or "own", environment


def bank_of(proposals: Sequence[Proposal], environment: str, writer: str) -> dict[str, Any]:
    """Returns the content of a bank with the proposals, in a type for each category.

    Args:
        writer: the command, which becomes the bank's version; each skill names a turn that it comes from.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for one in proposals:
        about = {"key": one.category, "group": "task", "label": one.category, "description": one.when}
        kind = kinds.setdefault(one.category, {**about, "skills": [], "match": {}})
        seen = f"{one.when} ({len(one.turns)} turns, such as {one.turns[0]})" if one.turns else one.when
        kind["skills"].append({"id": one.id, "title": one.title, "text": one.text, "when": seen})
    general = [{"id": f"{proposals[0].id.partition('-')[0]}-g01"} | NOTHING]
    start = {"schema": "skillbank/1", "environment": environment, "version": writer, "language": "en"}
    return {**start, "general": general, "task_types": list(kinds.values()), "mistakes": []}
