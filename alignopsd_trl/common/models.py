"""Finds policies by name (shipped weights, SmolLM2 from its package) and loads their tokenizers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from alignopsd_trl.common.files import whole_json
from alignopsd_trl.common.offline import OFFLINE_MODEL, smollm2

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DATA = Path(__file__).parents[1] / "data"
_TASKS = ("tiny_trips", "tiny_hops", "tiny_alfworld", "tiny_pairs", "tiny_searchqa")
SHIPPED_MODELS = {"tiny": _DATA / "tiny_webshop", **{name: _DATA / name for name in _TASKS}}


def resolve_model(name: str) -> str:
    """Returns the path of a shipped model (a key of `SHIPPED_MODELS`) or of ``"smollm2"``. Any other name is a path or
    a hub id and comes back unchanged. Raises `ValueError` for ``"smollm2"`` without its package."""
    if name == OFFLINE_MODEL:
        return str(smollm2())
    return str(SHIPPED_MODELS[name]) if name in SHIPPED_MODELS else name


def check_model_name(name: str) -> None:
    """Raises `ValueError` if a name is no folder, no shipped policy and no possible Hub id."""
    if not name or name in SHIPPED_MODELS or Path(name).expanduser().is_dir():
        return
    if not _HUB_ID.fullmatch(name):
        raise ValueError(
            f"model={name!r} is no folder, no shipped policy ({', '.join(SHIPPED_MODELS)}) and no Hub id "
            "'owner/name'; correct the path, or make a first policy of your task there (alignopsd warm_start)"
        )


ADAPTER = "adapter_config.json"


def base_of(name: str) -> str | None:
    """Returns the model under the adapter of a folder, of a LoRA run or of a checkpoint in it: a folder or a Hub id.
    `None` for whole weights, and for a Hub id. Raises `ValueError` if the folder names no base, or one that is neither
    here nor a possible Hub id."""
    folder = Path(resolve_model(name)).expanduser()
    if not (folder / ADAPTER).is_file():
        return None
    base = (whole_json(folder / ADAPTER) or {}).get("base_model_name_or_path")
    told = f"model={name!r} is an adapter, and its base {base!r} in {ADAPTER}"
    if not (base and isinstance(base, str)):
        raise ValueError(f"{told} is not named; write the base's folder or Hub id there")
    shipped = [path for path in SHIPPED_MODELS.values() if Path(base).parts[-2:] == path.parts[-2:]]  # elsewhere
    near = [above / base for above in (folder.absolute(), *folder.absolute().parents)]
    found = next((one for one in (Path(resolve_model(base)).expanduser(), *near, *shipped) if one.is_dir()), None)
    if found is None and not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", base):
        raise ValueError(f"{told} is not here; bring it back, or write its place there")
    if found is not None and (found / ADAPTER).is_file():
        raise ValueError(f"{told} is an adapter too; merge it (peft's merge_and_unload) and save the whole model there")
    return base if found is None else str(found)


def with_adapter(model: PreTrainedModel, name: str, trains: bool = False) -> PeftModel:
    """Puts the adapter of a folder on its base. Raises `ValueError` if it is unreadable or of another base."""
    from peft import PeftModel

    folder = Path(resolve_model(name)).expanduser()
    with unreadable(folder, "adapter"), warnings.catch_warnings():
        warnings.filterwarnings("error", "Found missing adapter keys")
        adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=trains)
        if adapted.active_peft_config.is_prompt_learning:
            raise ValueError("it is of learnt prompts, which turn rows can't carry; train a LoRA adapter")
        again = adapted.load_adapter(str(folder), "default", is_trainable=trains)  # says more
        if again.unexpected_keys:
            raise ValueError(f"it holds {again.unexpected_keys[0]}, and its base has no such layer")
    adapted.active_peft_config.base_model_name_or_path = model.name_or_path  # as found, for the folder that is saved
    return adapted


@contextmanager
def available(name: str, adapter: str | None = None) -> Generator[None]:
    """Replaces an error of transformers about a model that is neither on this machine nor on the Hub by one sentence.
    With ``adapter``, the name is that of its base. Raises `ValueError` in place of an `OSError`, unless the name is a
    folder's."""
    try:
        yield
    except OSError as error:
        if Path(resolve_model(name)).is_dir():
            raise
        reason, shipped = str(error).strip().splitlines()[0], ", ".join(SHIPPED_MODELS)
        said = f"--model {name}" if adapter is None else f"model={adapter!r} is an adapter, and its base {name!r}"
        raise ValueError(f"{said} is no folder and no shipped policy ({shipped}), and as a Hub id: {reason}") from error


@contextmanager
def unreadable(path: str | Path, file: str) -> Generator[None]:
    """Raises `ValueError`, with one sentence, in place of any error of transformers about a model's file."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()[:60]) or "nothing more is known"
        raise ValueError(
            f"model={str(path)!r}: its {file} can't be used ({type(error).__name__}: {reason}); correct "
            "it, or copy the model again"
        ) from error


def end_ids(model: PreTrainedModel, own: int) -> list[int]:
    """Returns the tokens that end a response: the tokenizer's ``own`` and those of the model's generation config.
    Raises `TypeError` if the generation config names anything but token ids."""
    declared: Any = model.generation_config.eos_token_id
    found = {own, *(declared if isinstance(declared, list) else [] if declared is None else [declared])}
    if strange := [one for one in found if type(one) is not int]:
        raise TypeError(f"eos_token_id has {strange[0]!r}, which is no token's number")
    return sorted(found)


def load_tokenizer(
    path: str, model: PreTrainedModel, kwargs: Mapping[str, Any] = MappingProxyType({}), **options: Any
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer of a folder or hub id for a policy, by options of transformers. Without a padding token it
    pads with its end token, as in TRL; ``kwargs`` are the chat template's. Raises `ValueError` if it can't be read, has
    no chat template or end token, if its template fails, or if it has a token that the model does not embed."""
    from transformers import AutoTokenizer

    with unreadable(path, "tokenizer"):
        tokenizer: Any = AutoTokenizer.from_pretrained(path, **options)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the tokenizer of {path} has no chat template, which prompts are made with: take a model with one, or set "
            "tokenizer.chat_template and save it there"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {path} has no eos_token, which ends a turn: set tokenizer.eos_token")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    embedded = model.get_input_embeddings().num_embeddings
    if tokenizer.pad_token_id >= embedded:
        raise ValueError(
            f"the tokenizer of {path} pads with {tokenizer.pad_token!r}, token {tokenizer.pad_token_id}, and its model "
            f"embeds {embedded} tokens: call model.resize_token_embeddings(len(tokenizer)), or set a pad_token that it "
            "knows, and save both there"
        )
    with unreadable(path, "chat template"):
        shown = tokenizer.apply_chat_template(
            [{"role": "user", "content": "a task"}], add_generation_prompt=True, return_dict=True, **kwargs
        )["input_ids"]
        if not shown:
            raise ValueError("it writes nothing of a prompt that the tokenizer knows")
    # special tokens, as of pictures, may go beyond: no text is encoded to them
    added = [number for number, token in tokenizer.added_tokens_decoder.items() if not token.special]
    if max(tokenizer.vocab_size - 1, tokenizer.eos_token_id, *shown, *added) >= embedded:
        raise ValueError(
            f"the tokenizer of {path} knows {len(tokenizer)} tokens, and its model embeds {embedded}: call "
            "model.resize_token_embeddings(len(tokenizer)), and save both there"
        )
    return tokenizer
