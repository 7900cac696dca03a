from __future__ import annotations

import pytest
import torch

from alignopsd_trl.encoder import Encoder, load_encoder

TEXTS = ["find a red shirt", "open the fridge", "which film came first", "find a blue shirt and a pair of long socks"]


class Counting:
    """A callable encoder that remembers what it was asked for."""

    name = "counting"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: list[str]) -> torch.Tensor:
        self.seen += texts
        return torch.tensor([[float(len(text)), 1.0, 2.0] for text in texts])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny last-token Qwen2 sentence encoder with random weights, saved as sentence-transformers do."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from tokenizers import ByteLevelBPETokenizer
    from transformers import Qwen2Config, Qwen2Model, Qwen2Tokenizer

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("encoder")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TEXTS, vocab_size=400, min_frequency=1, special_tokens=["<|endoftext|>"])
    (root / "body").mkdir()
    trained.save_model(str(root / "body"))
    files = [str(root / "body" / name) for name in ("vocab.json", "merges.txt")]
    Qwen2Tokenizer(*files, pad_token="<|endoftext|>").save_pretrained(root / "body")
    config = Qwen2Config(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8192,
    )
    Qwen2Model(config).to(torch.bfloat16).save_pretrained(root / "body")
    body = Transformer(str(root / "body"))
    model = SentenceTransformer(
        modules=[body, Pooling(32, pooling_mode="lasttoken")],
        prompts={"query": "Instruct: retrieve "},
        default_prompt_name="query",
    )
    model.save(str(root / "whole"))
    return str(root / "whole")


def test_rows_are_unit_vectors_and_blank_texts_are_zero_rows_without_a_forward_pass() -> None:
    backend = Counting()
    rows = load_encoder(backend)(["a b", "", "a  \n b", "longer", " \t "])
    assert rows.shape == (5, 3) and rows.dtype == torch.float32
    assert backend.seen == ["a b", "longer"]
    assert torch.equal(rows[0], rows[2])
    assert torch.equal(rows.norm(dim=1) > 0, torch.tensor([True, False, True, True, False]))
    assert torch.allclose(rows[[0, 2, 3]].norm(dim=1), torch.ones(3))


@pytest.mark.full
def test_only_blank_texts_still_have_the_width_of_the_encoder() -> None:
    assert torch.equal(load_encoder(Counting())(["", " "]), torch.zeros(2, 3))
    assert load_encoder("lexical")([]).shape == (0, load_encoder("lexical").width)


def test_lexical_is_deterministic_and_unrelated_texts_are_nearly_orthogonal() -> None:
    encoder = load_encoder("lexical")
    rows = encoder(TEXTS)
    assert torch.equal(rows, load_encoder("lexical")(TEXTS))
    cosines = rows @ rows.T
    assert cosines[0, 1].abs() < 0.1 and cosines[0, 2].abs() < 0.1 and cosines[1, 2].abs() < 0.1
    assert cosines[0, 3] > 0.2
    assert encoder("the click[b1]".split()).norm(dim=1).gt(0).all()
    assert (encoder.name, encoder.revision) == ("lexical", "1-1024")


def test_lexical_rows_do_not_depend_on_companions() -> None:
    encoder = load_encoder("lexical")
    alone = torch.cat([encoder([text]) for text in TEXTS])
    assert torch.equal(encoder(TEXTS), alone)
    assert torch.equal(encoder(TEXTS[::-1]).flip(0), alone)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lexcial", "'lexcial' is neither an existing folder nor a Hub id"),
        ("/no/such/folder", "neither an existing folder"),
        (7, "encoder=7 is unknown"),
        (torch.nn.Linear(1, 1), "Linear is no SentenceTransformer"),
    ],
)
def test_unknown_specifications_are_refused(spec: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_encoder(spec)


def test_missing_weights_say_what_to_do(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no modules.json.*'lexical'"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda texts: torch.zeros(len(texts) + 1, 2), r"returned shape \(3, 2\) for 2 texts"),
        (lambda texts: torch.zeros(len(texts)), r"returned shape \(2,\)"),
        (lambda texts: torch.tensor([[1.0], [float("nan")]]), "not finite for the text 'second'"),
    ],
)
def test_a_bad_callable_is_named(output: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_encoder(output)(["first", "second"])


def test_an_encoder_passes_through() -> None:
    encoder = load_encoder(Counting())
    assert load_encoder(encoder) is encoder and isinstance(encoder, Encoder) and encoder.name == "counting"


def test_sentence_transformers_folder_is_frozen_and_unprompted(folder: str) -> None:
    from sentence_transformers import SentenceTransformer

    encoder = load_encoder(folder)
    plain = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": torch.float32})
    expected = plain.encode(TEXTS, prompt="", normalize_embeddings=True, convert_to_tensor=True)
    assert torch.allclose(encoder(TEXTS), expected, atol=1e-5)
    prompted = plain.encode(TEXTS, normalize_embeddings=True, convert_to_tensor=True)
    assert not torch.allclose(encoder(TEXTS), prompted, atol=1e-3)
    assert not encoder(TEXTS).requires_grad and not encoder(TEXTS).is_inference()
    assert len(encoder.revision) == 12 and encoder.revision == load_encoder(plain).revision


def test_sentence_transformers_rows_do_not_depend_on_companions(folder: str) -> None:
    encoder = load_encoder(folder)
    texts = [*TEXTS, " ".join(TEXTS * 5)]
    alone = torch.cat([encoder([text]) for text in texts])
    assert torch.allclose(encoder(texts), alone, atol=1e-6)
    assert torch.allclose(encoder(texts[::-1]).flip(0), alone, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.allclose(encoder(texts), alone, atol=1e-6)


def test_long_texts_are_cut_on_the_right(folder: str) -> None:
    encoder = load_encoder(folder)
    kept = encoder([f"{'red ' * 4000}{word}" for word in ("red", "shirt")])
    cut = encoder([f"{'red ' * 5000}{word}" for word in ("red", "shirt")])
    assert not torch.allclose(kept[0], kept[1], atol=1e-3)
    assert torch.allclose(cut[0], cut[1], atol=1e-6)


def test_the_shipped_encoder_is_small_and_tells_what_is_chosen_from_what_is_missing() -> None:
    from alignopsd_trl.encoder import _SHIPPED

    assert sum(file.stat().st_size for file in (_SHIPPED / "tiny").rglob("*")) <= 2 * 2**20
    encoder = load_encoder("tiny")
    assert encoder.semantic and encoder.revision == load_encoder("tiny").revision
    bought, same, early = encoder(
        [
            "this is linen slim fit coat at 18.0 ; chosen large , red ; missing nothing ; limit 40.00 ; so buy",
            "the page shows linen slim fit coat at 18.0 ; still open nothing ; picked large , red ; so buy",
            "this is linen slim fit coat at 18.0 ; chosen large ; missing red ; limit 40.00 ; so buy",
        ]
    )
    assert bought @ same > 0.8 > bought @ early
