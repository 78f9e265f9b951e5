# SPDX-License-Identifier: Apache-2.0
"""Drafts by several MTP layers, which upstream has a speculator for since 0.28.0: refused before they are loaded."""

from __future__ import annotations

import harness
import pytest

if harness.PIN < (0, 28):
    pytest.skip("upstream never makes this speculator", allow_module_level=True)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_several_mtp_layers(backend: str) -> None:
    refusal = harness.importlib.import_module(f"{harness.kunlun_package()}.unsupported").UnsupportedOnKunlun
    load = harness.implementation("spec_decode_multi_module_mtp:load_draft_model", backend)
    with pytest.raises(refusal, match="several MTP layers"):
        load(object(), None, set())
