# SPDX-License-Identifier: Apache-2.0
"""The buffers for devices without views of host memory, against upstream's with them."""

from __future__ import annotations

import importlib
import random
from typing import Any

import harness
import numpy as np
import pytest
import torch

from vllm.v1.worker.gpu import buffer_utils

CPU = torch.device("cpu")


@pytest.fixture
def uva(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, installed for the CPU and taken out again at the end."""
    module = importlib.import_module(f"{harness.kunlun_package()}.uva")
    monkeypatch.setattr(buffer_utils, "UvaBuffer", buffer_utils.UvaBuffer)
    for owner, name in module._REPLACED:
        monkeypatch.setattr(getattr(buffer_utils, owner), name, getattr(getattr(buffer_utils, owner), name))
    module.install(CPU)
    return module


@pytest.fixture
def copies(uva: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shape of everything that is copied to the device."""
    seen: list[tuple[int, ...]] = []
    write = uva._write

    def counted(out: torch.Tensor, x: Any) -> torch.Tensor:
        seen.append(tuple(out.shape))
        return write(out, x)

    monkeypatch.setattr(uva, "_write", counted)
    return seen


@pytest.mark.parametrize("size", [7, (3, 7)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_state_follows_the_host_when_told(uva: Any, size: Any, dtype: torch.dtype) -> None:
    rng = random.Random(str((size, dtype)))
    tensor = buffer_utils.UvaBackedTensor(size, dtype)
    rows = tensor.np.shape[0]
    on_device = np.zeros_like(tensor.np)
    address = tensor.gpu.data_ptr()
    assert (tensor.gpu.shape, tensor.gpu.dtype) == (tensor.cpu.shape, dtype)
    for _ in range(200):
        if rng.random() < 0.6:
            tensor.np.flat[rng.randrange(tensor.np.size)] = rng.randrange(-9, 9)
            assert (tensor.gpu.numpy() == on_device[: len(tensor.gpu)]).all(), "nothing before it is told"
        else:
            n = rng.choice([None, rng.randrange(1, rows + 1)])
            got = tensor.copy_to_uva(n)
            on_device[:n] = tensor.np[:n]
            assert got is tensor.gpu
            assert got.data_ptr() == address, "always in the same place: graphs keep addresses"
            assert (got.numpy() == on_device[:n]).all()
            assert (tensor.kunlun_device.numpy() == on_device).all()


def test_only_what_changed_is_copied(uva: Any, copies: list[tuple[int, ...]]) -> None:
    tensor = buffer_utils.UvaBackedTensor(8, torch.int32)
    for _ in range(5):
        tensor.copy_to_uva()
    assert copies == [], "zeros are there already"
    tensor.np[3] = 1
    for _ in range(5):
        tensor.copy_to_uva()
        tensor.copy_to_uva(4)
    assert copies == [(8,)]
    tensor.np[6] = 1
    tensor.copy_to_uva(4)
    assert copies == [(8,)], "what is not asked for is not copied"
    tensor.copy_to_uva()
    assert copies == [(8,), (8,)]


@pytest.mark.parametrize("form", [list, np.array, torch.tensor])
def test_pools(uva: Any, form: Any) -> None:
    pool = buffer_utils.UvaBufferPool((4,), torch.int32)
    first = pool.copy_to_uva(form([5, 6, 7]))
    assert (first.tolist(), first.dtype) == ([5, 6, 7], torch.int32)
    second = pool.copy_to_uva(form([1]))
    assert second.tolist() == [1]
    assert second.data_ptr() == first.data_ptr()
    if form is not list:
        out = torch.full((3,), 9, dtype=torch.int32)
        assert pool.copy_to_gpu(form([1, 2, 3]), out=out) is out
        assert out.tolist() == [1, 2, 3]
        new = pool.copy_to_gpu(form([4, 5]))
        assert (new.tolist(), new.dtype) == ([4, 5], torch.int32)
        assert new.data_ptr() != first.data_ptr()


def test_a_source_that_goes_on_changing(uva: Any) -> None:
    source = np.array([1, 2], dtype=np.int32)
    pool = buffer_utils.UvaBufferPool(2, torch.int32)
    copied = pool.copy_to_uva(source)
    source[:] = 9
    assert copied.tolist() == [1, 2]
    tensor = buffer_utils.UvaBackedTensor(2, torch.int32)
    tensor.np[:] = [3, 4]
    tensor.copy_to_uva()
    tensor.np[:] = 9
    assert tensor.gpu.tolist() == [3, 4]


def test_token_ids_of_all_requests(uva: Any, caplog: pytest.LogCaptureFixture) -> None:
    tensor = buffer_utils.StagedWriteTensor((3, 5), torch.int32, CPU, uva_instead_of_gpu=True)
    assert (tensor.gpu.tolist(), tensor.gpu.dtype) == ([[0] * 5] * 3, torch.int32)
    tensor.stage_write(1, 2, [7, 8])
    harness.implementation("buffer_utils:apply_write", "torch")(tensor)
    assert tensor.gpu[1].tolist() == [0, 0, 7, 8, 0]


def test_again_is_fine_and_drift_is_not(uva: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    uva.install(CPU)
    assert buffer_utils.UvaBackedTensor(2, torch.int32).gpu.tolist() == [0, 0]
    monkeypatch.setattr(buffer_utils.UvaBufferPool, "copy_to_gpu", lambda self, x, out, stream: None)
    monkeypatch.delattr(buffer_utils.UvaBackedTensor, "copy_to_uva")
    with pytest.raises(Exception, match=r"UvaBackedTensor\.copy_to_uva is gone") as error:
        uva.install(CPU)
    assert type(error.value).__name__ == "DriftError"
    assert "copy_to_gpu has other parameters" in str(error.value)


def test_a_cpu_sees_its_own_memory() -> None:
    module = importlib.import_module(f"{harness.kunlun_package()}.uva")
    assert module.views_work(CPU)[0]
