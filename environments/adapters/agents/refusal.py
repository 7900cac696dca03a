"""The API's error."""

from __future__ import annotations

POLICYS = ("tool_use_failed", "context_length_exceeded", "episode_over")  # codes that are the policy's doing


class Refused(Exception):  # noqa: N818 (no fault of the program)
    """A request that gets the API's error.

    Attributes:
        status, code, param: as in OpenAI's errors.
    """

    def __init__(self, message: str, code: str = "invalid_value", status: int = 400, param: str | None = None):
        super().__init__(message)
        self.code, self.status, self.param = code, status, param
