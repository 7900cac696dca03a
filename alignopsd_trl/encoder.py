"""The frozen sentence encoder, which makes unit vectors of texts for correspondence and for retrieval of skills (method
facts C.11)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from alignopsd_trl.common.offline import OFFLINE_ENCODER, minilm

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MAX_TOKENS = 4096
_PADDING = 32  # each text is padded to its next multiple of this, so that its row does not depend on other texts
_TOKENS_PER_PASS = 16384
_LEXICAL_WIDTH = 1024
SHIPPED_ENCODERS = ("tiny", "tiny_situated")
_SHIPPED = Path(__file__).parent / "data" / "encoders"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Encoder:
    """Encodes texts as unit vectors. Made by `load_encoder`.

    Args:
        encode: function of n distinct texts, none empty; returns an ``(n, D)`` array.
        name: for results and messages.
        device: of the returned rows; the CPU by default.
        checksum: computes `revision` at its first use.
        semantic: whether texts without a common word can be similar; `False` for the lexical encoder.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], Any],
        name: str,
        device: torch.device | str | None = None,
        checksum: Callable[[], str] = str,
        semantic: bool = True,
    ):
        self._encode, self._checksum = encode, checksum
        self.name, self.semantic = name, semantic
        self.device = torch.device(device or "cpu")
        self._width: int | None = None

    @property
    def width(self) -> int:
        """The width D; encodes a probe if no text was encoded yet."""
        return self._rows(["width"]).size(1) if self._width is None else self._width

    @cached_property
    def revision(self) -> str:
        """Checksum of the weights; a version for the lexical encoder; empty for a callable."""
        return self._checksum()

    def __call__(self, texts: Sequence[str]) -> torch.Tensor:
        """Encodes n texts, each distinct one once; a run of white space counts as one space.

        Returns:
            ``(n, D)`` float32 on ``device``, L2-normalised; a zero row for an empty or blank text. A row does not
            depend on its companions, up to the rounding of the matrix kernels (about 1e-7).

        Raises:
            ValueError: if the model returns a wrong shape or a value that is not finite.
        """
        tidy = [" ".join(text.split()) for text in texts]
        position = {text: number for number, text in enumerate(dict.fromkeys(text for text in tidy if text))}
        encoded = [self._rows(list(position))] if position else []
        rows = torch.cat([*encoded, torch.zeros(1, self.width, device=self.device)])
        places = [position.get(text, len(rows) - 1) for text in tidy]
        return rows[torch.tensor(places, dtype=torch.int64, device=self.device)]

    def _rows(self, texts: list[str]) -> torch.Tensor:
        rows = torch.as_tensor(self._encode(texts)).detach().to(self.device, torch.float32)
        if rows.ndim != 2 or rows.shape[0] != len(texts) or self._width not in (None, rows.shape[1]):
            raise ValueError(
                f"encoder {self.name!r} returned shape {tuple(rows.shape)} for {len(texts)} texts; "
                f"return ({len(texts)}, {self._width or 'D'})"
            )
        if not rows.isfinite().all():
            bad = int((~rows.isfinite().all(dim=1)).nonzero()[0])
            raise ValueError(
                f"encoder {self.name!r} returned a value that is not finite for the text {texts[bad][:80]!r}; "
                "use another encoder or load it in float32"
            )
        self._width = rows.shape[1]
        return normalize(rows, dim=1)


def load_encoder(
    spec: str | Callable[[list[str]], Any] | SentenceTransformer | Encoder, device: torch.device | str | None = None
) -> Encoder:
    """Loads an encoder.

    Args:
        spec: ``"lexical"`` (hashed words and character 4-grams: offline, no weights), ``"tiny"`` (shipped, for
            reasoning traces of WebShop), ``"tiny_situated"`` (shipped, for those of trips, hops and pairs),
            ``"minilm"`` (all-MiniLM-L6-v2, with the extra ``offline``), a folder with a sentence-transformers model, a
            Hub id ``owner/name`` (downloaded unless it is in the local cache), a loaded `SentenceTransformer`, or a
            function from n strings to an ``(n, D)`` array. An `Encoder` is returned unchanged.
        device: of the model and the returned rows; the CPU by default.

    Raises:
        ValueError: for a specification that is none of these, and if the model can't be loaded.
    """
    if isinstance(spec, Encoder):
        return spec
    if spec == "lexical":
        return Encoder(_lexical(), "lexical", device, lambda: f"1-{_LEXICAL_WIDTH}", semantic=False)
    if isinstance(spec, str):
        return _frozen(_load_weights(spec, device), spec, device)
    if isinstance(spec, torch.nn.Module):
        from sentence_transformers import SentenceTransformer

        if not isinstance(spec, SentenceTransformer):
            raise ValueError(f"encoder of type {type(spec).__name__} is no SentenceTransformer; {_CHOICES}")
        return _frozen(spec, spec.model_card_data.base_model or type(spec).__name__, device)
    if callable(spec):
        return Encoder(spec, getattr(spec, "name", None) or getattr(spec, "__qualname__", type(spec).__name__), device)
    raise ValueError(f"encoder={spec!r} is unknown; {_CHOICES}")


