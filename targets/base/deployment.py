"""The server that a trace's configuration stands for: the engine's part of a bug report.

`targets/ENGINE/deployment.py` may offer `deployment(variant, trace, version, device) -> Deployment`. It must be
importable where the engine is not installed, and the engine's own argument parser must accept its flags.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from .issue_form import PLAIN, Form


class Implementation(Struct, frozen=True):
    """One of several implementations of the same part, of which a server runs one.

    title    for readers: "V2 model runner"
    options  switches of a trace that select it
    default  True if a server of this release runs it unless it is configured otherwise
    """

    title: str
    options: Mapping[str, str]
    default: bool = False


class Scale(Struct, frozen=True):
    """Lengths of a server of ordinary size, to which those of a trace are scaled (`harness/tell/at_scale.py`).

    block    tokens of its largest blocks
    options  options of a trace that are a number of tokens -> their value there
    flags    that set the block, () if the engine needs none
    what     the blocks, in words
    """

    block: int
    options: Mapping[str, int] = {}
    flags: tuple[str, ...] = ()
    what: str = "blocks"


class Client(Struct, frozen=True):
    """What clients send to a server for the events of a trace, as lines of a Python script.

    head   imports, and the function that sends a request
    reads  the function `answer`, which returns the tokens of a response: for calls that quote an answer
    calls  index of an event -> lines; events that no client causes have none
    forced what the scenario decides itself, and when a server gets there: one sentence for each
    """

    head: str = ""
    reads: str = ""
    calls: Mapping[int, Sequence[str]] = {}
    forced: tuple[str, ...] = ()


class Deployment(Struct, frozen=True):
    """The configuration of a server that corresponds to a trace, and what the adapter replaces.

    title      the engine's name
    release    its version as its tracker names it, "" for the title and the version
    calls      tag of an event -> what the engine calls it, for events that are a call of its interface
    unserved   why no HTTP interface of a server shows it, in a sentence; "" if one does
    declines   tag of an event -> its call, if the client gets an error for an exception in it, and the engine lives on
    reached    by which public function a user gets to what the trace calls, one clause of Markdown each
    nouns      tag of an event -> the engine's noun for it, where it is another than ours ("retraction")
    command    the serve command, with a model of the kind that the trace needs
    flags      command-line arguments of a server of ordinary size
    sizes      command-line arguments with the trace's miniature sizes, which no server has
    notes      about the command and its model, one sentence each
    variables  environment variables
    scaled     what the trace scales down or gives itself and no flag expresses, one clause each
    implementations  those that a trace can select, () where there is only one
    own, replaced    code that runs as released, and stand-ins, one clause each
    packages   further packages whose versions a report lists
    tracker    search page of the engine's issues, "" if there is none
    sources    the folder of its repository that has the engine's packages, "" for the repository itself
    model      the kind of model, in words; `architecture`: the class that the engine has for one
    search     terms by which the tracker is searched instead of the kind of cache, () for that
    features   features of the engine that the trace's options switch on, as its tracker calls them
    words      a term that a report searches for -> how the tracker's users write it
    phrases    what its developers call what our sentences name (`engine_words`)
    form       by which its tracker takes a bug report
    unusual    names of flags that a server does not have by default and that choose other code
    scheduling names of flags that choose synchronous or asynchronous scheduling
    has_sizes  False if the sizes and modes of a trace mean nothing to the engine, and a report leaves them out
    environment  arguments of the engine's Python that print what its form asks for, () if nothing does
    scale      lengths of a server of ordinary size, None where a trace has no sizes
    limits     field of a configuration that limits a step or the memory -> the flags that set it, of which a server
               has those that the trace needs
    client     what its clients send
    is_stood_in  True if stand-ins run instead of the layers of the model, whose class then names nothing that was run
    """

    title: str
    command: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}
    scaled: tuple[str, ...] = ()
    implementations: tuple[Implementation, ...] = ()
    own: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    tracker: str = ""
    sources: str = ""
    unusual: tuple[str, ...] = ()
    scheduling: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    model: str = ""
    architecture: str = ""
    search: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    words: Mapping[str, str] = {}
    phrases: tuple[tuple[str, str], ...] = ()
    form: Form = PLAIN
    environment: tuple[str, ...] = ()
    has_sizes: bool = True
    release: str = ""
    calls: Mapping[str, str] = {}
    unserved: str = ""
    declines: Mapping[str, str] = {}
    nouns: Mapping[str, str] = {}
    reached: tuple[str, ...] = ()
    scale: Scale | None = None
    limits: Mapping[str, tuple[str, ...]] = {}
    client: Client = Client()
    is_stood_in: bool = False

    @property
    def model_words(self) -> str:
        """The kind of model, with its class if that is what was run: "MiniMax (MiniMaxForCausalLM)"."""
        is_named = self.model and self.architecture and not self.is_stood_in
        return f"{self.model} ({self.architecture})" if is_named else self.model

    @property
    def model_in_title(self) -> str:
        """The kind of model, with its class if that is what was run."""
        return self.model if self.is_stood_in else ": ".join(filter(None, (self.model, self.architecture)))

    @property
    def shell(self) -> list[str]:
        """The command with its variables and flags, one flag to a line, without the sizes; [] without a command."""
        if not self.command:
            return []
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [" ".join([*variables, *self.command]), *_pairs(self.flags)]


def _pairs(flags: Sequence[str]) -> Iterator[str]:
    """Yield each flag with its value, quoted for a shell."""
    pair: list[str] = []
    for part in flags:
        if part.startswith("--") and pair:
            yield shlex.join(pair)
            pair = []
        pair.append(part)
    if pair:
        yield shlex.join(pair)
