# SPDX-License-Identifier: Apache-2.0
"""Sites 58-63: refused before the draft model is loaded, not when it first launches."""

from torch import nn

from ..unsupported import UnsupportedOnKunlun


def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
    """Raises UnsupportedOnKunlun; a draft model of one MTP layer, or one draft token a step, takes another speculator."""
    raise UnsupportedOnKunlun("method mtp with several MTP layers (multi_module_mtp)")
