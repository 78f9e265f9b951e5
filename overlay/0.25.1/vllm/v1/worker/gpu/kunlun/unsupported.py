# SPDX-License-Identifier: Apache-2.0
"""The error for what the fork cannot do without Triton."""


class UnsupportedOnKunlun(RuntimeError):
    """A feature reached a launcher that torch cannot express: raw device addresses with no tensor behind them.

    `feature` names it as a user knows it; there is no fall-back.
    """

    def __init__(self, feature: str) -> None:
        self.feature = feature
        super().__init__(
            f"kunlunfork: {feature} is not supported where no Triton kernel loads. "
            "Turn the feature off, or run this model with VLLM_USE_V2_MODEL_RUNNER=0."
        )
