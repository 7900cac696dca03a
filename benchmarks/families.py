"""Trains a tiny policy of random weights of each model family and writes the page of what was tried.

    python benchmarks/families.py docs/families.md

Two rounds of `align_opsd` on a toy game (window and conversation) and on tools in the chat template's own format; all
log-probs against forwards without padding; an evaluation; a model saved and loaded; a run resumed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.families import FAMILIES, makes_calls, save_family, try_family  # noqa: E402

PAGE = """# Model families

Each family was trained as a tiny policy: random weights, two layers, a byte-level tokenizer, TRL's own copy of the
chat template (else ChatML). No real checkpoint was tried. In windows and in conversations two rounds of `align_opsd`
ended, an evaluation played, the saved model loaded again and the run resumed; no log-prob was further than
{most:.0e} from a forward without padding. *None*: the template has no tools.

`python benchmarks/families.py docs/families.md` makes this page.

| family | class | template | native calls |
| --- | --- | --- | --- |
"""
NOTES = """
- Mixtures of experts with a balancing loss need `router_aux_loss_coef=0.0`.
- DeepSeek-V3 needs `format="text"`: neither its tokenizer nor TRL reads its native calls.
- Only Llama, Qwen2 and Qwen3 encode a shared prompt once; the others sample by transformers' `generate` without vLLM.
- Where the encoding of positions changes with the row's length (`longrope`, dynamic RoPE), or positions are learned
  (GPT-2), `max_prompt_length` and the longest response must stay within the positions that the model was made for.
  Conversations with `longrope` need `merge_rows=False`.
- Of a model's own `generation_config` only the end tokens are taken.
"""


def tried(policy: Path, folder: Path, kind: str, differences: list[float]) -> str:
    """Returns what a cell says: *yes*, or why not."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            found = try_family(policy, folder, kind)
        except Exception as error:  # the table says what any family ends with
            print(f"{folder}: {type(error).__name__}: {error}", file=sys.stderr)
            return f"no: {type(error).__name__}"
    differences.append(found["log-probs"])
    if found["log-probs"] > 1e-4:
        return "log-probs differ"
    return "yes" if kind != "calls" or found["calls"] else "no call was read"


def main(page: Path) -> None:
    lines, differences = [], list[float]()
    for name, family in FAMILIES.items():
        with tempfile.TemporaryDirectory() as place:
            policy = Path(place) / "policy"
            save_family(family, policy)
            for kind in ("window", "conversation"):
                if (found := tried(policy, Path(place) / kind, kind, differences)) != "yes":
                    sys.exit(f"{name} in a {kind}: {found}; the page promises that every family trains in it")
            calls = tried(policy, Path(place) / "calls", "calls", differences) if makes_calls(family) else "none"
        shown = [name, f"`{family.config}`", f"`{family.template}`" if family.template else "ChatML", calls]
        lines.append(f"| {' | '.join(shown)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    page.write_text(PAGE.format(most=max(differences)) + "\n".join(lines) + "\n" + NOTES, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Trains each family as a tiny policy and writes the page.")
    parser.add_argument("page", type=Path, help="docs/families.md")
    main(parser.parse_args().page)
