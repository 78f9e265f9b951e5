# SPDX-License-Identifier: Apache-2.0
"""The process's binder; importing this module installs the hook.

`vllm/v1/worker/gpu/__init__.py` imports it, so that it is there before any module
of Model Runner V2. It imports no torch, and changes nothing until a V2 runner is
constructed.
"""

from . import hook
from .binder import Binder
from .sites import REBINDERS, SITES

BINDER = Binder(SITES, REBINDERS)

hook.install(BINDER)
