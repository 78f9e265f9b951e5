# SPDX-License-Identifier: Apache-2.0
"""What `vllm/config/vllm.py` asks instead of `HAS_TRITON`: can runner V2 run here?

Only that module takes its `HAS_TRITON` from here; it asks before it chooses V2
and when it validates a configuration that has chosen it. On Kunlun the engine's
process has no Triton and a worker believes that it has one, so the answer must
not hang on that: it is yes in both where the fork can stand in for Triton.
"""

import functools
import os

from vllm.logger import init_logger
from vllm.triton_utils import HAS_TRITON as _UPSTREAM

from . import backend, switches, upstream_source
from .sites import SITES

logger = init_logger(__name__)

_NO_TRITON = "vLLM found no Triton"


class _Gate:
    """True where upstream's own answer is, or where the fork's sites are complete.

    KUNLUN_KERNELS=upstream leaves upstream's answer alone.
    """

    def __bool__(self) -> bool:
        if _UPSTREAM:
            return True
        wanted = switches.read(os.environ)
        return wanted.kernels != "upstream" and _complete(wanted)


HAS_TRITON = _Gate()


def obstacles(wanted: switches.Switches) -> tuple[str, ...]:
    """Why runner V2 cannot run without Triton under these switches; empty: it can.

    Imports the implementations that would run, which import torch and nothing of
    vLLM; reads upstream's launchers without importing them.
    """
    found = list(upstream_source.problems(SITES))
    try:
        backend.decide(wanted, lambda: (False, _NO_TRITON), SITES)
    except (backend.BackendError, ImportError) as e:
        found.append(str(e))
    return tuple(found)


@functools.cache
def _complete(wanted: switches.Switches) -> bool:
    found = obstacles(wanted)
    if found:
        logger.warning(
            "kunlunfork cannot stand in for Triton under Model Runner V2: %s",
            "; ".join(found),
        )
    return not found
