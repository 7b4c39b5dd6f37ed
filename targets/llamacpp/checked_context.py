"""What a script runs: a context that knows which tokens each of its sequences has to hold, and compares its logits.

Only copied into scripts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from .c_program import c_program
from .context import Context, Row, log_softmax, poisoned
from .context_sizes import Sizes
from .families import Family
from .gguf_file import write_gguf
from .library import PARTIAL_ONLY, Library, find_library


class Llama:
    """A context. After each batch its log-probabilities are compared with those of the same tokens alone."""

    def __init__(self, family: Family, sizes: Sizes) -> None:
        self.family = family
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
        self.first: dict[int, int] = {}
        """Sequence -> the position of its first token, of those that were shifted."""
        self.saved: dict[str, tuple[bytes, list[int], int]] = {}
        self.places: dict[str, int] = {}
        """Name of a saved state -> where the C program keeps it."""
        self.calls: list[str] = []
        """The calls so far, in C."""

    def write_c(self, folder: Path) -> None:
        """Write the calls so far as a C program, and its model."""
        folder.mkdir(parents=True, exist_ok=True)
        write_gguf(folder / "tiny.gguf", self.family)
        (folder / "repro.c").write_text(c_program(self.context.sizes, self.calls), encoding="utf-8")

    def decode(self, tokens: Mapping[int, Sequence[int]], wanted: Mapping[int, int]) -> None:
        """Decode the next tokens of some sequences, and compare the logits of the last `wanted` of them."""
        ends = {one: self.first.get(one, 0) + len(self.held.get(one, ())) for one in tokens}
        rows = [Row(one, ends[one], new, wanted.get(one, 0)) for one, new in tokens.items()]
        for row in rows:
            self.held.setdefault(row.sequence, []).extend(row.tokens)
        rights = [self.alone(self.held[row.sequence])[-row.wanted :] if row.wanted else None for row in rows]
        self.calls.append(_c_decode(rows, rights))
        for row, logits, right in zip(rows, self.context.decode(rows), rights, strict=True):
            if right is None:
                continue
            held, found = self.held[row.sequence], log_softmax(logits)
            worst = np.unravel_index(np.abs(found - right).argmax(), found.shape)
            distance = float(np.abs(found - right).max())
            greedy, alone = found.argmax(-1).tolist(), right.argmax(-1).tolist()
            assert distance < 0.01, (
                f"wrong logits of sequence {row.sequence} after {len(held)} tokens: greedy tokens {greedy}, "
                f"alone {alone}; log-probabilities differ by {distance:.2g}: token {worst[-1]} has {found[worst]:.5g}, "
                f"alone {right[worst]:.5g}"
            )
            sys.stdout.write(f"sequence {row.sequence}, after {len(held)} tokens: they differ by {distance:.1g}\n")

    def alone(self, tokens: Sequence[int]) -> Any:
        """Return the log-probabilities after each of these tokens, in a context that has nothing else."""
        context = Context(self.library, self.model, Sizes(4096, 4096, 4096, 1))
        [logits] = context.decode([Row(0, 0, tokens, len(tokens))])
        context.close()
        return log_softmax(logits)

    def seq_rm(self, sequence: int, start: int = 0) -> bool:
        """Remove tokens from `start` on; return False if llama.cpp refuses, which leaves the sequence as it is."""
        place = self.first.get(sequence, 0) + start if start else -1
        agreed = self.context.remove(sequence, place)
        self.calls.append(f"llama_memory_seq_rm(mem, {sequence}, {place}, -1);  // returns {str(agreed).lower()}")
        if agreed:
            self.held[sequence] = self.held.get(sequence, [])[:start]
            if not start:
                self.first.pop(sequence, None)
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
        self.calls.append(f"llama_memory_seq_cp(mem, {source}, {target}, -1, -1);")
        self.held[target] = [*self.held.get(source, [])]
        self.first[target] = self.first.get(source, 0)

    def seq_keep(self, sequence: int) -> None:
        """Remove all sequences but one."""
        self.context.keep(sequence)
        self.calls.append(f"llama_memory_seq_keep(mem, {sequence});")
        self.held = {sequence: self.held.get(sequence, [])}
        self.first = {sequence: self.first.get(sequence, 0)}

    def clear(self) -> None:
        """Remove all sequences."""
        self.context.clear()
        self.calls.append("llama_memory_clear(mem, false);")
        self.held, self.first = {}, {}

    def seq_add(self, sequence: int, by: int) -> None:
        """Move all positions of a sequence up, if llama.cpp says that its memory can: no logits change by it."""
        if self.context.shift(sequence, by):
            self.calls.append(f"llama_memory_seq_add(mem, {sequence}, -1, -1, {by});")
            self.first[sequence] = self.first.get(sequence, 0) + by

    def checkpoint(self, sequence: int) -> None:
        """Save the recurrent state of a sequence, before drafts."""
        self._save(f"checkpoint {sequence}", sequence, PARTIAL_ONLY)

    def go_back(self, sequence: int, accepted: Sequence[int]) -> None:
        """Restore the checkpoint, remove what came later, and decode the accepted tokens again."""
        held, _ = self._restore(f"checkpoint {sequence}", sequence, PARTIAL_ONLY)
        self.seq_rm(sequence, len(held))
        self.decode({sequence: accepted}, {})

    def save(self, name: str, sequence: int) -> None:
        """Save the state of a sequence."""
        self._save(name, sequence, 0)

    def restore(self, name: str, sequence: int) -> None:
        """Restore a saved state into a sequence."""
        self.held[sequence], self.first[sequence] = self._restore(name, sequence, 0)

    def copy_saved(self, name: str, parent: str) -> None:
        """Save a saved state under another name, too."""
        self.saved[name] = self.saved[parent]
        place, source = self._place(name), self._place(parent)
        self.calls.append(f"saved[{place}] = saved[{source}], size[{place}] = size[{source}];  // {name}")

    def _save(self, name: str, sequence: int, flags: int) -> None:
        state, held = self.context.state(sequence, flags), [*self.held.get(sequence, [])]
        self.saved[name] = state, held, self.first.get(sequence, 0)
        self.calls.append(f"save({self._place(name)}, {sequence}, {flags});  // {name}")

    def _restore(self, name: str, sequence: int, flags: int) -> tuple[list[int], int]:
        state, held, first = self.saved[name]
        self.context.set_state(sequence, state, flags)
        self.calls.append(f"restore({self._place(name)}, {sequence}, {flags});  // {name}")
        return [*held], first

    def _place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))

    def check_positions(self) -> None:
        """Compare the positions of all sequences with what they have to hold. One that is not empty, as it should be,
        gets a new request, which shows what that means."""
        for sequence in range(self.context.sizes.n_seq_max):
            last = self.first.get(sequence, 0) + len(self.held.get(sequence, ())) - 1
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


def _c_decode(rows: Sequence[Row], rights: Sequence[Any]) -> str:
    """Return the call that decodes a batch: its tokens, with what is right where logits are asked for."""
    tokens = []
    for row, right in zip(rows, rights, strict=True):
        unasked = len(row.tokens) - row.wanted
        alone = ["-1, 0"] * unasked + [f"{one.argmax()}, {one.max():.6f}" for one in (right if row.wanted else ())]
        places = enumerate(zip(row.tokens, alone, strict=True), row.start)
        tokens += [f"{{{row.sequence}, {place}, {token}, {known}}}" for place, (token, known) in places]
    return f"decode((struct row[]) {{{', '.join(tokens)}}}, {len(tokens)});"
