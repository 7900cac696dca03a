"""What samplers raise where they can't answer."""

from __future__ import annotations


class RequestFailed(RuntimeError):
    """One request got no response, after all its tries. It ends its own episode only."""


class SamplerDown(RuntimeError):
    """Whoever samples can't be used any more. It ends the play of all processes."""
