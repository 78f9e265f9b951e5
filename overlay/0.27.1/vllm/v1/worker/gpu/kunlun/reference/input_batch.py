# SPDX-License-Identifier: Apache-2.0
"""Sites 5 to 11, row by row."""

import torch


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Copy the tokens of prefilling rows; remember each one's next ones, 0 behind the prefill."""
    for row, request in enumerate(idx_mapping.tolist()):
        known = int(prefill_len[request])
        computed = int(num_computed_tokens[request])
        if computed >= known:
            continue
        start, end = int(query_start_loc[row]), int(query_start_loc[row + 1])
        for i in range(end - start):
            input_ids[start + i] = all_token_ids[request, computed + i]
        next_pos = computed + end - start
        for ahead in range(next_prefill_tokens.shape[0]):
            inside = next_pos + ahead < known
            next_prefill_tokens[ahead, request] = all_token_ids[request, next_pos + ahead] if inside else 0


def prepare_pos_seq_lens(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Positions follow what is computed; lengths behind the batch are 0."""
    for row in range(seq_lens.shape[0]):
        if row >= idx_mapping.shape[0]:
            seq_lens[row] = 0
            continue
        computed = int(num_computed_tokens[int(idx_mapping[row])])
        start, end = int(query_start_loc[row]), int(query_start_loc[row + 1])
        seq_lens[row] = computed + end - start
        for i in range(end - start):
            pos[start + i] = computed + i


def combine_sampled_and_draft_tokens(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_logits: int,
    num_new_sampled_tokens: int = 1,  # excl accepted draft tokens, a.k.a bonus tokens
) -> torch.Tensor:
    """Index every logit; write sampled and draft tokens where the row generates."""
    assert num_new_sampled_tokens in (0, 1), f"num_new_sampled_tokens must be 0 or 1, got {num_new_sampled_tokens}"
    logits_indices = torch.empty(num_logits, dtype=torch.int64, device=input_ids.device)
    for row, request in enumerate(idx_mapping.tolist()):
        first, stop = int(cu_num_logits[row]), int(cu_num_logits[row + 1])
        query_end = int(query_start_loc[row + 1])
        n = stop - first
        for i in range(n):
            logits_indices[first + i] = query_end - n + i
        seq_len, known = int(seq_lens[row]), int(prefill_len[request])
        if seq_len <= known:
            continue
        if num_new_sampled_tokens > 0 and seq_len - n >= known:
            input_ids[query_end - n] = _int32(int(last_sampled_tokens.view(-1)[request]))
        num_drafts = n - num_new_sampled_tokens
        for i in range(num_drafts):
            input_ids[query_end - num_drafts + i] = _int32(int(draft_tokens[request, i]))
    return logits_indices


def _int32(value: int) -> int:
    """What is left of an int64 in 32 bits."""
    return (value + 2**31) % 2**32 - 2**31


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A row inside its prefill sampled and lost nothing."""
    num_rejected = torch.empty_like(num_sampled)
    for row, request in enumerate(idx_mapping.tolist()):
        if int(seq_lens[row]) < int(prefill_len[request]):
            num_sampled[row] = 0
            num_rejected[row] = 0
        else:
            num_logits = int(cu_num_logits[row + 1]) - int(cu_num_logits[row])
            num_rejected[row] = num_logits - int(num_sampled[row])
    return num_sampled, num_rejected


def post_update(
    # [num_reqs] batch_idx -> req_state_idx; negative index means skip.
    idx_mapping: torch.Tensor,
    # [max_num_reqs]
    num_computed_tokens: torch.Tensor,
    # [max_num_reqs]
    last_sampled_tokens: torch.Tensor,
    # [max_num_reqs, vocab_size]
    output_bin_counts: torch.Tensor | None,
    # [num_reqs, num_speculative_steps + 1]
    sampled_tokens: torch.Tensor,
    # [num_reqs]
    num_sampled: torch.Tensor,
    # [num_reqs]
    num_rejected: torch.Tensor,
    # [num_reqs + 1]
    query_start_loc: torch.Tensor | None,
    # [max_num_reqs, max_model_len]
    all_token_ids: torch.Tensor,
    # [max_num_reqs]
    total_len: torch.Tensor,
) -> None:
    """Append each row's tokens to its request; what would go past max_model_len is dropped."""
    last = last_sampled_tokens.view(-1)
    for row, request in enumerate(idx_mapping.tolist()):
        if request < 0:
            continue
        before = int(total_len[request])
        n = min(int(num_sampled[row]), all_token_ids.shape[1] - before)
        for i in range(n):
            token = int(sampled_tokens[row, i])
            all_token_ids[request, before + i] = token
            if output_bin_counts is not None:
                output_bin_counts[request, token] += 1
        if n > 0:
            last[request] = sampled_tokens[row, n - 1]
            total_len[request] = before + n
        query_len = 0
        if query_start_loc is not None:
            query_len = int(query_start_loc[row + 1]) - int(query_start_loc[row])
        num_computed_tokens[request] += query_len - int(num_rejected[row])


def post_update_num_computed_tokens(
    # [num_reqs]
    idx_mapping: torch.Tensor,
    # [max_num_reqs]
    num_computed_tokens: torch.Tensor,
    # [num_reqs + 1]
    query_start_loc: torch.Tensor,
) -> None:
    """Count the tokens of this step as computed."""
    for row, request in enumerate(idx_mapping.tolist()):
        if request >= 0:
            num_computed_tokens[request] += int(query_start_loc[row + 1]) - int(query_start_loc[row])


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """State row and place in its row, for every logit."""
    expanded_idx_mapping = idx_mapping.new_empty(total_num_logits)
    expanded_local_pos = torch.empty(total_num_logits, dtype=torch.int32, device=idx_mapping.device)
    for row in range(idx_mapping.shape[0]):
        first, stop = int(cu_num_logits[row]), int(cu_num_logits[row + 1])
        for i in range(stop - first):
            expanded_idx_mapping[first + i] = idx_mapping[row]
            expanded_local_pos[first + i] = i
    return expanded_idx_mapping, expanded_local_pos
