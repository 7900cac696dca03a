"""Records of single tokens: texts that join to the response, gaps that average to the turn's, and a switch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.recorded import RUNS
from fakes.toy import build_tokenizer
from fakes.trainers import make_trainer
from transformers import AutoTokenizer

from alignopsd_trl.commands.viewer.run import read_run, step_content
from alignopsd_trl.common.models import resolve_model
from alignopsd_trl.methods.baseline import token_gaps
from alignopsd_trl.records import TokenTexts, read_records


def frame_of(folder: Path, **options: object):
    make_trainer(folder, save_trajectories=True, **options).train()
    return read_records(folder / "trajectories")


@pytest.mark.parametrize("method", ["align_opsd", "rlsd", "step_opsd"])
@pytest.mark.full
def test_gaps_of_tokens_average_to_the_turns_gap(tmp_path: Path, method: str) -> None:
    frame = frame_of(tmp_path, method=method)
    kinds = ["identity", "rectified"] if method == "align_opsd" else ["identity"]
    for kind in kinds:
        column = frame[f"credit_token_{kind}_gaps"]
        known = frame[column.notna()]
        assert len(known) > 3 and not np.allclose(np.concatenate(list(column.dropna())), 0)
        for row in known.to_dict("records"):
            gaps = row[f"credit_token_{kind}_gaps"]
            assert gaps.dtype == np.float16 and len(gaps) == len(row["token_texts"]) == row["response_tokens"]
            turn = row.get(f"credit_{kind}_gap")
            if turn is not None:
                assert gaps.astype(float).mean() == pytest.approx(turn, abs=2e-3)
    assert ("credit_token_rectified_gaps" in frame) == (method == "align_opsd")


def test_a_method_without_a_teacher_records_texts_alone(tmp_path: Path) -> None:
    frame = frame_of(tmp_path, method="grpo")
    assert not [name for name in frame if name.startswith("credit_token_")]
    for row in frame.itertuples():
        assert "".join(row.token_texts).startswith(row.response) and len(row.token_texts) == row.response_tokens


def test_unscored_and_masked_turns_have_no_gaps() -> None:
    class Batch:
        scored_mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]]).bool()

    gap = torch.tensor([[0.5, -1.0, 9.0], [9.0, 9.0, 9.0], [1.0, 2.0, 3.0]])
    assert list(token_gaps(Batch, identity=gap, rectified=None)) == ["token_identity_gaps"]
    first, second, third = token_gaps(Batch, identity=gap)["token_identity_gaps"]
    assert first.tolist() == [0.5, -1.0] and second is None and third.tolist() == [1.0, 2.0, 3.0]


def test_texts_of_tokens_join_to_the_response() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    ids = tokenizer.encode("<think>a red sandal, size 9</think><action>click[buy now]</action>")
    ids.append(tokenizer.eos_token_id)
    texts = TokenTexts(tokenizer)(ids)
    assert len(texts) == len(ids) and "".join(texts) == tokenizer.decode(ids)
    assert TokenTexts(build_tokenizer())([]) == []


def test_a_character_of_several_tokens_stands_at_the_first() -> None:
    class Bytes:
        """UTF-8 bytes as tokens; like some decoders it strips a blank in front of all."""

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return list(text.encode())

        def decode(self, ids: list[int], **_: object) -> str:
            return bytes(ids).decode("utf-8", errors="replace").removeprefix(" ")

    assert TokenTexts(Bytes())(list(" é€!".encode())) == ["", "é€", "", "", "", "", "!"]


def test_records_of_older_runs_open_as_they_did() -> None:
    frame = read_records(RUNS / "aligned" / "trajectories")
    assert "token_texts" not in frame and "credit_weight" in frame
    turn = step_content(read_run(RUNS / "aligned"), 0)["tasks"][0]["rollouts"][0]["turns"][0]
    assert "token_texts" not in turn


def test_the_page_gets_the_gaps_as_plain_numbers(tmp_path: Path) -> None:
    frame_of(tmp_path, method="align_opsd")
    content = step_content(read_run(tmp_path), 0)
    turns = [turn for task in content["tasks"] for one in task["rollouts"] for turn in one["turns"]]
    shaded = [turn for turn in turns if "token_rectified_gaps" in turn["credit"]]
    assert shaded and all(len(one["token_texts"]) == len(one["credit"]["token_identity_gaps"]) for one in shaded)
    assert all(isinstance(value, float) for turn in shaded for value in turn["credit"]["token_rectified_gaps"])
