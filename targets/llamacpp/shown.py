"""What a script runs: a context, and which tokens each of its sequences has to hold. Only copied into scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .context import Context, Row, log_softmax, poisoned
from .families import Family
from .gguf_file import write_gguf
from .library import PARTIAL_ONLY, Library, find_library
from .sizes import Sizes


class Llama:
    """A context. After each batch its log-probabilities are compared with those of the same tokens alone."""

    def __init__(self, family: Family, sizes: Sizes) -> None:
        self.library = Library(find_library())
        with TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            write_gguf(path, family)
            params = self.library.c.llama_model_default_params()
            self.model = self.library.c.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, self.library.complaint
        self.context = poisoned(Context(self.library, self.model, sizes), 1)
        self.held: dict[int, list[int]] = {}
        """Sequence -> the tokens that it holds by what llama.h says of the calls so far."""
        self.saved: dict[str, tuple[bytes, list[int]]] = {}

    def decode(self, tokens: Mapping[int, Sequence[int]], wanted: Mapping[int, int]) -> None:
        """Decode the next tokens of some sequences, and compare the logits of the last `wanted` of them."""
        rows = [Row(one, len(self.held.get(one, ())), new, wanted.get(one, 0)) for one, new in tokens.items()]
        for row, logits in zip(rows, self.context.decode(rows), strict=True):
            held = self.held.setdefault(row.sequence, [])
            held += row.tokens
            if not row.wanted:
                continue
            found, right = log_softmax(logits), self.alone(held)[-row.wanted :]
            distance = float(np.abs(found - right).max())
            greedy, alone = found.argmax(-1).tolist(), right.argmax(-1).tolist()
            assert distance < 0.01, (
                f"wrong logits of sequence {row.sequence} after {len(held)} tokens: greedy tokens {greedy}, "
                f"alone {alone}; log-probabilities differ by {distance:.2g}"
            )

    def alone(self, tokens: Sequence[int]) -> Any:
        """Return the log-probabilities after each of these tokens, in a context that has nothing else."""
        context = Context(self.library, self.model, Sizes(4096, 4096, 4096, 1))
        [logits] = context.decode([Row(0, 0, tokens, len(tokens))])
        context.close()
        return log_softmax(logits)

    def seq_rm(self, sequence: int, start: int = 0) -> bool:
        """Remove positions from `start` on; return False if llama.cpp refuses, which leaves the sequence as it is."""
        agreed = self.context.remove(sequence, start or -1)
        if agreed:
            self.held[sequence] = self.held.get(sequence, [])[:start]
        return agreed

    def roll_back(self, sequence: int, start: int) -> None:
        """Remove positions from `start` on; if llama.cpp refuses, all, and decode the rest again."""
        if not self.seq_rm(sequence, start):
            tokens = self.held[sequence][:start]
            self.seq_rm(sequence)
            self.decode({sequence: tokens}, {})

    def seq_cp(self, source: int, target: int) -> None:
        """Copy a sequence to an empty one."""
        self.context.copy(source, target)
        self.held[target] = [*self.held.get(source, [])]

    def seq_keep(self, sequence: int) -> None:
        """Remove all sequences but one."""
        self.context.keep(sequence)
        self.held = {sequence: self.held.get(sequence, [])}

    def clear(self) -> None:
        """Remove all sequences."""
        self.context.clear()
        self.held = {}

    def checkpoint(self, sequence: int) -> None:
        """Save the recurrent state of a sequence, before drafts."""
        state = self.context.state(sequence, PARTIAL_ONLY)
        self.saved[f"checkpoint {sequence}"] = state, [*self.held[sequence]]

    def go_back(self, sequence: int, accepted: Sequence[int]) -> None:
        """Restore the checkpoint, remove what came later, and decode the accepted tokens again."""
        state, held = self.saved.pop(f"checkpoint {sequence}")
        self.context.set_state(sequence, state, PARTIAL_ONLY)
        self.seq_rm(sequence, len(held))
        self.decode({sequence: accepted}, {})

    def save(self, name: str, sequence: int) -> None:
        """Save the state of a sequence."""
        self.saved[name] = self.context.state(sequence, 0), [*self.held.get(sequence, [])]

    def restore(self, name: str, sequence: int) -> None:
        """Restore a saved state into a sequence."""
        state, tokens = self.saved[name]
        self.context.set_state(sequence, state, 0)
        self.held[sequence] = [*tokens]

    def check_positions(self) -> None:
        """Compare the positions of all sequences with what they have to hold. One that is not empty, as it should be,
        gets a new request, which shows what that means."""
        for sequence in range(self.context.sizes.n_seq_max):
            last = len(self.held.get(sequence, ())) - 1
            found = self.context.positions(sequence)
            if found != (last, last):
                consequence = self._of_new_request(sequence) if last < 0 else ""
                raise AssertionError(
                    f"wrong positions: llama_memory_seq_pos_min and _max of sequence {sequence} are {found}, not {last}"
                    f"{consequence}"
                )

    def _of_new_request(self, sequence: int) -> str:
        try:
            self.decode({sequence: [2, 3]}, {sequence: 1})
        except AssertionError as error:
            return f"; a new request there has {error}"
        return ""
