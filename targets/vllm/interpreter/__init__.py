"""A fast interpreter for Triton kernels on the CPU."""

from __future__ import annotations

from triton.runtime.interpreter import InterpretedFunction

from . import launch


def install() -> None:
    """Run every kernel that can be reproduced exactly with our own code, from now on."""
    InterpretedFunction.run = launch.run


def uninstall() -> None:
    """Give all kernels back to Triton's interpreter."""
    InterpretedFunction.run = launch._original


def fallbacks() -> dict[str, str]:
    """The kernels that Triton's own interpreter ran, each with the (last) reason."""
    return dict(launch.fallbacks)


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Launches by kernel: run by our own code, and by Triton's interpreter."""
    return dict(launch.native_launches), dict(launch.fallback_launches)
