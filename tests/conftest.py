"""One thread a test process: two run side by side. Decoded images go to a folder of the tests'."""

import os
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["LEGR_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["LEGR_CACHE"]
