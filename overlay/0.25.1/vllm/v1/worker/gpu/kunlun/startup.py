# SPDX-License-Identifier: Apache-2.0
"""What happens wherever a VllmConfig is made."""

import functools
import os

from vllm.logger import init_logger

from . import stamp, switches

logger = init_logger(__name__)


def check() -> None:
    """Refuse KUNLUN_* variables that cannot be obeyed; say once which fork this is.

    Here rather than in a worker, so that a typing error stops `vllm serve` at
    once and is not lost in the log of a rank.

    Raises:
        switches.SwitchError: see `switches.read`.
    """
    _announce(switches.read(os.environ).changed())


@functools.cache
def _announce(changed: tuple[str, ...]) -> None:
    logger.info("%s%s", stamp.read(), " ".join(("", *changed)))
