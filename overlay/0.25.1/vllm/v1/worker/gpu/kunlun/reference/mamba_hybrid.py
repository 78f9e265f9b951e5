# SPDX-License-Identifier: Apache-2.0
"""Sites 14 and 15, request by request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..launchers.mamba_utils import hold_tensors
from . import mamba_utils

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu.input_batch import InputBatch


def preprocess_state(
    self,
    input_batch: InputBatch,
    block_tables: tuple[torch.Tensor, ...],
    kv_cache_config: KVCacheConfig,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Advance each request's running block column, then move its states there."""
    if not self._align_mode:
        return
    num_reqs = input_batch.num_reqs
    if num_reqs == 0:
        return
    mamba_group_ids, mamba_spec = self._get_mamba_group_info(kv_cache_config)
    ctx = self._ensure_align_ctx(kv_cache_config, mamba_group_ids, block_tables)
    hold_tensors(
        ctx,
        kv_cache_config,
        self.vllm_config.compilation_config.static_forward_context,
        [block_tables[group_id] for group_id in mamba_group_ids],
    )
    bounds = input_batch.query_start_loc.tolist()
    for row in range(num_reqs):
        slot = int(input_batch.idx_mapping[row])
        if slot < 0:
            continue
        column = int(self._mamba_state_idx_gpu[slot])
        num_accepted = int(self.num_accepted_tokens_gpu[slot])
        self._mamba_src_col_gpu[slot] = column
        self._mamba_src_off_gpu[slot] = max(num_accepted - 1, 0)
        computed = int(num_computed_tokens[slot]) + bounds[row + 1] - bounds[row]
        new_column = (computed + mamba_spec.block_size - 1) // mamba_spec.block_size - 1
        self._mamba_state_idx_gpu[slot] = new_column
        if column >= 0 and column != new_column:
            self.num_accepted_tokens_gpu[slot] = 1
    mamba_utils.run_fused_precopy(
        ctx,
        num_reqs,
        self._mamba_state_idx_gpu,
        self._mamba_src_col_gpu,
        self._mamba_src_off_gpu,
        input_batch.idx_mapping,
    )


def postprocess_state(
    self,
    idx_mapping: torch.Tensor,
    num_sampled: torch.Tensor | int,
    num_computed_tokens: torch.Tensor | None = None,
) -> None:
    """Accepted counts by state slot, at least 1; then the states that acceptance left beyond a full block."""
    num_reqs = idx_mapping.shape[0]
    for row in range(num_reqs):
        slot = int(idx_mapping[row])
        if slot >= 0:
            count = num_sampled if isinstance(num_sampled, int) else int(num_sampled[row])
            self.num_accepted_tokens_gpu[slot] = max(count, 1)
    if self._align_mode and num_computed_tokens is not None and self._mamba_ctx is not None and num_reqs:
        mamba_utils.run_fused_postprocess_align(
            self._mamba_ctx,
            num_reqs,
            self.num_accepted_tokens_gpu,
            self._mamba_state_idx_gpu,
            num_computed_tokens,
            idx_mapping,
        )
