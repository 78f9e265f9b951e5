# SPDX-License-Identifier: Apache-2.0
"""The known bugs of upstream that the fork can mend: none that is left in 0.28.0."""

from typing import Any


def set_constants(on: bool) -> None:
    """Nothing here: since 0.28.0 upstream compares a drafted prefix of bad words with the tokens it belongs to."""


def use_kernel_block_sizes(block_tables: Any) -> None:
    """Nothing here: since 0.26.0 dflash and dspark take the block sizes of the tables that they read themselves."""
