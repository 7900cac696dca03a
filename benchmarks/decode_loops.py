"""Thinking of a recorded round sampled four ways: the project's own loop, and three that transformers has.

    own         `alignopsd_trl.sampling.loop.LoopSampler`
    dynamic     ``generate``
    static      ``generate`` with ``cache_implementation="static"``
    continuous  ``generate_batch``, continuous batching over a paged cache, of a stated size

    python benchmarks/decode_loops.py --recording rounds.pt --output decode_loops.json

A recording is what `update_cost.py --recording` writes. One thread, processor seconds; every way samples its own
tokens, so compare tokens a second. A way that does not run is written down with its error.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from recording import load
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.sampling.loop import LoopSampler
from alignopsd_trl.scoring.ragged import Ragged


def ways(model: Any, prompts: list[list[int]], end: int, pad: int, limit: int) -> dict[str, Callable]:
    """Name to a function that gives the number of sampled tokens."""
    settings = dict(do_sample=True, top_k=0, top_p=1.0, temperature=1.0, eos_token_id=end, pad_token_id=pad)
    settings["max_new_tokens"] = limit

    def own() -> int:
        found, _ = LoopSampler(model, 1.0, limit, [end], pad).sample(prompts)
        return sum(map(len, found))

    def generate(cache: str | None) -> int:
        ids, mask = Ragged.of(prompts).padded(torch.arange(len(prompts)), pad, "left")
        config = GenerationConfig(**settings, cache_implementation=cache)
        with torch.no_grad():
            found = model.generate(input_ids=ids, attention_mask=mask.long(), generation_config=config)
        ended = (found[:, ids.size(1) :] == end).cumsum(1)
        return int((ended == 0).sum() + (ended > 0).any(1).sum())

    def continuous() -> int:
        found = model.generate_batch(
            inputs=prompts,
            generation_config=GenerationConfig(**settings),
            continuous_batching_config=ContinuousBatchingConfig(num_blocks=512, max_batch_tokens=2048),
        )
        if len(found) != len(prompts):
            raise RuntimeError(f"{len(found)} of {len(prompts)} requests came back")
        return sum(len(one.generated_tokens) for one in found.values())

    return {
        "own": own,
        "dynamic": lambda: generate(None),
        "static": lambda: generate("static"),
        "continuous": continuous,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--recipe", default="webshop_tiny", help="that the recording is of")
    parser.add_argument("--model", default="tiny", help="that plays the recipe")
    parser.add_argument("--prompts", type=int, default=64, help="of the last recorded round's thinking")
    parser.add_argument("--tokens", type=int, default=32, help="a response, at most")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    one = load(options.recording, options.recipe)[-1]
    path = resolve_model(options.model)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    model.load_state_dict(one["weights"], strict=False)
    prompts = [list(prompt) for prompt, _ in one["thinking"][: options.prompts]]
    every = ways(model, prompts, tokenizer.eos_token_id, tokenizer.pad_token_id, options.tokens)
    rates: dict[str, list[float]] = {name: [] for name in every}
    errors: dict[str, str] = {}
    for repeat in range(options.repeats + 1):
        for name, run in every.items():
            if name in errors:
                continue
            torch.manual_seed(repeat)
            begin = time.process_time()
            try:
                tokens = run()
            except Exception as error:  # what another version of transformers raises here is what is asked
                errors[name] = f"{type(error).__name__}: {error}"[:500]
                continue
            if repeat:  # the first warms up
                rates[name].append(tokens / (time.process_time() - begin))
    result = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "prompts": len(prompts),
        "tokens_a_second": {name: statistics.median(found) for name, found in rates.items() if found},
        "range": {name: [min(found), max(found)] for name, found in rates.items() if found},
        "errors": errors,
    }
    options.output.write_text(json.dumps(result, indent=1), encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
