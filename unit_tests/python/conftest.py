# SPDX-License-Identifier: MIT
from __future__ import annotations

import importlib
from typing import Any

import pytest


class Where:
    """A framework and the device of its tensors."""

    def __init__(self, name: str) -> None:
        self.name = name
        framework, _, self.device = name.partition("-")
        self.module: Any = pytest.importorskip(framework)
        if self.device == "cuda":
            if framework == "torch" and not self.module.cuda.is_available():
                pytest.skip("torch sees no GPU")
            import chunked_prefill._core as core

            if "Cuda" not in core.configuration():
                pytest.skip("chunked_prefill was built without CUDA")

    def tensor(self, values: Any, dtype: str = "int32") -> Any:
        if self.module.__name__ == "torch":
            device = "cuda:0" if self.device == "cuda" else "cpu"
            return self.module.tensor(values, dtype=getattr(self.module, dtype), device=device)
        return self.module.array(values, dtype=dtype)

    def on_cpu(self, values: Any, dtype: str = "int32") -> Any:
        if self.module.__name__ == "torch":
            return self.module.tensor(values, dtype=getattr(self.module, dtype))
        return importlib.import_module("numpy").array(values, dtype=dtype)

    def is_one(self, value: Any) -> bool:
        kind = self.module.Tensor if self.module.__name__ == "torch" else self.module.ndarray
        return isinstance(value, kind)


@pytest.fixture(params=["numpy-cpu", "torch-cpu", "torch-cuda", "cupy-cuda"])
def where(request: pytest.FixtureRequest) -> Where:
    return Where(request.param)


@pytest.fixture
def torch_cuda() -> Where:
    return Where("torch-cuda")
