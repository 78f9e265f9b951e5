# SPDX-License-Identifier: Apache-2.0
"""KUNLUN_UPSTREAM_FIXES=1: dflash slots where the manager's and the attention kernel's block sizes differ."""

from __future__ import annotations

import importlib
import random

import harness
import pytest
import torch
from sites import spec_decode_dflash as site

if harness.PIN >= (0, 27):
    # Upstream mended it in 0.26.0; from 0.27.1 on the fork's launcher has nothing to mend either.
    pytest.skip("no such bug", allow_module_level=True)

LAUNCHER = "spec_decode_dflash:prepare_dflash_inputs"
BLOCK_TABLE, BLOCK_SIZE = 12, 13


@pytest.mark.parametrize("backend", ["torch", "reference", "fused"])
def test_kernel_block_size_wins(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = harness.implementation(LAUNCHER, backend)
    module = importlib.import_module(f"{harness.kunlun_package()}.launchers.spec_decode_dflash")
    case = site._case(random.Random(1), "split", [20, 5], [0, 2], [1, 3], block_size=16)
    results = []
    for call, block_size in ((harness.original(site.MODULE, "prepare_dflash_inputs"), 16), (fork, 48)):
        args, kwargs = case.make()
        args = (*args[:BLOCK_SIZE], block_size, *args[BLOCK_SIZE + 1 :])
        monkeypatch.setitem(module.KERNEL_BLOCK_SIZES, args[BLOCK_TABLE].data_ptr(), 16)
        call(*args, **kwargs)
        results.append((args[1], args[3]))
    for want, got in zip(*results, strict=True):
        assert torch.equal(want, got)
