"""The Gymnasium interface: ``gymnasium.make("alignopsd_trl.environments.webshop:WebShop-v0")``.

Observations and actions are strings of any characters. `reset` draws a goal by weight from the environment's own
generator, or takes ``options={"goal_index": i}``. A purchase terminates; `max_turns` truncates. ``info`` holds
``available_actions``, ``instruction``, ``goal_index``, and at a purchase ``score``, ``won`` and ``breakdown``.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Text
from gymnasium.spaces.utils import flatten
from gymnasium.vector.utils import read_from_shared_memory, write_to_shared_memory

from alignopsd_trl.environments.webshop.engine.classic import MODES
from alignopsd_trl.environments.webshop.engine.session import ShopSession
from alignopsd_trl.environments.webshop.environment import open_shops
from alignopsd_trl.environments.webshop.options import WebShopOptions

MAX_OBSERVATION = 1 << 16  # characters; also the shared memory of a vectorised environment, 4 bytes each
MAX_ACTION = 1 << 12
_SAMPLED = "".join(map(chr, range(32, 127)))


class AnyText(Text):
    """A space of strings of any characters, up to a length. Samples are short and printable."""

    def __init__(self, max_length: int):
        super().__init__(max_length, min_length=0, charset=_SAMPLED)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        length = int(self.np_random.integers(1, 33))
        return super().sample(mask=(length, None) if mask is None else mask, probability=probability)

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


@flatten.register(AnyText)
def _codes(space: AnyText, text: str) -> np.ndarray:
    """Returns the code points of a text, int32 (max_length,), padded with -1."""
    if len(text) > space.max_length:
        raise ValueError(f"a text of {len(text)} characters does not fit into {space}; use shared_memory=False")
    padded = np.full(space.max_length, -1, np.int32)
    padded[: len(text)] = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)
    return padded


@write_to_shared_memory.register(AnyText)
def _write(space: AnyText, index: int, text: str, memory: Any) -> None:
    codes = np.frombuffer(memory.get_obj(), np.int32).reshape(-1, space.max_length)
    codes[index] = _codes(space, text)


class _SharedTexts(Sequence[str]):
    """The texts that are in shared memory now, read each time it is copied. Gymnasium reads shared memory once and
    copies the result at each step, which works for arrays only."""

    def __init__(self, codes: np.ndarray):
        self._codes = codes

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, index: Any) -> Any:
        row = self._codes[index]
        return row[row >= 0].tobytes().decode("utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)


@read_from_shared_memory.register(AnyText)
def _read(space: AnyText, memory: Any, n: int = 1) -> Any:
    return _SharedTexts(np.frombuffer(memory.get_obj(), np.int32).reshape(n, space.max_length))


class WebShopGym(gymnasium.Env[str, str]):
    """One shopper.

    Args:
        observation_mode: ``"text"`` or ``"text_rich"``.
        max_turns: steps after which an episode is truncated; None for no limit.
        render_mode: None or ``"ansi"`` (the page in mode ``text_rich``).
        options: see `WebShopOptions`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        observation_mode: str = "text",
        max_turns: int | None = 15,
        render_mode: str | None = None,
        **options: Any,
    ):
        if observation_mode not in MODES:
            raise ValueError(f"observation_mode must be one of {MODES}, got {observation_mode!r}")
        chosen = WebShopOptions.of({"max_turns": max_turns, **options})
        self.observation_mode, self.max_turns, self.render_mode = observation_mode, chosen.max_turns, render_mode
        self.shop = open_shops(chosen).of_seed(None)
        self.observation_space, self.action_space = AnyText(MAX_OBSERVATION), AnyText(MAX_ACTION)
        self._session: ShopSession | None = None
        self._steps, self._goal_index = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode with a drawn goal or with ``options["goal_index"]``.

        Raises:
            IndexError: if there is no such goal.
        """
        super().reset(seed=seed)
        generator = Random(int(self.np_random.integers(2**62)))
        wanted = (options or {}).get("goal_index")
        self._goal_index = self.shop.goals.draw(generator) if wanted is None else int(wanted)
        self._session = ShopSession(self.shop, self.shop.goal(self._goal_index), generator)
        self._steps = 0
        return self._observation(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Executes any string. The reward is the score of a purchase, else 0."""
        session = self._live()
        answer = session.step(action)
        self._steps += 1
        info = self._info()
        if answer.breakdown is not None:
            info |= {"score": answer.reward, "won": answer.reward == 1.0, "breakdown": answer.breakdown}
        truncated = not answer.done and self.max_turns is not None and self._steps >= self.max_turns
        return self._observation(), float(answer.reward), answer.done, truncated, info

    def render(self) -> str | None:
        return self._live().rich if self.render_mode == "ansi" else None

    def _live(self) -> ShopSession:
        if self._session is None:
            raise gymnasium.error.ResetNeeded("call reset() before step() or render()")
        return self._session

    def _observation(self) -> str:
        session = self._live()
        return session.text if self.observation_mode == "text" else session.rich

    def _info(self) -> dict[str, Any]:
        session = self._live()
        return {
            "available_actions": {"has_search_bar": session.has_search_bar, "clickables": session.clickables},
            "instruction": session.goal["instruction_text"],
            "goal_index": self._goal_index,
        }
