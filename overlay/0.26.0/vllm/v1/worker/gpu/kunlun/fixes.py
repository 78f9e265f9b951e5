# SPDX-License-Identifier: Apache-2.0
"""The known bugs of upstream that the fork can mend.

They are kept unless KUNLUN_UPSTREAM_FIXES is on, since parity is the promise;
but never one that reads or writes out of bounds.
"""

import importlib
import sys
from typing import Any


def set_constants(on: bool) -> None:
    """Let the implementations of this process compute what upstream means, or what it does.

    Bad words: a drafted prefix is compared with the tokens it belongs to (upstream
    0.28.0), or with those one place earlier.
    """
    for layer in ("launchers", "reference"):
        name = f"{__package__}.{layer}.sample_bad_words"
        if on or name in sys.modules:
            importlib.import_module(name).SPEC_OFFSET = int(on)


def use_kernel_block_sizes(block_tables: Any) -> None:
    """Nothing here: since 0.26.0 dflash and dspark take the block sizes of the tables that they read themselves."""
