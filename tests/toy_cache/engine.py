"""An engine of one module, for the tests of this folder."""

from abc import abstractmethod

CONSTANT = sum(range(3))


class Cache:
    """A cache."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def add(self, block: int) -> bool:
        if block < 0:
            raise ValueError(
                block,
            )
        self.blocks.append(block)
        return True

    @abstractmethod
    def name(self) -> str:
        return "never counts"

    def export(self) -> str:
        text = ",".join(map(str, self.blocks))
        return f"blocks {text}"

    def never(self) -> int:
        first = 1
        second = 2
        return first + second


def choose(flag: bool) -> str:
    def nested() -> str:
        return "nested"

    return nested() if flag else "plain"
