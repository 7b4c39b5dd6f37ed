"""A proxy forwards every member of the protocols, what only one implementation has, and nothing that it lacks."""

import copy
import inspect
from types import SimpleNamespace
from unittest.mock import Mock, sentinel

import pytest
from support import CLEAN, Tampered, make_trace

from hybridfuzz.targets.base.protocol import NumericTarget, Target, TargetFactory
from hybridfuzz.targets.base.proxy import FactoryProxy, TargetProxy


def members(protocol: type) -> dict[str, int]:
    """Return each public member of a protocol with its number of arguments, -1 for an attribute."""
    found: dict[str, int] = {}
    for base in protocol.__mro__[:-1]:
        found |= dict.fromkeys(inspect.get_annotations(base), -1)
        for name, value in vars(base).items():
            if inspect.isfunction(value) and not name.startswith("_"):
                found[name] = len(inspect.signature(value).parameters) - 1
    return found


CASES = [
    *[(TargetProxy, name, count) for name, count in members(NumericTarget).items()],
    *[(FactoryProxy, name, count) for name, count in members(TargetFactory).items()],
]


def test_the_protocols_have_members() -> None:
    assert members(Target).keys() == {"layout", "apply", "view", "read", "close"}
    assert members(NumericTarget).keys() > members(Target).keys()
    assert members(TargetFactory)["open"] == 1


@pytest.mark.parametrize(("proxy_class", "name", "arguments"), CASES)
def test_every_member_of_the_protocols_is_forwarded(proxy_class: type, name: str, arguments: int) -> None:
    wrapped = SimpleNamespace(**{member: Mock() for member in members(NumericTarget) | members(TargetFactory)})
    proxy, member = proxy_class(wrapped), getattr(wrapped, name)
    if arguments < 0:
        assert getattr(proxy, name) is member
        return
    given = [getattr(sentinel, f"argument{index}") for index in range(arguments)]
    result = getattr(proxy, name)(*given)
    member.assert_called_once_with(*given)
    assert result is (None if name == "close" else member.return_value)


@pytest.mark.parametrize("factory", [FactoryProxy(CLEAN), Tampered()])
def test_a_target_without_bytes_does_not_look_numeric(factory: FactoryProxy) -> None:
    proxy = TargetProxy(factory.open(make_trace().config))
    for name in members(NumericTarget).keys() - members(Target).keys():
        assert not hasattr(proxy, name)
        with pytest.raises(AttributeError, match=f"HybridTarget.*{name}"):
            getattr(proxy, name)


def test_attributes_of_an_implementation_are_forwarded() -> None:
    assert TargetProxy(Mock(scheduler=sentinel.scheduler)).scheduler is sentinel.scheduler  # type: ignore[attr-defined]
    assert FactoryProxy(Mock(devices=sentinel.devices)).devices is sentinel.devices  # type: ignore[attr-defined]


def test_a_proxy_can_be_copied() -> None:
    """Without a guard, `copy` recurses for ever: it looks at attributes before there is a target to forward to."""
    target = Mock()
    assert copy.copy(TargetProxy(target)).target is target
