"""The interface of the original WebShop text environment, for transcripts and for code written against it.

`reset` draws goals and names as the original does; `step` returns ``(observation, reward, done, None)``. Gymnasium's
conventions are in `alignopsd_trl.environments.webshop.gym`, the trainer's in
`alignopsd_trl.environments.webshop.environment`.
"""

from __future__ import annotations

from random import Random
from typing import Any

from alignopsd_trl.environments.webshop.engine import pages
from alignopsd_trl.environments.webshop.engine.goals import session_name
from alignopsd_trl.environments.webshop.engine.session import ShopSession
from alignopsd_trl.environments.webshop.engine.shop import Shop

MODES = ("text", "text_rich")


class ClassicWebShop:
    """One environment over a shop. Constructing it resets once without a session, as the original does.

    Args:
        shop: session names and goals are drawn from a copy of its goal list's generator.
        observation_mode: ``"text"`` or ``"text_rich"``.
        num_prev_obs, num_prev_actions: how much of the past `step` puts in front of an observation.
        reset_after_purchase: show the receipt but go on in a new episode, as the wrapper of the paper family does.
    """

    def __init__(
        self,
        shop: Shop,
        observation_mode: str = "text",
        num_prev_obs: int = 0,
        num_prev_actions: int = 0,
        reset_after_purchase: bool = False,
    ):
        if observation_mode not in MODES:
            raise ValueError(f"observation_mode must be one of {MODES}, got {observation_mode!r}")
        self.shop, self.observation_mode = shop, observation_mode
        self._prev_obs, self._prev_actions = num_prev_obs, num_prev_actions
        self._reset_after_purchase = reset_after_purchase
        self._generator = Random()
        self._generator.setstate(shop.goals.generator.getstate())
        self._sessions: dict[str, ShopSession] = {}
        self.breakdown: dict[str, Any] | None = None
        self.reset()

    def reset(self, session: int | str | None = None) -> tuple[str, None]:
        """Starts a session: a goal index (a true `int`), a name (its goal is drawn once and kept), or a new name.

        Raises:
            IndexError: if a goal index is out of range.
        """
        name = session_name(self._generator) if session is None else str(session)
        if name not in self._sessions:
            index = session if type(session) is int else self.shop.goals.draw(self._generator)
            self._sessions[name] = ShopSession(self.shop, self.shop.goals[index], self._generator, name)
        self.session = self._sessions[name]
        self.session.enter()
        self.observations, self.actions = [self.observation], []
        return self.observation, None

    @property
    def observation(self) -> str:
        return self.session.text if self.observation_mode == "text" else self.session.rich

    def get_available_actions(self) -> dict[str, Any]:
        return {"has_search_bar": self.session.has_search_bar, "clickables": self.session.clickables}

    def step(self, action: str) -> tuple[str, float, bool, None]:
        """Executes any string; never raises."""
        reward, done, breakdown = self.session.step(action)
        self.breakdown = breakdown
        plain = self.observation
        self.actions.append(action)
        shown = pages.SEPARATOR.join([*self._past(), plain])
        self.observations.append(plain)
        if done and self._reset_after_purchase:
            self.reset()
        return shown, reward, done, None

    def _past(self) -> list[str]:
        past: list[str] = []
        for back in range(1, 1 + max(self._prev_obs, self._prev_actions)):
            if back <= min(self._prev_actions, len(self.actions)):
                past.append(self.actions[-back])
            if back <= min(self._prev_obs, len(self.observations)):
                past.append(self.observations[-back])
        return past[::-1]
