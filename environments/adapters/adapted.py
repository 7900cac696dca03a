"""The base of all adapters, which are environments and factories of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from alignopsd_trl.environments.adapters.rows import is_row_id
from alignopsd_trl.environments.base import TextEnvironment


class AdaptedEnvironment(TextEnvironment):
    """An environment of another convention. A call of it makes another one like it, so that it is a factory as well.

    Attributes:
        environment (`Any`):
            The object that plays this episode and that reward functions get.
        messages (`list[dict]`):
            The prompt's messages, with those that the environment added.
        options (`dict[str, Any]`):
            The arguments of its constructor.
    """

    thinks_freely = True
    takes_seed = True
    environment: Any = None
    messages: list[dict[str, Any]]
    options: dict[str, Any]

    def __call__(self) -> Self:
        return self.with_options()

    def with_options(self, **changed: Any) -> Self:
        """Makes another one with some options changed."""
        return type(self)(**self.options | changed)

    @property
    def __name__(self) -> str:
        return type(self).__qualname__.rpartition(".")[2]

    @property
    def owns_reward(self) -> bool:
        """Whether the environment has a reward of its own."""
        return True

    @property
    def knows_score(self) -> bool:
        """Whether an episode has a number to report without reward functions."""
        return self.owns_reward

    @property
    def said(self) -> list[list[Mapping[str, Any]]]:
        """The messages of each turn, where the environment keeps them."""
        return []


def columns_for(row: Mapping[str, Any], accepted: Mapping[str, Any], left_out: set[str]) -> dict[str, Any]:
    """Returns the columns of a row that a function takes: those of its parameters' names, all with ``**columns``.
    ``dynamics_seed`` needs a parameter of its own."""
    made = {"task_id"} if is_row_id(row.get("task_id")) else set()
    made |= {"dynamics_seed"} - set(accepted)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    return {name: v for name, v in row.items() if name not in left_out | made and (takes_any or name in accepted)}
