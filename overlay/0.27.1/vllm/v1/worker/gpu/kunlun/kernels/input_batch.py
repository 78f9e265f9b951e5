# SPDX-License-Identifier: Apache-2.0
"""Sites 5 to 11 in one launch each: the inputs of a step and the request state after it.

Shapes and meaning are those of launchers/input_batch.py. A program has one request, or LANES requests where each has
but a few numbers.
"""

import torch

from vllm.triton_utils import tl, triton

from ..deferred import defer

LANES = 128
CHUNK = 1024


@triton.jit
def _prefill(
    input_ids, next_tokens, next_stride, num_ahead, idx_mapping, query_start_loc, tokens, tokens_stride, last_column,
    prefill_len, num_computed, CHUNK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    row = tl.load(idx_mapping + request).to(tl.int64)
    known = tl.load(prefill_len + row)
    computed = tl.load(num_computed + row)
    if computed < known:
        start = tl.load(query_start_loc + request)
        length = tl.load(query_start_loc + request + 1) - start
        mine = tokens + row * tokens_stride
        for first in range(0, length, CHUNK):
            step = first + tl.arange(0, CHUNK)
            inside = step < length
            token = tl.load(mine + tl.minimum(computed + step, last_column), mask=inside, other=0)
            tl.store(input_ids + start + step, token, mask=inside)
        ahead = tl.arange(0, AHEAD)
        following = computed + length + ahead
        wanted = ahead < num_ahead
        token = tl.load(mine + tl.minimum(following, last_column), mask=wanted & (following < known), other=0)
        tl.store(next_tokens + ahead * next_stride + row, token, mask=wanted)


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """A program a request; those past their prefill end at once."""
    num_reqs = idx_mapping.shape[0]
    if num_reqs:
        _prefill[(num_reqs,)](
            input_ids, next_prefill_tokens, next_prefill_tokens.stride(0), next_prefill_tokens.shape[0], idx_mapping,
            query_start_loc, all_token_ids, all_token_ids.stride(0), all_token_ids.shape[1] - 1, prefill_len,
            num_computed_tokens, CHUNK=CHUNK, AHEAD=triton.next_power_of_2(next_prefill_tokens.shape[0]),
        )  # fmt: skip


@triton.jit
def fill_positions(pos, seq_lens, query_start_loc, num_computed, request, row, CHUNK: tl.constexpr):
    """Positions of a request's tokens, and its length, which is returned."""
    computed = tl.load(num_computed + row.to(tl.int64))
    start = tl.load(query_start_loc + request)
    length = tl.load(query_start_loc + request + 1) - start
    tl.store(seq_lens + request, computed + length)
    for first in range(0, length, CHUNK):
        step = first + tl.arange(0, CHUNK)
        tl.store(pos + start + step, computed + step, mask=step < length)
    return computed + length


@triton.jit(do_not_specialize=["num_reqs"])
def _positions(pos, seq_lens, idx_mapping, query_start_loc, num_computed, num_reqs, max_num_reqs, CHUNK: tl.constexpr):
    # Programs behind the requests' own clear the lengths of the rows behind the batch.
    request = tl.program_id(0)
    if request < num_reqs:
        row = tl.load(idx_mapping + request)
        fill_positions(pos, seq_lens, query_start_loc, num_computed, request, row, CHUNK)
    else:
        place = num_reqs + (request - num_reqs) * CHUNK + tl.arange(0, CHUNK)
        tl.store(seq_lens + place, 0, mask=place < max_num_reqs)


def prepare_pos_seq_lens(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """A program a request, and one for each CHUNK rows behind the batch."""
    call = (idx_mapping, query_start_loc, num_computed_tokens, pos, seq_lens)
    if not defer("positions", call):
        launch_positions(*call)


def launch_positions(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Alone."""
    num_reqs, rows = idx_mapping.shape[0], seq_lens.shape[0]
    grid = num_reqs + triton.cdiv(rows - num_reqs, CHUNK)
    if grid:
        _positions[(grid,)](
            pos, seq_lens, idx_mapping, query_start_loc, num_computed_tokens, num_reqs, rows, CHUNK=CHUNK
        )


@triton.jit
def fill_combined(
    input_ids, logits_indices, last_sampled, query_start_loc, prefill_len, drafts, drafts_stride, cu_num_logits,
    num_steps, request, row, length, NEW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A request's sampled token and drafts, and where its logits are. `length`: its sequence's after this step."""
    row = row.to(tl.int64)
    first = tl.load(cu_num_logits + request)
    count = tl.load(cu_num_logits + request + 1) - first
    # The last logit of a row is at the last token of its query.
    place = tl.load(query_start_loc + request + 1) - count
    step = tl.arange(0, WIDTH)
    mine = step < count
    tl.store(logits_indices + first + step, place + step, mask=mine)

    known = tl.load(prefill_len + row)
    wanted = mine & (length > known)
    draft = step - NEW
    has_draft = wanted & (draft >= 0) & (draft < num_steps)
    token = tl.load(drafts + row * drafts_stride + draft, mask=has_draft, other=0)
    if NEW == 1:
        token = tl.where(step == 0, tl.load(last_sampled + row), token)
        # A row whose first logit is still one of the prompt's keeps the prompt's token there.
        wanted = wanted & ((step > 0) | (length - count >= known))
    tl.store(input_ids + place + step, token, mask=wanted)


@triton.jit
def _combine(
    input_ids, logits_indices, idx_mapping, last_sampled, query_start_loc, seq_lens, prefill_len, drafts, drafts_stride,
    cu_num_logits, num_steps, NEW: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    row = tl.load(idx_mapping + request)
    length = tl.load(seq_lens + request)
    fill_combined(
        input_ids, logits_indices, last_sampled, query_start_loc, prefill_len, drafts, drafts_stride, cu_num_logits,
        num_steps, request, row, length, NEW, WIDTH,
    )  # fmt: skip


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
    """A program a request: its sampled token and its drafts in one store."""
    assert num_new_sampled_tokens in (0, 1), f"num_new_sampled_tokens must be 0 or 1, got {num_new_sampled_tokens}"
    logits_indices = torch.empty(num_logits, dtype=torch.int64, device=input_ids.device)
    call = (
        input_ids, logits_indices, idx_mapping, last_sampled_tokens, query_start_loc, seq_lens, prefill_len,
        draft_tokens, cu_num_logits, num_new_sampled_tokens,
    )  # fmt: skip
    if not defer("combine", call):
        launch_combine(*call)
    return logits_indices


def launch_combine(
    input_ids: torch.Tensor,
    logits_indices: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    num_new_sampled_tokens: int,
) -> None:
    """Alone."""
    num_reqs, num_steps = idx_mapping.shape[0], draft_tokens.shape[-1]
    if num_reqs and logits_indices.shape[0]:
        _combine[(num_reqs,)](
            input_ids, logits_indices, idx_mapping, last_sampled_tokens, query_start_loc, seq_lens, prefill_len,
            draft_tokens, draft_tokens.stride(0), cu_num_logits, num_steps, NEW=num_new_sampled_tokens,
            WIDTH=triton.next_power_of_2(num_steps + num_new_sampled_tokens), num_warps=1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_reqs"])
def _counts(
    num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_reqs, LANES: tl.constexpr
):
    request = tl.program_id(0) * LANES + tl.arange(0, LANES)
    mine = request < num_reqs
    row = tl.load(idx_mapping + request, mask=mine, other=0).to(tl.int64)
    known = tl.load(prefill_len + row, mask=mine, other=0)
    outside = tl.load(seq_lens + request, mask=mine, other=0) >= known
    sampled = tl.load(num_sampled + request, mask=mine & outside, other=0)
    ends = tl.load(cu_num_logits + request + 1, mask=mine & outside, other=0)
    starts = tl.load(cu_num_logits + request, mask=mine & outside, other=0)
    tl.store(num_sampled + request, sampled, mask=mine)
    tl.store(num_rejected + request, ends - starts - sampled, mask=mine)


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """LANES requests a program. What is not loaded is 0, which is what a row inside its prefill gets."""
    num_reqs = idx_mapping.shape[0]
    num_rejected = torch.empty_like(num_sampled)
    if num_reqs:
        _counts[(triton.cdiv(num_reqs, LANES),)](
            num_sampled, num_rejected, seq_lens, cu_num_logits, idx_mapping, prefill_len, num_reqs, LANES=LANES
        )
    return num_sampled, num_rejected


@triton.jit
def _after(
    idx_mapping, num_computed, last_sampled, bins, bins_stride, sampled, sampled_stride, num_sampled, num_rejected,
    query_start_loc, tokens, tokens_stride, max_model_len, total_len, WIDTH: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    row = tl.load(idx_mapping + request).to(tl.int64)
    if row >= 0:
        length = tl.load(total_len + row)
        new = tl.minimum(tl.load(num_sampled + request), max_model_len - length)
        step = tl.arange(0, WIDTH)
        real = step < new
        token = tl.load(sampled + request.to(tl.int64) * sampled_stride + step, mask=real, other=0)
        tl.store(tokens + row * tokens_stride + length + step, token, mask=real)
        if new > 0:
            tl.store(last_sampled + row, tl.sum(tl.where(step == new - 1, token, 0), axis=0))
            tl.store(total_len + row, length + new)
        if bins is not None:
            # A token that a row has twice counts twice.
            tl.atomic_add(bins + row * bins_stride + token, tl.full((WIDTH,), 1, tl.int32), mask=real, sem="relaxed")
        done = -tl.load(num_rejected + request)
        if query_start_loc is not None:
            done += tl.load(query_start_loc + request + 1) - tl.load(query_start_loc + request)
        tl.store(num_computed + row, tl.load(num_computed + row) + done)


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
    """A program a request. What would go past max_model_len is dropped, as in torch."""
    num_reqs = idx_mapping.shape[0]
    if num_reqs:
        _after[(num_reqs,)](
            idx_mapping, num_computed_tokens, last_sampled_tokens, output_bin_counts,
            0 if output_bin_counts is None else output_bin_counts.stride(0), sampled_tokens, sampled_tokens.stride(0),
            num_sampled, num_rejected, query_start_loc, all_token_ids, all_token_ids.stride(0),
            all_token_ids.shape[1], total_len, WIDTH=triton.next_power_of_2(sampled_tokens.shape[1]), num_warps=1,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_reqs"])
def _advance(idx_mapping, num_computed, query_start_loc, num_reqs, LANES: tl.constexpr):
    request = tl.program_id(0) * LANES + tl.arange(0, LANES)
    mine = request < num_reqs
    row = tl.load(idx_mapping + request, mask=mine, other=-1).to(tl.int64)
    mine = mine & (row >= 0)
    ends = tl.load(query_start_loc + request + 1, mask=mine, other=0)
    starts = tl.load(query_start_loc + request, mask=mine, other=0)
    computed = tl.load(num_computed + row, mask=mine, other=0)
    tl.store(num_computed + row, computed + ends - starts, mask=mine)


def post_update_num_computed_tokens(
    # [num_reqs]
    idx_mapping: torch.Tensor,
    # [max_num_reqs]
    num_computed_tokens: torch.Tensor,
    # [num_reqs + 1]
    query_start_loc: torch.Tensor,
) -> None:
    """LANES requests a program."""
    num_reqs = idx_mapping.shape[0]
    if num_reqs:
        grid = (triton.cdiv(num_reqs, LANES),)
        _advance[grid](idx_mapping, num_computed_tokens, query_start_loc, num_reqs, LANES=LANES)


@triton.jit
def fill_expanded(rows, local_pos, cu_num_logits, request, row, WIDTH: tl.constexpr):
    """A request's state row and place for each of its logits."""
    first = tl.load(cu_num_logits + request)
    step = tl.arange(0, WIDTH)
    mine = step < tl.load(cu_num_logits + request + 1) - first
    tl.store(rows + first + step, row, mask=mine)
    tl.store(local_pos + first + step, step, mask=mine)


@triton.jit
def _expand(rows, local_pos, idx_mapping, cu_num_logits, WIDTH: tl.constexpr):
    request = tl.program_id(0)
    fill_expanded(rows, local_pos, cu_num_logits, request, tl.load(idx_mapping + request), WIDTH)


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A program a request, of at most max_expand_len logits."""
    rows = idx_mapping.new_empty(total_num_logits)
    local_pos = torch.empty(total_num_logits, dtype=torch.int32, device=idx_mapping.device)
    call = (rows, local_pos, idx_mapping, cu_num_logits, max_expand_len)
    if not defer("expand", call):
        launch_expand(*call)
    return rows, local_pos


def launch_expand(
    rows: torch.Tensor,
    local_pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> None:
    """Alone."""
    num_reqs = idx_mapping.shape[0]
    if num_reqs and rows.shape[0]:
        width = triton.next_power_of_2(max_expand_len)
        _expand[(num_reqs,)](rows, local_pos, idx_mapping, cu_num_logits, WIDTH=width, num_warps=1)
