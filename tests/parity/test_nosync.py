# SPDX-License-Identifier: Apache-2.0
"""The detector itself: every kind of wait is caught, and what launchers may do is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from nosync import HostSync, no_sync

X = torch.tensor([3, 1, 2])
MASK = X > 1

SYNCS: dict[str, Callable[[], object]] = {
    "item": lambda: X[0].item(),
    "tolist": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "asarray": lambda: np.asarray(X),
    "cpu": lambda: X.cpu(),
    "to_cpu": lambda: X.to("cpu"),
    "to_cpu_keyword": lambda: X.to(device="cpu"),
    "bool": lambda: bool(MASK.any()),
    "if": lambda: 1 if MASK[0] else 2,
    "int": lambda: int(X[0]),
    "float": lambda: float(X[0]),
    "index": lambda: [10, 20, 30, 40][X[0]],
    "slice_end": lambda: X[: X[1]],
    "scalar_select": lambda: X[X[1]],
    "range": lambda: range(X[0]),
    "arange": lambda: torch.arange(X[0]),
    "full": lambda: torch.full((2,), X[0]),
    "from_list": lambda: torch.tensor([X[0], X[1]]),
    "contains": lambda: 3 in X,
    "format": lambda: f"{X[0]}",
    "nonzero": lambda: X.nonzero(),
    "where": lambda: torch.where(MASK),
    "argwhere": lambda: torch.argwhere(MASK),
    "masked_select": lambda: X.masked_select(MASK),
    "mask_read": lambda: X[MASK],
    "mask_write": lambda: X.clone().__setitem__(MASK, X[:2]),
    "mask_fill": lambda: X.clone().__setitem__(MASK, 0),
    "repeat": lambda: X.repeat_interleave(X),
    "repeat_function": lambda: torch.repeat_interleave(X),
    "unique": lambda: X.unique(),
    "unique_consecutive": lambda: X.unique_consecutive(),
    "equal": lambda: torch.equal(X, X),
    "allclose": lambda: torch.allclose(X, X),
    "bincount": lambda: X.bincount(),
    "searchsorted": lambda: torch.searchsorted(X, X),
    "bucketize": lambda: torch.bucketize(X, X),
}

FREE: dict[str, Callable[[], object]] = {
    "gather": lambda: X[X - 1],
    "scatter": lambda: X.clone().index_add_(0, X - 1, X),
    "put": lambda: X.clone().__setitem__(X - 1, X),
    "where3": lambda: torch.where(MASK, X, 0),
    "masked_fill": lambda: X.masked_fill(MASK, 0),
    "repeat_sized": lambda: X.repeat_interleave(X, output_size=6),
    "to_dtype": lambda: X.to(torch.int32),
    "to_device_object": lambda: X.to(X.device, non_blocking=True),
    "from_numpy": lambda: torch.from_numpy(np.arange(3)),
    "shape": lambda: X.shape[0] + len(X),
    "iterate": lambda: [t + 1 for t in X],
}


@pytest.mark.parametrize("name", SYNCS)
def test_caught(name: str) -> None:
    SYNCS[name]()
    with pytest.raises(HostSync), no_sync():
        SYNCS[name]()


@pytest.mark.parametrize("name", FREE)
def test_free(name: str) -> None:
    with no_sync():
        FREE[name]()


def test_allowance_is_by_name() -> None:
    with no_sync({"numpy"}):
        X.numpy()
    with pytest.raises(HostSync), no_sync({"numpy"}):
        X.tolist()
