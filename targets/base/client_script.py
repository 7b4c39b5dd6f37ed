"""The text of scripts that show what clients ask for and receive: what the engines' `repro` modules share.

A script is one module. It begins with `reproduce()`: the engine's settings, the calls of the trace, and an assertion.
Behind the line `MACHINERY` is what is copied (`inlined`); nothing there is about the failure.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from ...reference.layout import cdiv
from ...reference.tokens import IMAGE_TOKENS, Truth, kind_of
from .client_turn import prompt_path
from .engine_words import Phrases, in_words
from .inlined import Part, bare, import_block, trimmed
from .repro import DEVIATION, MACHINERY, Failure, Place, Script, python_comment
from .trace import LATE_STEPS_MAX

AGAIN = "again "
"""Begins the names of clients that send tokens once more."""
WRONG_SINCE = re.compile(r"([\w.]+(?: \d+)?) \(since step (\d+)\)")
"""A client that a script names, and the first step with a wrong token of it."""
RECEIVED = re.compile(
    r"(?P<name>.*?): prompt \[.*\], received (?P<received>\[.*?\]), "
    r"(?:right|expected (?P<expected>\[.*?\])); (?P<end>.*)"
)
"""A line that a script prints for a client."""
MORE_TOKENS = 4
"""New tokens of a client that sends its tokens once more, and further ones of a longer answer: a wrong state gives the
right token once in 126 times."""
EXPECTED_MAX = 8
"""Tokens of an answer in a comment."""
WIDTH = 118
"""Characters of a line of text."""
HIDDEN = frozenset({"M2", "M4", "M5", "S1", "S5"})
"""Oracles of what no client has met yet."""

Prompt = Sequence[int | tuple[str, int]]
"""What a client sends: token ids, and (document, tokens) for an image, and for tokens with an adapter or a salt."""


def prompt_of(path: Sequence[tuple[str, int]], tokens: Sequence[int]) -> list[int | tuple[str, int]]:
    """Return the prompt of a walk down the prefix tree that has these tokens."""
    prompt: list[int | tuple[str, int]] = []
    first = 0
    for document, length in path:
        prompt += [(document, length)] if kind_of(document) else tokens[first : first + length]
        first += length
    return prompt


def beginning(prompt: Prompt, length: int) -> list[int | tuple[str, int]]:
    """Return the first `length` tokens of a prompt, and the rest of an image that they would cut: a part of it would be
    another image."""
    found: list[int | tuple[str, int]] = []
    for one in prompt:
        if length <= 0:
            break
        if isinstance(one, int):
            found.append(one)
            length -= 1
        else:
            document, whole = one
            unit = IMAGE_TOKENS if kind_of(document) == "image" else 1
            size = min(cdiv(length, unit) * unit, whole)
            found.append((document, size))
            length -= size
    return found


def tokens_in(prompt: Prompt) -> int:
    """Return the number of tokens of a prompt."""
    return sum(one[1] if isinstance(one, tuple) else 1 for one in prompt)


class Conversations:
    """What clients have: their prompts, and the answers that they should get.

    truths  the tokens of each client when its last turn has ended
    """

    def __init__(self) -> None:
        self.truths: dict[str, Truth] = {}
        self._prompts: dict[str, list[int | tuple[str, int]]] = {}

    def begin(self, name: str, path: Sequence[tuple[str, int]], truth: Truth, first: int) -> Prompt:
        """Begin a turn whose own tokens, those of `path`, begin at position `first`; return what its client sends."""
        before = beginning(self.said(name), first) if first else []
        prompt = prompt_of(path, truth.tokens[first:])
        self.truths[name], self._prompts[name] = truth, [*before, *prompt]
        return prompt

    def prefix(self, name: str, depth: int) -> Prompt:
        """Return the first `depth` tokens of a client and the one after them, [] if its name is not known."""
        if name not in self.truths or depth < 0:
            return []
        self.truths[name].reach(depth + 1)
        return beginning(self.said(name), depth + 1)

    def said(self, name: str) -> list[int | tuple[str, int]]:
        """Return all that a client has, its answer included."""
        truth = self.truths[name]
        return [*self._prompts[name], *truth.tokens[truth.prompt_length :]]


class End(NamedTuple):
    """How a script ends.

    promise  the beginning of its last line of output
    last     its last lines
    read     what it reads when the trace is over, before the rest of the answers
    """

    promise: str
    last: Sequence[str]
    read: Sequence[str] = ()


WRONG_TOKENS = End(
    "AssertionError: clients receive wrong tokens",
    [
        "wrong = [turn.fault() for turn in engine.turns if not turn.is_right()]",
        "assert not wrong, f\"clients receive wrong tokens: {', '.join(wrong)}\"",
    ],
)
_WHO_WAITS = 'waiting = [turn.name for turn in engine.turns if turn.end == "still waits for tokens"]'
WAITING = End(
    "AssertionError: nothing is scheduled any more",
    [
        _WHO_WAITS,
        'assert not waiting, f"nothing is scheduled any more, but clients wait: {waiting}"',
        *WRONG_TOKENS.last,  # in a larger pool nobody may wait, and clients receive wrong tokens instead
    ],
)

UNENDED = End(
    "AssertionError: requests run without an end",
    [
        _WHO_WAITS,
        'assert not waiting, f"requests run without an end: {waiting}"',
    ],
)

ABORTED = End(
    "AssertionError: requests go on after their abort",
    [
        f"late = [turn.name for turn in engine.turns if turn.late > {LATE_STEPS_MAX}]",
        'assert not late, f"requests go on after their abort: {late}"',
    ],
)


def place_of(failure: Failure, end: End) -> Place:
    """Return where a script with this end has to fail. What is wrong in a cache, any client may meet."""
    if failure.oracle == "CRASH":
        return Place(function=failure.field.partition("-")[2])
    return Place(failure.step, "" if failure.oracle in HIDDEN else failure.request) if end == WRONG_TOKENS else Place()


def leaking(where: str) -> End:
    """Return the end of a script about what is left in the memory `where`."""
    return End(
        "AssertionError: memory is not given back",
        [
            "leaked = engine.leaked()",
            f'print("missing {where}:", leaked)',
            'assert not any(leaked.values()), f"memory is not given back: {leaked}"',
        ],
    )


def asked_again(again: Sequence[Prompt], cache: str) -> Iterator[str]:
    """Yield the calls of clients that send these tokens when the trace is over."""
    if again:
        yield f"# {cache} holds wrong content by now, which a client meets that sends the same tokens."
    for index, prompt in enumerate(again):
        truth = Truth(prompt_path(prompt))
        truth.reach(truth.prompt_length + MORE_TOKENS)
        yield f"engine.add('{AGAIN}{index}', {list(prompt)}, new_tokens={MORE_TOKENS}){expects(truth)}"
        yield "engine.finish()"


def expects(truth: Truth, is_answered: bool = True) -> str:
    """Return a comment behind the call of a client, with the answer that it should get: `truth` ends with it."""
    answer = truth.tokens[truth.prompt_length :] if is_answered else []
    more = f" ... ({len(answer)} in all)" if len(answer) > EXPECTED_MAX else ""
    return f"  # expects {' '.join(map(str, answer[:EXPECTED_MAX])) or 'an error'}{more}"


def marked(calls: Sequence[str]) -> list[str]:
    """Return the calls of a trace, of whose events the last one fails."""
    return [*calls[:-1], DEVIATION, *calls[-1:]]


def folded(lines: Sequence[str]) -> Iterator[str]:
    """Yield lines; three and more equal ones as a loop, equal comments once."""
    for line, equal in groupby(lines):
        count = len(list(equal))
        if line.startswith("#"):
            yield line
        elif count > 2:
            yield f"for _ in range({count}):"
            yield f"    {line}"
        else:
            yield from [line] * count


def asking(opening: Sequence[str], calls: Sequence[str], again: Sequence[str], end: End) -> list[str]:
    """Return the lines of `reproduce()`."""
    return [
        *opening,
        "",
        *folded(calls),
        *end.read,
        "engine.finish()",
        *again,
        "",
        "for turn in engine.turns:",
        "    print(turn)",
        *end.last,
    ]


class Frame(NamedTuple):
    """What is the same in all scripts of an engine.

    engine       its name
    about        behind the failure's message: what the script needs
    needs        packages that have to be importable
    note         about the machinery, the lines of a comment
    environment  sets variables
    prepare      the function of the first part that is called before the engine is imported
    phrases      what its developers call what the failure's message names
    """

    engine: str
    about: str
    needs: str
    note: str
    environment: str
    prepare: str
    phrases: Phrases = ()

    def script(
        self,
        failure: Failure,
        body: Sequence[str],
        end: End,
        parts: Sequence[Part],
        constants: Sequence[str] = (),
        limits: Mapping[str, tuple[str, int]] = {},
    ) -> Script:
        """Return a script: `body` is that of `reproduce()`, `constants` are lines that the second part uses; `limits`
        are those of the script."""
        parts = trimmed(parts, "\n".join(["def reproduce():", *(f"    {line}" for line in body), f"{self.prepare}()"]))
        parts = [*(part._replace(text=bare(part.text)) for part in parts[:-1]), parts[-1]]
        imports = import_block(parts, "import os", "import warnings")
        own = [line for line in imports if line.split()[1].partition(".")[0] not in sys.stdlib_module_names]
        machinery = "\n".join(
            [
                *(f"{line}  # noqa: E402" for line in imports if line not in own),
                "",
                self.environment + 'warnings.simplefilter("ignore")  # of imports: about what a CPU lacks\n',
                parts[0].text,
                "",
                "",
                f"{self.prepare}()",
                *(f"{line}  # noqa: E402" for line in own),
                "",
                *constants,
                *(f"\n{part.text}\n" for part in parts[1:]),
            ]
        )
        shows = "Prints what each client receives and what it should receive. " if end.last else ""
        does = f"{shows}Exits with status 1 where the bug is, with 0 on a fixed {self.engine}."
        about = textwrap.fill(f"{self.about} {does}", WIDTH)
        text = "\n".join(
            [
                f'"""{python_comment(in_words(failure.sentence, self.phrases))}\n\n{about}\n"""\n',
                "from __future__ import annotations\n\n",
                "def reproduce():",
                *(f"    {line}".rstrip() for line in body),
                "",
                "",
                f"{MACHINERY} {self.note}",
                machinery,
                "",
                'if __name__ == "__main__":',
                "    reproduce()",
                '    print("passed: the bug is not here")',
                "",
            ]
        )
        whole = f"# {self.note.rstrip()}\n{machinery}"
        return Script(text, end.promise, self.needs, body, whole, place_of(failure, end), limits=limits)
