"""Builds and checks the closed world: 300 passages about invented people, towns, rivers and films, 200 + 200 questions.

Everything is invented, so a question can only be answered by retrieving the right passage. Passages and questions are
rendered from one table of facts. ``corpus.jsonl`` has rows ``{"id", "contents"}``, ids being row numbers;
``train.jsonl`` and ``test.jsonl`` have ``{"id", "question", "golden_answers", "data_source", "metadata"}``.

Usage:

    python -m assets.worlds.closed_world --out DIR [--seed 7]
    python -m assets.worlds.closed_world --check DIR
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assets.worlds.closed_world_facts import build_world
from assets.worlds.closed_world_passages import render, sentences_for
from assets.worlds.closed_world_questions import build_questions


def dump(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")


def generate(out: Path, seed: int = 7) -> None:
    """Writes the three files; the same seed gives the same bytes."""
    rng = random.Random(seed)
    world = build_world(rng)
    entities = [e for kind in world.values() for e in kind]
    for e in entities:
        e.sentences = sentences_for(e, rng)
    rng.shuffle(entities)
    texts = {}
    for i, e in enumerate(entities):
        e.pid = str(i)
        texts[e.pid] = render(e, rng)
    titles = [e.title for e in entities]
    if len(set(titles)) != len(titles):
        raise RuntimeError("titles are not unique")
    questions = build_questions(world, {e.pid: e.title + "\n" + texts[e.pid] for e in entities}, rng)
    out.mkdir(parents=True, exist_ok=True)
    dump(out / "corpus.jsonl", [dict(id=e.pid, contents=f'"{e.title}"\n{texts[e.pid]}') for e in entities])
    for split, rows in questions.items():
        dump(out / f"{split}.jsonl", rows)


def check(folder: Path) -> dict[str, Any]:
    """Verifies the files and returns their figures.

    Raises:
        AssertionError: if a guarantee does not hold.
    """

    def read(name: str) -> list[dict[str, Any]]:
        with (folder / name).open(encoding="utf-8") as handle:
            return [json.loads(line) for line in handle]

    corpus, train, test = read("corpus.jsonl"), read("train.jsonl"), read("test.jsonl")
    contents = {d["id"]: d["contents"] for d in corpus}
    assert [d["id"] for d in corpus] == [str(i) for i in range(len(corpus))]
    words = [len(d["contents"].split("\n", 1)[1].split()) for d in corpus]
    assert 40 <= min(words) and max(words) <= 90, (min(words), max(words))
    rows = train + test
    assert len({r["question"] for r in rows}) == len(rows), "duplicate questions"
    kinds: dict[str, int] = {}
    for r in rows:
        meta = r["metadata"]
        kinds[meta["type"]] = kinds.get(meta["type"], 0) + 1
        support = [contents[i] for i in meta["supporting_ids"]]
        for answer in r["golden_answers"]:
            assert any(answer in s for s in support), (r["id"], answer)
        if meta["type"] == "bridge":
            first, second = support
            assert meta["bridge"] in first and meta["bridge"] in second, r["id"]
            assert all(a in second for a in r["golden_answers"]), r["id"]
            assert not any(a in first for a in r["golden_answers"]), r["id"]
    return dict(
        passages=len(corpus),
        words_min=min(words),
        words_max=max(words),
        words_mean=round(sum(words) / len(words), 1),
        train=len(train),
        test=len(test),
        types=kinds,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder to write the three files into")
    parser.add_argument("--check", type=Path, help="folder whose files are to be verified")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args(arguments)
    if args.out:
        generate(args.out, args.seed)
    for folder in {p for p in (args.out, args.check) if p}:
        print(json.dumps(check(folder), indent=2))


if __name__ == "__main__":
    main()
