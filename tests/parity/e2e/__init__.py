# SPDX-License-Identifier: Apache-2.0
"""The tier `e2e` of `kunlunfork matrix`: whole engines, upstream's and the fork's, asked the same.

`scenarios` says what is asked, without vLLM and torch; `serve` runs engines in the engine environment. What they say
is compared by the tool.
"""
