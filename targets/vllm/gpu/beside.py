"""What a request's tokens are computed with beside them: a LoRA adapter, images."""

from __future__ import annotations

from typing import NamedTuple

from ....reference.tokens import Image, Truth


class Beside(NamedTuple):
    """`adapter` is its name, "" for none; `images` are those of the prompt."""

    adapter: str = ""
    images: tuple[Image, ...] = ()

    def truth(self) -> Truth:
        """Return the truth of a request with these, for its arguments (`Inputs.arguments`)."""
        truth = Truth(())
        truth.adapter, truth.images = self.adapter, list(self.images)
        return truth


ALONE = Beside()


def beside(truth: Truth, length: int) -> Beside:
    """Return what the first `length` tokens of a request are computed with."""
    return Beside(truth.adapter, tuple(image for image in truth.images if image.start < length))
