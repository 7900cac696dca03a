"""A small world for questions of several hops, in which every question holds one trap.

    python -m assets.worlds.hops              # writes the shipped files anew
    python -m assets.worlds.hops --check      # compares them with what would be written
    python -m assets.worlds.hops --other_facts 2 FOLDER  # the same names, other facts and questions

Ten kinds of things, a passage of one sentence each, and names that two things of different kinds may share. A question
follows facts from thing to thing: *the height of the mountain of the river of the town of the firm Drosk*. It is kept
if it holds one of these and no other, which is found by asking the search engine for each name on its way:

* ``early``: four passages are to be read, and what the second and the third say looks like an answer;
* ``relation``: two passages on the way state two things of the asked type (director and composer);
* ``namesake``: a name finds something else first, which states a thing of the asked type all the same;
* ``failed``: a name finds something else first, which states nothing of the kind.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignopsd_trl.environments.panel import SPLITS
from alignopsd_trl.environments.searchqa.engine.bm25 import BM25Retriever
from alignopsd_trl.environments.searchqa.engine.corpus import Corpus
from alignopsd_trl.environments.searchqa.hops import FACTS, FILES, KINDS, kind_of

SEED = 1  # of the shipped world
QUOTA = {"train": 90, "test": 40}  # questions of a kind
HEADS = ("Bren", "Cor", "Dro", "Fen", "Gar", "Hol", "Il", "Jas", "Kel", "Lum", "Mor", "Nar", "Os", "Pim", "Ras", "Sto")
TAILS = (
    *("dale", "garth", "lin", "mere", "nock", "quin", "rath", "sk", "tarn"),
    *("vane", "wick", "zor", "bury", "fold", "heim", "low", "stead"),
)
MONTHS = ("March", "April", "May", "June", "July", "August", "September", "October")
GOODS = ("lamps", "bells", "clocks", "ropes", "bricks", "kites", "stoves", "maps", "gloves", "combs", "drums", "sails")
CURRENCIES = ("dorrit", "quill", "hask", "lumen", "senn", "tallin", "plack", "groat", "florin", "crown")
NUMBERS = tuple(str(number) for number in range(110, 980, 23))

SIZES = {
    "country": 12,
    "mountain": 20,
    "river": 24,
    "town": 36,
    "person": 24,
    "film": 20,
    "novel": 20,
    "firm": 32,
    "bridge": 32,
    "festival": 32,
}
NAMESAKES = 60
SHARING = ("country", "mountain", "river", "town", "firm", "bridge", "festival")
ALIKE = (("firm", "bridge", "festival", "country"), ("town", "mountain"), ("river", "mountain"))
"""Kinds that state things of one type; of two namesakes, as many are taken from these as from any of `SHARING`."""
PASSAGES = {
    "country": "{name} is a country with the capital {capital} and the currency {currency}.",
    "mountain": "{name} is a mountain in the country {country} with a height of {height}.",
    "river": "{name} is a river from the mountain {mountain} with a length of {length}.",
    "town": "{name} is a town in the country {country} on the river {river}.",
    "person": "{name} is a person with the birthplace {birthplace} and the residence {residence}.",
    "film": "{name} is a film by the director {director} with the composer {composer}.",
    "novel": "{name} is a novel by the author {author} with the illustrator {illustrator}.",
    "firm": "{name} is a firm in the town {town} with the product {product}.",
    "bridge": "{name} is a bridge in the town {town} with a length of {length}.",
    "festival": "{name} is a festival in the town {town} in the month {month}.",
}
WORDS = {"currency": CURRENCIES, "number": NUMBERS, "goods": GOODS, "month": MONTHS}
ASKING = ("What is {}?", "Tell me {}.", "Find {}.", "I want to know {}.")
HITS = dict[str, str]
"""name -> kind of what is found by it"""


@dataclass(frozen=True)
class Thing:
    """What a passage is about. A fact's value is the name of another thing, or a word."""

    kind: str
    name: str
    facts: dict[str, str]

    @property
    def text(self) -> str:
        return PASSAGES[self.kind].format(name=self.name, **self.facts)


@dataclass(frozen=True)
class Chain:
    """A question: the things that are read, the fact of each, and what the last one says."""

    things: tuple[Thing, ...]
    facts: tuple[str, ...]

    @property
    def answer(self) -> str:
        return self.things[-1].facts[self.facts[-1]]

    @property
    def asked(self) -> str:
        start = self.things[0]
        return "".join(f"the {fact} of " for fact in reversed(self.facts)) + f"the {start.kind} {start.name}"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument(
        "--other_facts", nargs=2, metavar=("SEED", "FOLDER"), help="a world that policies of the shipped one can name"
    )
    given = parser.parse_args(argv)
    if given.other_facts:
        seed, target = given.other_facts
        Path(target).mkdir(parents=True, exist_ok=True)
        return generate(Path(target), SEED, int(seed))
    if not given.check:
        return generate(FILES, SEED)
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), SEED)
        for name in ("corpus", *SPLITS):
            if (Path(folder) / f"{name}.jsonl").read_bytes() != (FILES / f"{name}.jsonl").read_bytes():
                raise SystemExit(f"{FILES / name}.jsonl differs from what seed {SEED} gives")