_CHOICES = (
    f"use 'lexical', {', '.join(map(repr, (*SHIPPED_ENCODERS, OFFLINE_ENCODER)))}, a Hub id 'owner/name' of a "
    "sentence-transformers model, the path of a folder with one, a loaded SentenceTransformer, or a function from a "
    "list of n strings to an (n, D) array"
)


def check_encoder(spec: str) -> str:
    """Describes an encoder without loading it.

    Raises:
        ValueError: for a folder without a sentence-transformers model, and for neither a folder nor a Hub id.
    """
    if spec == "lexical":
        return "lexical, no weights"
    if spec in SHIPPED_ENCODERS:
        return f"{spec}, comes with the package"
    if spec == OFFLINE_ENCODER:
        return f"{spec}, {minilm()}"
    folder = Path(spec).expanduser()
    if folder.is_dir() and not (folder / "modules.json").is_file():
        raise ValueError(
            f"encoder={spec!r}: the folder holds no sentence-transformers model (no modules.json); "
            "name one that does, or 'lexical'"
        )
    if not folder.is_dir() and not _HUB_ID.fullmatch(spec):
        raise ValueError(f"encoder={spec!r} is neither an existing folder nor a Hub id 'owner/name'; {_CHOICES}")
    return f"{spec}, {'a local folder' if folder.is_dir() else 'from the Hub or its local cache'}"


def _lexical() -> Callable[[list[str]], torch.Tensor]:
    """Makes the lexical encoding: half of the columns hash words and word pairs, half character 4-grams. Signed hashes
    of unrelated features cancel on average, so that unrelated texts have cosines near 0."""
    from sklearn.feature_extraction.text import HashingVectorizer

    half = {"n_features": _LEXICAL_WIDTH // 2, "alternate_sign": True, "norm": "l2"}
    words = HashingVectorizer(ngram_range=(1, 2), stop_words="english", token_pattern=r"(?u)\b\w+\b", **half)
    characters = HashingVectorizer(analyzer="char_wb", ngram_range=(4, 4), **half)

    def encode(texts: list[str]) -> torch.Tensor:
        parts = [torch.from_numpy(part.transform(texts).toarray()) for part in (words, characters)]
        return torch.cat(parts, dim=1)

    return encode


def _load_weights(spec: str, device: torch.device | str | None) -> SentenceTransformer:
    check_encoder(spec)
    shipped = _SHIPPED / spec if spec in SHIPPED_ENCODERS else Path(spec).expanduser()
    folder = minilm() if spec == OFFLINE_ENCODER else shipped
    is_folder = folder.is_dir()
    from sentence_transformers import SentenceTransformer

    try:
        return SentenceTransformer(
            str(folder) if is_folder else spec,
            device=str(device or "cpu"),
            local_files_only=is_folder,
            model_kwargs={"dtype": torch.float32},
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"encoder={spec!r} can't be loaded ({type(error).__name__}: {error}). Fetch it on a machine with network "
            f"access (`hf download {spec} --local-dir FOLDER`) and pass encoder=FOLDER, or use encoder='lexical', "
            "which needs no weights"
        ) from error


def _frozen(model: SentenceTransformer, name: str, device: torch.device | str | None) -> Encoder:
    """Freezes a model, without instruction prefix and with right truncation. Pooling follows the model's own files."""
    model.eval().requires_grad_(False).to(torch.device(device or "cpu"))
    model.default_prompt_name = None
    model.max_seq_length = min(MAX_TOKENS, model.max_seq_length or MAX_TOKENS)
    model.tokenizer.truncation_side = "right"
    if "qwen" in getattr(model[0].config, "model_type", "").lower():
        model.tokenizer.padding_side = "left"

    def checksum() -> str:
        digest = hashlib.sha256()
        for parameter in model.state_dict().values():
            digest.update(parameter.cpu().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()[:12]

    return Encoder(lambda texts: _by_length(model, texts), name, device, checksum)


def _by_length(model: SentenceTransformer, texts: list[str]) -> torch.Tensor:
    """Encodes texts in groups of equal padded length, so that a row's padding does not depend on other texts."""
    tokens = model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    padded = torch.tensor([-(-max(len(ids), 1) // _PADDING) * _PADDING for ids in tokens])
    order, groups = [], []
    for length in padded.unique().tolist():
        chosen = (padded == length).nonzero().flatten().tolist()
        with torch.autocast(model.device.type, enabled=False):
            group = model.encode(
                [texts[number] for number in chosen],
                batch_size=max(1, _TOKENS_PER_PASS // length),
                show_progress_bar=False,
                convert_to_tensor=True,
                processing_kwargs={"text": {"pad_to_multiple_of": _PADDING}},
            )
        order += chosen
        groups.append(group.float())
    return torch.cat(groups)[torch.tensor(order).argsort().to(model.device)]
