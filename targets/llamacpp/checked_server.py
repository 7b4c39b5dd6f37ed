"""What a script runs: a server whose answers are compared with those of a new server to the same tokens.

Only copied into scripts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .families import Family
from .gguf_file import APART, write_gguf
from .model import MARGIN_MAX
from .server import ALONE, Answer, Server, completed
from .server_start import ServerHere


class CheckedServer(Server):
    """A server of a tiny random model, and clients by number. Each answer is printed, with that of a new server."""

    def __init__(self, family: Family, options: Mapping[str, str]) -> None:
        self._temporary = TemporaryDirectory()
        folder = Path(self._temporary.name)
        self.models = folder / "tiny.gguf", folder / "draft.gguf"
        write_gguf(self.models[0], family, spelled=True)
        write_gguf(self.models[1], family, spelled=True, apart=APART)
        super().__init__(ServerHere(*self.models, folder, options), folder, options)

    def ask(
        self, prompts: Mapping[int, Sequence[int]], count: int, leaving: Sequence[tuple[int, Sequence[int]]] = ()
    ) -> list[Answer]:
        """Post prompts for `count` tokens each, and compare the answers."""
        answers, wrong = super().ask(prompts, count, leaving), []
        for (client, prompt), answer in zip(prompts.items(), answers, strict=True):
            right = self.alone(prompt, answer)
            found = completed(answer, right)
            distance = float(np.nan_to_num(np.abs(found - right), nan=np.inf).max())
            line = (
                f"client {client}, prompt {[*prompt]}: greedy tokens {found.argmax(-1).tolist()}, of a new server "
                f"{right.argmax(-1).tolist()}; log-probabilities differ by {distance:.2g}"
            )
            sys.stdout.write(f"{line}\n")
            if distance > MARGIN_MAX:
                wrong.append(line)
        assert not wrong, f"wrong answer: {'; '.join(wrong)}"
        return answers

    def alone(self, prompt: Sequence[int], answer: Answer) -> Any:
        """Return the log-probabilities [tokens, vocabulary] that a new server has for each token of an answer."""
        tokens = [*prompt, *answer.tokens]
        rights = []
        for length in range(len(prompt), len(tokens)):
            server = Server(ServerHere(*self.models, self.folder, ALONE), self.folder, ALONE)
            [right] = server.ask({0: tokens[:length]}, 1)
            server.close()
            rights.append(right.logprobs[0])
        return np.array(rights)