def generate(folder: Path, seed: int, other_facts: int | None = None) -> None:
    """Writes ``corpus.jsonl``, ``train.jsonl`` and ``test.jsonl``.

    Args:
        other_facts: a seed with which facts and questions are drawn anew; names and kinds stay.
    """
    draw = random.Random(seed)
    things = build(draw)
    if other_facts is not None:
        draw = random.Random(other_facts)
        named = {kind: [one.name for one in things if one.kind == kind] for kind in SIZES}
        things = [Thing(one.kind, one.name, _facts(one.kind, named, draw)) for one in things]
    rows = [{"id": str(number), "contents": f'"{one.name}"\n{one.text}'} for number, one in enumerate(things)]
    _write(folder / "corpus.jsonl", rows)
    search = _kinds_found(folder / "corpus.jsonl")
    pools = classify(things, {name: search(name) for name in {one.name for one in things}}, search)
    numbers = {split: 0 for split in SPLITS}
    written: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    chosen = {kind: draw.sample(pools[kind], min(len(pools[kind]), sum(QUOTA.values()))) for kind in KINDS}
    for place in range(sum(QUOTA.values())):
        for kind in KINDS:
            if place < len(chosen[kind]):
                split = "test" if place < QUOTA["test"] else "train"
                written[split].append(_row(chosen[kind][place], kind, f"hops-{split}-{numbers[split]:04d}", draw))
                numbers[split] += 1
    for split in SPLITS:
        _write(folder / f"{split}.jsonl", written[split])


def build(draw: random.Random) -> list[Thing]:
    """All things, in a drawn order. No two of a kind have one name."""
    names = [head + tail for head in HEADS for tail in TAILS]
    draw.shuffle(names)
    named = {kind: [names.pop() for _ in range(size)] for kind, size in SIZES.items()}
    for _ in range(NAMESAKES):
        kind, other = draw.sample(draw.choice((SHARING, draw.choice(ALIKE))), 2)
        name = draw.choice(named[other])
        if name not in named[kind]:
            named[kind][draw.randrange(len(named[kind]))] = name
    things = [Thing(kind, name, _facts(kind, named, draw)) for kind, drawn in named.items() for name in drawn]
    draw.shuffle(things)
    return things


def _facts(kind: str, named: dict[str, list[str]], draw: random.Random) -> dict[str, str]:
    found: dict[str, str] = {}
    for fact, of in FACTS[kind].items():
        found[fact] = draw.choice([one for one in named.get(of, WORDS.get(of, ())) if one not in found.values()])
    return found


def classify(things: Sequence[Thing], found: HITS, search: Callable[[str], str]) -> dict[str, list[Chain]]:
    """The questions of each kind."""
    pools: dict[str, list[Chain]] = {kind: [] for kind in KINDS}
    for chain in chains(things):
        marks = [mark for step in zip(chain.things, chain.facts, strict=True) for mark in traps(*step, found)]
        long, kinds = len(chain.things) == 4, set(marks)
        if any(search(f"{one.name} {one.kind}") != one.kind for one in chain.things):
            continue
        if long and not kinds:
            pools["early"].append(chain)
        if not long and len(kinds) == 1 and (len(marks) == 2 or marks[0] != "relation"):
            pools[marks[0]].append(chain)
    return pools


def chains(things: Sequence[Thing]) -> Iterator[Chain]:
    """All ways of three and four things, none of them twice and no name twice."""
    by_name = {(one.kind, one.name): one for one in things}

    def on(way: tuple[Thing, ...], facts: tuple[str, ...]) -> Iterator[Chain]:
        for fact, of in FACTS[way[-1].kind].items():
            value = way[-1].facts[fact]
            if value in {one.name for one in way}:
                continue
            if len(way) >= 3:
                yield Chain(way, (*facts, fact))
            if (of, value) in by_name and len(way) < 4:
                yield from on((*way, by_name[of, value]), (*facts, fact))

    for one in things:
        yield from on((one,), ())


def traps(thing: Thing, fact: str, found: HITS) -> list[str]:
    """What can go wrong on one passage of a question."""
    wanted, marks = FACTS[thing.kind][fact], []
    if found[thing.name] != thing.kind:
        marks.append("namesake" if wanted in FACTS[found[thing.name]].values() else "failed")
    if list(FACTS[thing.kind].values()).count(wanted) > 1:
        marks.append("relation")
    return marks


def _kinds_found(corpus: Path) -> Callable[[str], str]:
    retriever = BM25Retriever(Corpus(corpus))
    return lambda query: kind_of(retriever.search([query], 1)[0][0].text)


def _row(chain: Chain, kind: str, name: str, draw: random.Random) -> dict[str, Any]:
    question = draw.choice(ASKING).format(chain.asked)
    return {"task_id": name, "category": kind, "question": question, "golden_answers": [chain.answer]}


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
