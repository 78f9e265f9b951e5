# SPDX-License-Identifier: Apache-2.0
"""The step tier: Model Runner V2's control plane, driven without a model, upstream's kernels against the fork's."""
