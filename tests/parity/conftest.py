# SPDX-License-Identifier: Apache-2.0
"""Prepare the oracle before a site module imports upstream.

`KUNLUN_PARITY_N` sets the random cases a site, `KUNLUN_PARITY_SEED` their seed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import interpreter

interpreter.prepare()
