"""One thread for every test: small tensors, and the machine may be busy."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
