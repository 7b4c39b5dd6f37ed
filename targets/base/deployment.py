"""The server that a trace's configuration stands for: the engine's part of a bug report.

`targets/ENGINE/deployment.py` may offer `deployment(variant, trace, version, device) -> Deployment`. It must be
importable where the engine is not installed, and the engine's own argument parser must accept its flags.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Implementation(Struct, frozen=True):
    """One of several implementations of the same part, of which a server runs one.

    title    for readers: "V2 model runner"
    options  switches of a trace that select it
    default  True if a server of this release runs it unless it is configured otherwise
    """

    title: str
    options: Mapping[str, str]
    default: bool = False


class Deployment(Struct, frozen=True):
    """The configuration of a server that corresponds to a trace, and what the adapter replaces.

    title      the engine's name
    command    the serve command, with a model of the kind that the trace needs
    flags      command-line arguments
    variables  environment variables
    scaled     settings that the trace scales down or that no flag expresses, one clause each
    implementations  those that a trace can select, () where there is only one
    own, replaced    code that runs as released, and stand-ins, one clause each
    packages   further packages whose versions a report lists
    tracker    search page of the engine's issues, "" if there is none
    unusual    names of flags that a server does not have by default and that choose other code
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
    unusual: tuple[str, ...] = ()
