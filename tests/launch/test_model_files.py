"""What a model's files say without its weights, and what a plan says of settings that do not suit it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from alignopsd_trl.commands.cli import main
from alignopsd_trl.commands.launch.model_files import config_file, thinking, thinking_by
from alignopsd_trl.commands.launch.presets import preset, preset_names, shipped_name

ROOT = Path(__file__).parents[2]
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\\n"
CHOICE = "{% if enable_thinking is false %}<think>\\n\\n</think>\\n\\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "thinks"),
    [
        (f"{ASKED}{CHOICE}{{% endif %}}", "by choice"),
        (f"{ASKED}{{% if enable_thinking is true %}}<think>{{% endif %}}{{% endif %}}", "no"),  # off unless asked for
        (f"{ASKED}<think>\\n{{% endif %}}", "always"),
        (f"{ASKED}<think>\\n\\n</think>{{% endif %}}", "no"),
        (f"{{{{ reasoning_effort }}}}{ASKED}{{% endif %}}", "always"),
        (f"{ASKED}{{% endif %}}", "no"),
    ],
)
def test_the_chat_template_says_whether_a_model_thinks(template: str, thinks: str) -> None:
    assert thinking_by(template) == thinks


def test_a_models_files_are_asked_before_its_kind(tmp_path: Path) -> None:
    assert [thinking(str(tmp_path), kind) for kind in ("qwen3", "qwen2")] == ["by choice", "no"]
    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": ASKED}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert thinking(str(tmp_path), "qwen3") == "no"
    (tmp_path / "chat_template.jinja").write_text(CHOICE)
    assert thinking(str(tmp_path), "qwen2") == "by choice"


def test_a_base_model_without_a_chat_template_is_refused_where_it_is_first_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no chat template.*tuned to follow instructions"):
        thinking(str(tmp_path), "qwen2")


def test_a_model_that_is_not_here_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not reached; fetch it.*hf download nobody/nothing.*local folder"):
        config_file("nobody/nothing")
    with pytest.raises(ValueError, match="it holds no config.json"):
        config_file(str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("webshop_3b --use_peft --dtype bfloat16", ["learning_rate=1e-06 is a full model's", "1e-05"]),
        ("webshop_3b --learning_rate 1e-5", ["learning_rate=1e-05 is an adapter's", "a full model's is 1e-06"]),
        ("webshop_3b", []),
        ("webshop_1_5b", []),
        ("hops_1_5b", []),
        ("webshop_tiny", []),
        (
            "webshop_tiny --model Qwen/Qwen3-4B --use_peft",
            [
                "use_cpu=True",
                "bf16=False",
                "gradient_checkpointing=False",
                "learning_rate=0.00015",
                "cuts the thoughts",
            ],
        ),
        ("webshop_1_5b --model Qwen/Qwen3-1.7B", ["max_completion_length=256 cuts the thoughts", "enable_thinking"]),
    ],
)
def test_a_plan_names_settings_that_do_not_suit_the_model(
    flags: str, told: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", *flags.split(), "--plan", "--gpu_gib", "80", "--output_dir", str(tmp_path / "run")])
    said = " ".join(capsys.readouterr().out.split())
    assert all(word in said for word in told)
    assert ("NOTE on the model" in said) is bool(told)


def test_every_recipe_that_a_page_names_is_known() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "recipes").glob("*.py")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = set(re.findall(r"alignopsd (?:train|measure) ([a-z]\w*)", text)) - {"maze"}
    files = set(re.findall(r"recipes[/.](\w+)(?:\.py)?\b(?![/.]\w)", text)) - {"accelerate", "studies"}
    assert named <= set(preset_names())
    assert {shipped_name(f"recipes/{name}.py") for name in files} <= set(preset_names())
    assert len(named | files) > 15


@pytest.mark.parametrize("name", ["webshop_1_5b", "webshop_1.5b", "recipes/webshop_1_5b.py"])
def test_a_recipe_is_known_by_its_file_and_its_module(name: str) -> None:
    assert shipped_name(name) == shipped_name("alignopsd_trl.recipes.webshop_1_5b") == "webshop_1_5b"
    assert preset(shipped_name(name))["model_name_or_path"].endswith("1.5B-Instruct")
    assert shipped_name("my.own") == "my.own"
