"""Each test body runs three times: in plain torch, in Triton's interpreter (small), compiled (where there is a GPU)."""

import pytest

SEEDS = {"torch_reference": 8, "interpreter": 2, "compiled": 24}
MARKS = {"torch_reference": (), "interpreter": (pytest.mark.interpreter,), "compiled": (pytest.mark.gpu,)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `backend` (implementation) and `seed` (drawn shapes; more where they are cheap)."""
    if "backend" not in metafunc.fixturenames:
        return
    import torch

    drawn = SEEDS if torch.cuda.is_available() else {**SEEDS, "compiled": 1}
    both = "seed" in metafunc.fixturenames
    cases = [
        pytest.param(*([name, seed] if both else [name]), marks=MARKS[name])
        for name, seeds in drawn.items()
        for seed in range(seeds if both else 1)
    ]
    metafunc.parametrize(["backend", "seed"] if both else ["backend"], cases, indirect=["backend"])


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> object:
    """Return a device_support.Backend."""
    import device_support

    return device_support.backend(request.param)
