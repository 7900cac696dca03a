"""What a demonstrated turn costs in tokens, part by part, which of its words the prompt does not show, whether it names
what the skill says, and whether it has the same form without it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from alignopsd_trl.checks.tasks import Finding, look
from alignopsd_trl.commands.own_task.playing import skill_read
from alignopsd_trl.common.progress import quoted
from alignopsd_trl.rollout.renderer import Renderer, messages_of, text_of
from alignopsd_trl.turns import Trajectory, Turn

WORD = re.compile(r"[^\W\d_]\w+")
FEW, OFTEN, FORM = 0.05, 0.1, 0.25
"""A word belongs to single tasks if this share of the episodes at most uses it, or two, and never more than half; the
share of turns above which words that are not shown are worth a look, and below which words of the skill are; and the
share of turns that use a word of their form."""


def parts(renderer: Renderer, episode: Trajectory, turn: Turn) -> dict[str, int]:
    """Returns the tokens of a turn by part. Other lines are instructions and past turns; the rest of the prompt is the
    template's marks and any system message."""
    view, shown = turn.shown.view, renderer.show(turn.shown.view, episode.skill_text)
    left = str(messages_of(shown)[-1].get("content") or "")
    pieces = {"task": [view.task_text], "skill": [episode.skill_text], "observation": [view.observation]}
    found = dict[str, int]()
    for name, texts in (pieces | {"options": list(view.admissible)}).items():
        inside = [text for text in texts if text.strip() and text.strip() in left]
        found[name] = sum(len(renderer.tokens(text.strip())) for text in inside)
        for text in inside:
            left = left.replace(text.strip(), "", 1)
    found["other lines"] = len(renderer.tokens(left.strip()))
    system = len(renderer.encode([shown])[0]) - sum(found.values())
    return {"system and marks": system, **found, "answer": len(renderer.tokens(turn.response_text)) + 1}


def unshown(renderer: Renderer, episodes: Sequence[Trajectory]) -> Iterator[Finding]:
    """Yields a finding if the player often uses words of single tasks that its prompt does not show. Guesses that lost
    don't count: nobody should learn them."""
    episodes = [one for one in episodes if one.won is not False]
    turns = [(one, turn) for one in episodes for turn in one.turns]
    users = defaultdict[str, set[int]](set)
    for episode, turn in turns:
        for word in _words(turn.response_text):
            users[word].add(id(episode))
    most, odd = min(max(2, FEW * len(episodes)), len(episodes) / 2), list[tuple[str, str]]()
    for episode, turn in turns:
        prompt = text_of(renderer.show(turn.shown.view, skill_read(episode))).casefold()
        words = [one for one in _words(turn.response_text) if len(users[one]) <= most and one not in prompt]
        odd += [(max(words, key=len), turn.response_text)] if words else []
    if len(odd) > OFTEN * len(turns):
        word, response = odd[0]
        yield look(
            "player",
            f"{len(odd)} of {len(turns)} responses have a word that is not in their prompt, such as {word!r} in "
            f"{quoted(response)}; it can't be known: show it, or let the thought copy from the prompt what decides",
        )


def uncopied(renderer: Renderer, episodes: Sequence[Trajectory]) -> Iterator[Finding]:
    """Yields a finding if the player, under a skill, hardly ever names a word that the skill alone says. Words that all
    skills share don't count."""
    skilled = [one for one in episodes if skill_read(one)]
    said = {one.skill_text: _words(one.skill_text) for one in skilled}
    common, named, told = set[str].intersection(*said.values()) if said else set(), 0, list[str]()
    for episode in skilled:
        for turn in episode.turns:
            alone = said[episode.skill_text] - common - _words(text_of(renderer.show(turn.shown.view, "")))
            done = turn.action.strip().casefold()
            named += not alone.isdisjoint(_words(turn.response_text)) or bool(
                done and done in episode.skill_text.casefold()
            )
            told += [max(alone, key=len)] if alone else []
    if named < OFTEN * len(told):
        yield look(
            "player",
            f"of {len(told)} responses under a skill {named} name a word that the skill alone says, such as "
            f"{told[0]!r}; a policy learns to read the skill where the thought copies it before it decides",
        )


def other_form(episodes: Sequence[Trajectory]) -> Iterator[Finding]:
    """Yields a finding if many responses under a skill use a word that none without it does."""
    views = {True: list[set[str]](), False: list[set[str]]()}
    for one in episodes:
        views[bool(skill_read(one))] += [_words(turn.response_text) for turn in one.turns]
    under, without = views[True], set().union(*views[False])
    users = Counter(word for words in under for word in words - without)
    for word, count in users.most_common(1):
        if views[False] and count > max(2, FORM * len(under)):
            yield look(
                "player",
                f"{word!r} is in {count} of {len(under)} responses under a skill and in none without it: a policy that "
                "thinks otherwise without the skill has to unlearn that before it learns the rule; let the player "
                "guess there in the same words",
            )


def _words(text: str) -> set[str]:
    return set(WORD.findall(text.casefold()))
