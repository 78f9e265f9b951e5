# SPDX-License-Identifier: Apache-2.0
"""Sites 53 and 54: thinking budgets. Where a request has thought for long enough, the end of its reasoning is forced.

Memory: about 20 bytes an element of one piece of 2**20 token ids. Upstream's kernel stops at the first block of a new
request's tokens that has a marker; here every step reads all token ids of the batch, [num_reqs, max_model_len], since
only the device knows where to begin. That happens only where a request of the batch has a budget.
"""

import torch

from ..vocab import pieces

# Upstream looks for markers of a new request backwards, in blocks of this size, and forgets what lies before the first
# one it finds: which of two markers is the later one is all that counts.
COLD_SCAN_BLOCK = 1024
FORCED = 1.0e9


def apply_thinking_budget(
    logits: torch.Tensor,
    req_ids: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    thinking_token_budget: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    cached_last_start: torch.Tensor,
    cached_last_end: torch.Tensor,
    cached_scan_pos: torch.Tensor,
    reasoning_start_token_ids: torch.Tensor,
    natural_reasoning_end_token_ids: torch.Tensor,
    reasoning_end_token_ids: torch.Tensor,
) -> None:
    """Make the next token of the end marker all but certain in every row whose reasoning has used up its budget.

    logits [num_tokens, vocab_size], in place; req_ids [num_reqs], the batch's states (distinct); expanded_idx_mapping,
    expanded_local_pos, input_ids [num_tokens]: a row's state, the drafts before it, and its input token;
    thinking_token_budget (negative: none) and total_len [max_num_reqs]; all_token_ids [max_num_reqs, max_model_len].
    cached_* [max_num_reqs]: where the last start and end markers begin among the committed tokens, and where to look
    on; updated. The marker token ids are int32 [length]. Rows and requests of no state (negative) are left alone.
    """
    start_ids, end_ids = reasoning_start_token_ids, natural_reasoning_end_token_ids
    _update_cache(
        req_ids,
        thinking_token_budget,
        all_token_ids,
        total_len,
        cached_last_start,
        cached_last_end,
        cached_scan_pos,
        start_ids,
        end_ids,
    )

    rows = torch.arange(logits.shape[0], device=logits.device)
    states = expanded_idx_mapping.clamp(min=0)
    budget = thinking_token_budget.index_select(0, states)
    drafts = expanded_local_pos.to(torch.int64)
    length = total_len.index_select(0, states) + drafts
    longest = max(start_ids.shape[0], end_ids.shape[0], reasoning_end_token_ids.shape[0] - 1)
    tail = _tail(rows, states, drafts, length, all_token_ids, input_ids, longest)

    def last(marker: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
        """Where it last begins among a row's tokens: the one that a row before it, or itself, ends with, or `cached`."""
        ends_here = _matches_tail(tail, length, marker) & (drafts > 0)
        found = torch.where(ends_here, rows, -1).cummax(0).values
        mine = found > rows - drafts
        begins = length.index_select(0, found.clamp(min=0)) - marker.shape[0]
        return torch.where(mine, begins, cached.index_select(0, states).to(torch.int64))

    last_start, last_end = last(start_ids, cached_last_start), last(end_ids, cached_last_end)
    spent = length - (last_start + start_ids.shape[0])
    forced = (expanded_idx_mapping >= 0) & (budget >= 0) & (last_start >= 0) & (last_start > last_end)
    forced &= spent >= budget

    # A tail that has the beginning of the end marker already goes on from there.
    done = torch.zeros_like(rows)
    for n in range(1, reasoning_end_token_ids.shape[0]):
        done.masked_fill_(_matches_tail(tail, length, reasoning_end_token_ids[:n]), n)
    token = reasoning_end_token_ids.index_select(0, done).to(torch.int64)
    # Upstream writes behind the row where a token lies outside the vocabulary.
    forced &= (token >= 0) & (token < logits.shape[1])
    column = token.clamp_(0, logits.shape[1] - 1).unsqueeze_(1)
    logits.scatter_(1, column, torch.where(forced.unsqueeze(1), FORCED, logits.gather(1, column)).to(logits.dtype))


def _update_cache(
    req_ids: torch.Tensor,
    budgets: torch.Tensor,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
    cached_last_start: torch.Tensor,
    cached_last_end: torch.Tensor,
    cached_scan_pos: torch.Tensor,
    start_ids: torch.Tensor,
    end_ids: torch.Tensor,
) -> None:
    """Look for markers in the tokens that were committed since the last time."""
    states = req_ids.clamp(min=0)
    active = (req_ids >= 0) & (budgets.index_select(0, states) >= 0)
    total = total_len.index_select(0, states).to(torch.int64)
    cached = [c.index_select(0, states) for c in (cached_last_start, cached_last_end, cached_scan_pos)]
    last_start, last_end, scan_pos = (c.to(torch.int64) for c in cached)
    stale = scan_pos > total
    last_start, last_end = last_start.masked_fill(stale, -1), last_end.masked_fill(stale, -1)
    scan_pos = scan_pos.masked_fill(stale, 0)
    cold = (scan_pos == 0) & (last_start < 0) & (last_end < 0)

    found_start, found_end = (
        _last_match(all_token_ids, states, marker, scan_pos, total) for marker in (start_ids, end_ids)
    )
    blocks = torch.div(total - 1 - torch.maximum(found_start, found_end), COLD_SCAN_BLOCK, rounding_mode="floor")
    block_start = total - (blocks + 1) * COLD_SCAN_BLOCK
    new = [
        torch.where((found >= 0) & ~(cold & (found < block_start)), found, old)
        for found, old in ((found_start, last_start), (found_end, last_end))
    ]
    new.append((total - (max(start_ids.shape[0], end_ids.shape[0]) - 1)).clamp_(min=0))
    for target, old, value in zip((cached_last_start, cached_last_end, cached_scan_pos), cached, new):
        # Requests without a budget may share state 0 with a real one, so add: nothing for them.
        target.index_add_(0, states, torch.where(active, value - old, 0).to(target.dtype))


def _last_match(
    all_token_ids: torch.Tensor, states: torch.Tensor, marker: torch.Tensor, first: torch.Tensor, total: torch.Tensor
) -> torch.Tensor:
    """The last place in [first, total) where the marker begins among the first `total` tokens, or -1; all [num_reqs]."""
    size, width = marker.shape[0], all_token_ids.shape[1]
    best = torch.full_like(total, -1)
    first, end = first.unsqueeze(1), (total - size).unsqueeze(1)
    for piece in pieces(states.shape[0], width - size + 1):
        tokens = all_token_ids[:, piece.start : piece.stop + size - 1].index_select(0, states)
        places = torch.arange(piece.start, piece.stop, device=total.device)
        matches = (places >= first) & (places <= end)
        for i in range(size):
            matches &= tokens[:, i : i + places.shape[0]] == marker[i]
        best = torch.maximum(best, torch.where(matches, places, -1).amax(1))
    return best


def _tail(
    rows: torch.Tensor,
    states: torch.Tensor,
    drafts: torch.Tensor,
    length: torch.Tensor,
    all_token_ids: torch.Tensor,
    input_ids: torch.Tensor,
    size: int,
) -> torch.Tensor:
    """The last `size` tokens of each row, drafts included, [num_tokens, size]; what a short row lacks is anything."""
    back = torch.arange(size - 1, -1, -1, device=rows.device)
    drafted = input_ids[(rows.unsqueeze(1) - back).clamp_(min=0)]
    places = (length.unsqueeze(1) - 1 - back).clamp_(0, all_token_ids.shape[1] - 1)
    committed = all_token_ids[states.unsqueeze(1), places]
    return torch.where(back < drafts.unsqueeze(1), drafted, committed)


def _matches_tail(tail: torch.Tensor, length: torch.Tensor, marker: torch.Tensor) -> torch.Tensor:
    """Whether each row ends with the marker."""
    size = marker.shape[0]
    return (tail[:, tail.shape[1] - size :] == marker).all(1) & (length >= size)
