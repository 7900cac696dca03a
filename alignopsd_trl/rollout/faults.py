"""Errors of samplers."""

from __future__ import annotations


class RequestFailed(RuntimeError):
    """Raised when a request got no response in all its tries. It ends its own episode only."""


class SamplerDown(RuntimeError):
    """Raised when a sampler can't be used any more. It ends the play of all processes."""
