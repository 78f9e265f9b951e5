# SPDX-License-Identifier: Apache-2.0
"""Sites 14 and 15: per-step state of hybrid attention + mamba models, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import mamba_utils

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu.input_batch import InputBatch


def _write(target: torch.Tensor, slots: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
    """target[slots] = new, where skipped rows have new == old and may share their slot with a real one."""
    target.index_add_(0, slots, (new - old).to(target.dtype))


def preprocess_state(
    self,
    input_batch: InputBatch,
    block_tables: tuple[torch.Tensor, ...],
    kv_cache_config: KVCacheConfig,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Advance each request's running block column and move its states there before the forward (align mode only).

    num_computed_tokens [max_num_reqs], before this step. The first call hands the state tensors to the context, which
    syncs once (see `mamba_utils.hold_tensors`).
    """
    if not self._align_mode:
        return
    num_reqs = input_batch.num_reqs
    if num_reqs == 0:
        return
    mamba_group_ids, mamba_spec = self._get_mamba_group_info(kv_cache_config)
    ctx = self._ensure_align_ctx(kv_cache_config, mamba_group_ids, block_tables)
    mamba_utils.hold_tensors(
        ctx,
        kv_cache_config,
        self.vllm_config.compilation_config.static_forward_context,
        [block_tables[group_id] for group_id in mamba_group_ids],
    )

    block_size = mamba_spec.block_size
    idx_mapping = input_batch.idx_mapping[:num_reqs]
    real = idx_mapping >= 0
    slots = idx_mapping.clamp(min=0)
    column = self._mamba_state_idx_gpu.index_select(0, slots)
    num_accepted = self.num_accepted_tokens_gpu.index_select(0, slots)
    query_lens = input_batch.query_start_loc[: num_reqs + 1].diff()
    computed = num_computed_tokens.index_select(0, slots) + query_lens
    new_column = torch.div(computed + (block_size - 1), block_size, rounding_mode="floor") - 1
    reset = (column >= 0) & (column != new_column)

    for target, new in (
        (self._mamba_src_col_gpu, column),
        (self._mamba_src_off_gpu, (num_accepted - 1).clamp_(min=0)),
        (self._mamba_state_idx_gpu, new_column),
        (self.num_accepted_tokens_gpu, torch.where(reset, 1, num_accepted)),
    ):
        old = target.index_select(0, slots)
        _write(target, slots, old, torch.where(real, new, old))
    mamba_utils.run_fused_precopy(
        ctx,
        num_reqs,
        self._mamba_state_idx_gpu,
        self._mamba_src_col_gpu,
        self._mamba_src_off_gpu,
        idx_mapping,
    )


def postprocess_state(
    self,
    idx_mapping: torch.Tensor,
    num_sampled: torch.Tensor | int,
    num_computed_tokens: torch.Tensor | None = None,
) -> None:
    """Note how many tokens of each request were accepted (at least 1), then save states at the last full block.

    idx_mapping [num_reqs], -1 for rows to skip; num_sampled [num_reqs] or one number for all.
    num_computed_tokens [max_num_reqs], after this step.
    """
    num_reqs = idx_mapping.shape[0]
    if num_reqs:
        slots = idx_mapping.clamp(min=0)
        old = self.num_accepted_tokens_gpu.index_select(0, slots)
        new = max(num_sampled, 1) if isinstance(num_sampled, int) else num_sampled[:num_reqs].clamp(min=1)
        _write(self.num_accepted_tokens_gpu, slots, old, torch.where(idx_mapping >= 0, new, old))
    if self._align_mode and num_computed_tokens is not None and self._mamba_ctx is not None and num_reqs:
        mamba_utils.run_fused_postprocess_align(
            self._mamba_ctx,
            num_reqs,
            self.num_accepted_tokens_gpu,
            self._mamba_state_idx_gpu,
            num_computed_tokens,
            idx_mapping,
        )
