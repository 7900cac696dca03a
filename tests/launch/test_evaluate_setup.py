"""``alignopsd evaluate`` refuses, before it plays, what a training run would refuse."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from alignopsd_trl.commands.launch import evaluate
from alignopsd_trl.commands.own_task.commands import check, demonstrate, new
from alignopsd_trl.common.errors import UserError
from alignopsd_trl.common.models import SHIPPED_MODELS

SHORT = ["--environment", "webshop_tiny", "--limit", "2", "--device", "cpu"]
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DROPS = "{% for one in messages %}<|im_start|>{{ one.role }}\n<|im_end|>\n{% endfor %}" + ASKS
REVERSES = DROPS.replace("\n<|im_end|>", "\n{{ one.content[::-1] }}<|im_end|>", 1)


def _refused(flags: list[str]) -> str:
    with pytest.raises(UserError) as error:
        evaluate.main([*flags, *SHORT])
    return str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature", "1e-300"], "temperature=1e-300 must be 0.001 or more"),
        (["--temperature", "nan"], "temperature=nan must be a finite number"),
        (["--temperature", "-1"], "temperature=-1.0 must be 0.001 or more"),
        (["--max_completion_length", "1000000"], "max_completion_length=1000000 is not less than the model's 1024"),
        (["--top_p", "2"], "top_p=2.0 must lie in [0, 1]"),
        (["--seed", "-1"], "seed=-1 must lie in"),
        (["--chat_template_kwargs", "x"], "chat_template_kwargs='x' is no JSON"),
    ],
)
def test_an_option_out_of_range_is_refused_as_in_training(flags: list[str], message: str) -> None:
    assert message in _refused(["--model", "tiny", *flags])


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (evaluate.main, ["--skill_bank", "webshop"], "--skill_bank webshop is read with --skills alone"),
        (evaluate.main, ["--encoder", "tiny"], "--encoder tiny is read with --skills alone"),
        (evaluate.main, ["--panel", ""], "--panel is empty"),
        (evaluate.main, ["--environment_options="], "--environment_options is empty"),
        (demonstrate, ["webshop_tiny", "--temperature", "0.5"], "--temperature 0.5 is read with --endpoint alone"),
        (demonstrate, ["webshop_tiny", "--endpoint_model", "x"], "--endpoint_model x is read with --endpoint alone"),
        (demonstrate, ["webshop_tiny", "--endpoint", "http://h", "--player", "a:b"], "not allowed with argument"),
        (demonstrate, ["webshop_tiny", "--seed", str(2**70)], "must be 0 or more, and below 2**32"),
        (new, ["my_world", "--seen", "a:b"], "--seen a:b is read with --gymnasium alone"),
        (check, ["webshop_tiny", "--model", " "], "--model is empty"),
        (check, ["webshop_tiny", "--max_completion_length", "-4"], "--max_completion_length -4 must be 1 or more"),
    ],
)
def test_an_argument_that_would_not_be_read_is_refused(
    command: Callable, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        command([*(["--model", "tiny", *SHORT] if command is evaluate.main else []), *words])
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize("template", [DROPS, REVERSES, None], ids=["drops", "reverses", "no tokenizer_config"])
def test_a_policy_whose_prompts_would_be_other_ones_is_refused(template: str | None, tmp_path: Path) -> None:
    shutil.copytree(SHIPPED_MODELS["tiny"], tmp_path / "model")
    if template is None:
        (tmp_path / "model" / "tokenizer_config.json").unlink()
    else:
        (tmp_path / "model" / "chat_template.jinja").write_text(template)
    told = "drops or cuts the text of the user's message" if template else "holds no tokenizer_config.json"
    assert told in _refused(["--model", str(tmp_path / "model")])


def test_actions_that_are_nearly_all_invalid_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main(["--model", "tiny_searchqa", *SHORT])
    assert "of the actions are invalid" in capsys.readouterr().err
    evaluate.main(["--model", "tiny", *SHORT])
    assert "of the actions are invalid" not in capsys.readouterr().err
