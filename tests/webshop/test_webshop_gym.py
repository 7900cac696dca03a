"""The Gymnasium face: the checker, both vector environments, truncation and what info holds."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import alignopsd_trl.environments.webshop  # noqa: F401 - registers WebShop-v0
from alignopsd_trl.environments.webshop.gym import AnyText


def test_checker(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("WebShop-v0", **options).unwrapped)
        check_env(
            gymnasium.make("alignopsd_trl.environments.webshop:WebShop-v0", render_mode="ansi", **options).unwrapped
        )


def test_seeds_decide_the_goal(options: dict[str, Any]) -> None:
    env = gymnasium.make("WebShop-v0", **options)
    drawn = [env.reset(seed=seed)[1]["goal_index"] for seed in (1, 2, 3, 1)]
    assert drawn[0] == drawn[3]
    assert len(set(drawn)) > 1
    assert env.reset(options={"goal_index": 4})[1]["goal_index"] == 4


def test_a_purchase_terminates_with_its_breakdown(options: dict[str, Any]) -> None:
    env = gymnasium.make("WebShop-v0", observation_mode="text_rich", **options)
    observation, info = env.reset(options={"goal_index": 0})
    assert info["available_actions"] == {"has_search_bar": True, "clickables": ["search"]}
    env.step("search[henley]")
    *_, info = env.step("click[zzz]")
    product = info["available_actions"]["clickables"][2]
    env.step(f"click[{product}]")
    observation, reward, terminated, truncated, info = env.step("click[buy now]")
    assert (terminated, truncated) == (True, False)
    assert reward == info["score"]
    assert set(info["breakdown"]) >= {"r_type", "r_att", "w_att", "r_price"}
    assert observation.startswith("Thank you for shopping with us!\nYour code: \n")


def test_max_turns_truncates(options: dict[str, Any]) -> None:
    env = gymnasium.make("WebShop-v0", max_turns=2, **options)
    env.reset(seed=0)
    assert [env.step("nothing")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    with pytest.raises(ValueError, match="max_turns=0 must be at least 1"):
        gymnasium.make("WebShop-v0", max_turns=0, **options)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_agree_with_single_ones(options: dict[str, Any], mode: str) -> None:
    single = gymnasium.make("WebShop-v0", **options)
    vector = gymnasium.make_vec("WebShop-v0", num_envs=2, vectorization_mode=mode, **options)
    try:
        observations, _ = vector.reset(seed=5)
        assert observations == (single.reset(seed=5)[0], single.reset(seed=6)[0])
        observations, rewards, *_ = vector.step(("search[résumé café 日本]", "click[x]"))
        single.reset(seed=5)
        assert observations[0] == single.step("search[résumé café 日本]")[0]
        assert observations[1] == single.reset(seed=6)[0]
        np.testing.assert_array_equal(rewards, [0.0, 0.0])
    finally:
        vector.close()


def test_space_of_texts() -> None:
    space = AnyText(5)
    space.seed(0)
    assert "日😀" in space
    assert "123456" not in space
    assert 7 not in space
    assert AnyText(100).sample().isprintable()
    codes = gymnasium.spaces.flatten(space, "a日")
    assert codes.tolist() == [97, 0x65E5, -1, -1, -1]
    with pytest.raises(ValueError, match="does not fit"):
        gymnasium.spaces.flatten(space, "123456")
