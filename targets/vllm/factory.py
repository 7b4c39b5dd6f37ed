"""Opens vLLM's engines. Importable without vLLM: the rest is imported when an engine is opened."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import structs

from ..base.protocol import Target, TargetFactory, open_supported
from ..base.releases import cannot_import
from ..base.renamed import Renamed, aliased
from ..base.trace import Config, Group
from .capabilities import capabilities_of
from .kit_limits import Case, refusal
from .options import options_of
from .release import Release, installed


class VllmFactory:
    """Opens engines of the vLLM that can be imported in this process: of `release`."""

    def __init__(self, name: str, release: Release, notes: Sequence[str] = ()) -> None:
        self.name = name
        self.release = release
        self.capabilities = structs.replace(capabilities_of(release), notes=tuple(notes))

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        known = self.capabilities
        drivable = {name: (*values, *known.accepts.get(name, ())) for name, values in known.options.items()}
        return refusal("shadow", Case(config, options_of(config), self.release, drivable))

    def open(self, config: Config) -> Target:
        """Build an engine for one trace."""
        from .target import VllmTarget

        return VllmTarget(config)


def _renamed() -> list[Renamed]:
    """Give what this vLLM has renamed its old names."""
    import vllm

    [folder, *_] = vllm.__path__
    try:
        number = version("vllm")
    except PackageNotFoundError:
        number = ""
    return aliased(Path(__file__).parent, Path(folder).parent, number)


def make_factory(variant: str, device: str = "") -> TargetFactory:
    """Return the factory, in a process of the engine's environment; with a device, the one for real models there. There
    are no variants.

    Imports vLLM: half a minute on a busy machine, before a campaign's clock starts. Opens one engine, so that a vLLM
    that the adapter does not fit is refused here once, instead of being reported as a crash by every trace.
    """
    try:
        if device:
            from .gpu.factory import make_factory as make_real

            return make_real(variant or "vllm", device)
        from .versions.old_releases import prepare_import

        prepare_import()
        renamed = _renamed()
        from .shadow_kit import prepare_process
    except ImportError as error:
        raise cannot_import("vLLM", "vllm@0.33.0", error) from error
    prepare_process()
    release = installed()
    factory = VllmFactory(variant or "vllm", release, [str(one) for one in renamed])
    trial = Config(
        num_blocks=40,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode=release.modes[0],
        enable_prefix_caching=release.modes[0] != "none",
        options={"runner": release.runners[0]},
    )
    open_supported(factory, trial).close()
    return factory
