# SPDX-License-Identifier: Apache-2.0
"""kunlunfork: Model Runner V2 on devices that load no Triton kernel.

Nothing is imported here, so that `switches` and `stamp` cost nothing to read.
"""
