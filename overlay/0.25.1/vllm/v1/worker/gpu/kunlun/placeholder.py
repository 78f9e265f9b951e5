# SPDX-License-Identifier: Apache-2.0
"""The rest of upstream's stand-in for a Triton that is not there."""

from vllm import triton_utils
from vllm.utils.math_utils import next_power_of_2


def complete() -> None:
    """Give it the host function that launchers of V2 call and that it lacks.

    A Triton that is there, working or not, is left alone.
    """
    if not triton_utils.HAS_TRITON and not hasattr(triton_utils.triton, "next_power_of_2"):
        triton_utils.triton.next_power_of_2 = next_power_of_2
