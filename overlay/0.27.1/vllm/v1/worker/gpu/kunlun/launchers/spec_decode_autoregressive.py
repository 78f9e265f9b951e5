# SPDX-License-Identifier: Apache-2.0
"""Sites 27-29: inputs of an autoregressive (eagle, mtp) draft, in torch.

`update_draft_inputs` runs inside the captured decode graph: it writes persistent buffers in place and reads the draft
step on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..ragged import segment_ids

if TYPE_CHECKING:
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers


def prepare_prefill_inputs(
    # [num_reqs]
    last_token_indices: torch.Tensor,
    current_draft_step: torch.Tensor,
    input_buffers: InputBuffers,
    input_batch: InputBatch,
    # [num_reqs]
    num_sampled: torch.Tensor,
    # [num_reqs]
    num_rejected: torch.Tensor,
    # [max_num_reqs]
    last_sampled: torch.Tensor,
    # [ahead, max_num_reqs]
    next_prefill_tokens: torch.Tensor,
    max_num_reqs,
) -> torch.Tensor:
    """Shift the target's tokens left by one into the draft's buffers, behind them the newest token of each request.

    A request's rejected tail is left as it was. `last_token_indices` [max_num_reqs] gets each request's last accepted
    token, 0 in padding rows, and is returned. query_start_loc and seq_lens are padded to max_num_reqs, the draft step
    is reset. last_sampled is [max_num_reqs] or [max_num_reqs, 1], int64.
    """
    num_reqs = input_batch.num_reqs
    if num_reqs == 0:
        return last_token_indices
    num_tokens = input_batch.num_tokens
    bounds = input_batch.query_start_loc[: num_reqs + 1]
    # No row is negative on a real batch; 0 keeps the reads inside the state if one ever is.
    slots = input_batch.idx_mapping[:num_reqs].clamp(min=0)
    newest = torch.where(
        num_sampled[:num_reqs] > 0,
        last_sampled.reshape(-1).index_select(0, slots).to(torch.int32),
        next_prefill_tokens[0].index_select(0, slots),
    )
    last = bounds[1:] - num_rejected[:num_reqs] - 1

    rows = segment_ids(bounds, num_reqs, num_tokens)
    token = torch.arange(num_tokens, dtype=last.dtype, device=last.device)
    ahead = last.index_select(0, rows) - token
    ids = input_buffers.input_ids[:num_tokens]
    # The token that wraps round to the end is never used: it lies at or behind its request's last one.
    shifted = torch.roll(input_batch.input_ids[:num_tokens], -1)
    kept = torch.where(ahead == 0, newest.index_select(0, rows), ids)
    ids.copy_(torch.where(ahead > 0, shifted, kept))
    positions = input_buffers.positions[:num_tokens]
    positions.copy_(torch.where(ahead >= 0, input_batch.positions[:num_tokens], positions))

    last_token_indices[:num_reqs].copy_(last)
    last_token_indices[num_reqs:max_num_reqs].zero_()
    input_buffers.query_start_loc[:num_reqs].copy_(bounds[:num_reqs])
    input_buffers.query_start_loc[num_reqs : max_num_reqs + 1].copy_(bounds[num_reqs:])
    input_buffers.seq_lens[:num_reqs].copy_(input_batch.seq_lens[:num_reqs])
    input_buffers.seq_lens[num_reqs:max_num_reqs].zero_()
    current_draft_step.zero_()
    return last_token_indices


def prepare_decode_inputs(
    draft_tokens: torch.Tensor,
    target_seq_lens: torch.Tensor,
    num_rejected: torch.Tensor,
    input_buffers: InputBuffers,
    max_model_len: int,
    max_num_reqs: int,
    advance_draft_positions: bool = True,
):
    """Give every request one query token, its first draft (draft_tokens [num_reqs], any stride).

    Sequence lengths are the target's without what was rejected. They and the positions step on by one, clamped to the
    model's length, unless the draft keeps its positions.
    """
    num_reqs = draft_tokens.shape[0]
    bounds = input_buffers.query_start_loc[: max_num_reqs + 1]
    bounds.copy_(torch.arange(max_num_reqs + 1, dtype=bounds.dtype, device=bounds.device).clamp_(max=num_reqs))
    input_buffers.seq_lens[num_reqs:max_num_reqs].zero_()
    input_buffers.input_ids[:num_reqs].copy_(draft_tokens)
    seq_lens = input_buffers.seq_lens[:num_reqs]
    torch.sub(target_seq_lens[:num_reqs], num_rejected[:num_reqs], out=seq_lens)
    if advance_draft_positions:
        input_buffers.positions[:num_reqs].add_(1).clamp_(max=max_model_len - 1)
        seq_lens.add_(1).clamp_(max=max_model_len)


def update_draft_inputs(
    draft_tokens: torch.Tensor,
    current_draft_step: torch.Tensor,
    hidden_states: torch.Tensor,
    output_draft_tokens: torch.Tensor,
    next_input_hidden_states: torch.Tensor,
    input_buffers: InputBuffers,
    num_reqs: int,
    max_model_len: int,
    num_speculative_steps: int,
    advance_draft_positions: bool = True,
):
    """Store a draft step's tokens in their column, and unless it was the last step feed them back as inputs.

    current_draft_step is a device scalar; hidden_states [>= num_reqs, hidden], output_draft_tokens [max_num_reqs, N].
    """
    if num_reqs == 0:
        return
    hidden_size = hidden_states.shape[1]
    tokens = draft_tokens[:num_reqs]
    step = current_draft_step.reshape(1, 1)
    output_draft_tokens[:num_reqs].scatter_(1, step.expand(num_reqs, 1), tokens.unsqueeze(1))

    go_on = step.reshape(1) < num_speculative_steps - 1
    ids = input_buffers.input_ids[:num_reqs]
    ids.copy_(torch.where(go_on, tokens.to(ids.dtype), ids))
    following = next_input_hidden_states[:num_reqs, :hidden_size]
    torch.where(go_on, hidden_states[:num_reqs], following, out=following)
    if advance_draft_positions:
        positions = input_buffers.positions[:num_reqs]
        positions.copy_(torch.where(go_on, (positions + 1).clamp_(max=max_model_len - 1), positions))
        seq_lens = input_buffers.seq_lens[:num_reqs]
        seq_lens.copy_(torch.where(go_on, (seq_lens + 1).clamp_(max=max_model_len), seq_lens))
