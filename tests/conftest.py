"""One thread a test process: two run side by side. Decoded images go to a folder of the tests'."""

import os
from collections.abc import Iterator
from pathlib import Path

import digits_net
import pytest
import torch

SLOW_FIXTURES = {"told", "versus"}  # a whole demo, a whole comparison

torch.set_num_threads(1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test that waits for a slow fixture is slow, however little it does itself."""
    if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["LEGR_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["LEGR_CACHE"]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes, too, find this checkout and the networks of the tests."""
    tests = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tests.parent, tests))))


@pytest.fixture(scope="session")
def weights(_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network that knows the digits."""
    path = tmp_path_factory.mktemp("digits") / "digits.pth"
    torch.save(digits_net.trained().state_dict(), path)
    return path
