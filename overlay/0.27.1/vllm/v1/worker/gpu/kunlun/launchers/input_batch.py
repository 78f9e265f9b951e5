# SPDX-License-Identifier: Apache-2.0
"""Sites 5 to 11: the inputs of a step and the request state after it.

Shapes: `max` is max_num_reqs, `n` the batch's requests, `tokens` the length of the token buffers. Offsets
(query_start_loc, cu_num_logits) may be padded behind their first n + 1 entries. Only post_update and
post_update_num_computed_tokens take negative rows; elsewhere idx_mapping holds n different valid ones.
"""

import torch

from ..ragged import flat, segment_ids


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    prefill_len: torch.Tensor,
    num_computed_tokens: torch.Tensor,
) -> None:
    """Copy the known tokens of the rows that are still prefilling, and remember each one's next ones.

    Writes input_ids [tokens] and next_prefill_tokens [ahead, max], 0 where the prefill has ended; a row past its
    prefill leaves both alone. all_token_ids [max, max_model_len], on the device of the rest.
    """
    num_reqs = idx_mapping.shape[0]
    length = input_ids.shape[0]
    if num_reqs == 0:
        return
    starts = query_start_loc[:num_reqs]
    known = prefill_len.index_select(0, idx_mapping)
    computed = num_computed_tokens.index_select(0, idx_mapping)
    prefilling = computed < known
    last = all_token_ids.shape[1] - 1
    table = flat(all_token_ids)
    stride = all_token_ids.stride(0)

    batch_rows = segment_ids(query_start_loc, num_reqs, length)
    is_token = batch_rows < num_reqs
    batch_rows.clamp_(max=num_reqs - 1)
    columns = (computed - starts).index_select(0, batch_rows) + torch.arange(length, device=input_ids.device)
    columns.clamp_(0, last)
    entries = columns.add_(idx_mapping.index_select(0, batch_rows), alpha=stride)
    tokens = table.index_select(0, entries).to(input_ids.dtype)
    is_token &= prefilling.index_select(0, batch_rows)
    torch.where(is_token, tokens, input_ids, out=input_ids)

    next_pos = computed + query_start_loc[1 : num_reqs + 1] - starts
    next_pos = next_pos + torch.arange(next_prefill_tokens.shape[0], device=next_pos.device).unsqueeze(1)
    entries = next_pos.clamp(0, last).add_(idx_mapping, alpha=stride)
    following = table.index_select(0, entries.view(-1)).view_as(entries).to(next_prefill_tokens.dtype)
    following.masked_fill_(next_pos >= known, 0)
    # Rows are different, so the others can be given what they have.
    kept = next_prefill_tokens.index_select(1, idx_mapping)
    next_prefill_tokens.index_copy_(1, idx_mapping.to(torch.int64), torch.where(prefilling, following, kept))


def prepare_pos_seq_lens(
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
) -> None:
    """Position of every token, and length of every sequence after this step, 0 for the rows behind the batch.

    Writes pos [tokens] up to the last token and seq_lens [max] whole.
    """
    num_reqs = idx_mapping.shape[0]
    length = pos.shape[0]
    seq_lens[num_reqs:].zero_()
    if num_reqs == 0:
        return
    # Of a row: position less place in the buffer.
    shift = num_computed_tokens.index_select(0, idx_mapping) - query_start_loc[:num_reqs]
    torch.add(shift, query_start_loc[1 : num_reqs + 1], out=seq_lens[:num_reqs])
    batch_rows = segment_ids(query_start_loc, num_reqs, length)
    is_token = batch_rows < num_reqs
    new = shift.index_select(0, batch_rows.clamp_(max=num_reqs - 1))
    new = new + torch.arange(length, dtype=pos.dtype, device=pos.device)
    torch.where(is_token, new, pos, out=pos)


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
    """Put each row's last sampled token and its draft tokens at the end of its query; say where its logits are.

    last_sampled_tokens int64 [max, 1] (or [max]), draft_tokens int64 [max, N], N may be 0. Rows inside their
    prefill get no token, rows whose logits begin inside it no sampled one. Returns int64 [num_logits], indices
    into the token buffer. With one new token a row has at least one logit.
    """
    assert num_new_sampled_tokens in (0, 1), f"num_new_sampled_tokens must be 0 or 1, got {num_new_sampled_tokens}"
    num_reqs = idx_mapping.shape[0]
    ends = query_start_loc[1 : num_reqs + 1]
    lens = seq_lens[:num_reqs]
    known = prefill_len.index_select(0, idx_mapping)
    sampled = last_sampled_tokens.view(-1).index_select(0, idx_mapping)
    if num_new_sampled_tokens == 1 and num_logits == num_reqs:
        # One logit each: no drafts, and the row is the index.
        logits_indices = ends.to(torch.int64) - 1
        _write(input_ids, logits_indices, sampled, lens > known)
        return logits_indices

    logit_ends = cu_num_logits[1 : num_reqs + 1]
    logit_starts = cu_num_logits[:num_reqs]
    batch_rows = torch.repeat_interleave(logit_ends - logit_starts, output_size=num_logits)
    ramp = torch.arange(num_logits, device=input_ids.device)
    # The last logit of a row is at the last token of its query.
    logits_indices = (ends - logit_ends).index_select(0, batch_rows) + ramp
    step = ramp - logit_starts.index_select(0, batch_rows)
    candidates = draft_tokens.index_select(0, idx_mapping)
    generated = lens > known
    wanted = generated.index_select(0, batch_rows)
    if num_new_sampled_tokens == 1:
        candidates = torch.cat([sampled.unsqueeze(1), candidates], dim=1)
        starts_generated = lens - (logit_ends - logit_starts) >= known
        wanted &= (step > 0) | starts_generated.index_select(0, batch_rows)
    width = candidates.shape[1]
    if width:
        entries = step.clamp_(max=width - 1).add_(batch_rows, alpha=width)
        _write(input_ids, logits_indices, candidates.view(-1).index_select(0, entries), wanted)
    return logits_indices


def _write(input_ids: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor) -> None:
    """input_ids[places] = tokens where wanted; the places are different."""
    kept = input_ids.index_select(0, places)
    input_ids.index_copy_(0, places, torch.where(wanted, tokens.to(input_ids.dtype), kept))


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens that each row sampled and drafts that it lost: neither for a row still inside its prefill.

    num_sampled [n] is corrected in place and returned, with num_rejected of its type and length; entries of
    the latter behind n are not initialised.
    """
    num_reqs = idx_mapping.shape[0]
    num_rejected = torch.empty_like(num_sampled)
    inside = seq_lens[:num_reqs] < prefill_len.index_select(0, idx_mapping)
    sampled = num_sampled[:num_reqs].masked_fill_(inside, 0)
    rejected = num_rejected[:num_reqs]
    torch.sub(cu_num_logits[1 : num_reqs + 1], cu_num_logits[:num_reqs], out=rejected)
    rejected.sub_(sampled).masked_fill_(inside, 0)
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
    """Append each row's sampled tokens to its request, without a sync.

    Rows of negative index are skipped. Tokens repeated in a row count each time in output_bin_counts (None: no
    counts). sampled_tokens behind a row's num_sampled are not initialised and not used. last_sampled_tokens may be
    [max, 1]. What would go past max_model_len is dropped; upstream writes it into the next request's row.

    Every write is an addition: what must not change is sent, with zero added, to entry 0, which any number of
    rows may share.
    """
    rows, lens, new = _advance(
        idx_mapping,
        num_computed_tokens,
        num_sampled,
        num_rejected,
        query_start_loc,
        all_token_ids,
        total_len,
    )
    last = last_sampled_tokens.view(-1)
    tokens = sampled_tokens[: rows.shape[0]]
    if tokens.shape[1] == 1:
        real = new.unsqueeze(1)
        change = torch.sub(tokens, last.index_select(0, rows).unsqueeze(1)).mul_(real)
        entries = torch.add(lens, rows, alpha=all_token_ids.stride(0)).unsqueeze(1)
    else:
        step = torch.arange(tokens.shape[1], dtype=new.dtype, device=new.device)
        real = (step < new.unsqueeze(1)).to(new.dtype)
        final = (new - 1).clamp_(min=0).to(torch.int64).unsqueeze(1)
        change = tokens.gather(1, final).squeeze(1).sub_(last.index_select(0, rows)).mul_(new > 0)
        entries = torch.add(lens, rows, alpha=all_token_ids.stride(0)).unsqueeze(1) + step
    last.index_add_(0, rows, change.view(-1).to(last.dtype))
    _add(all_token_ids, entries.mul_(real), tokens, real)
    if output_bin_counts is not None:
        entries = torch.add(tokens, rows.unsqueeze(1), alpha=output_bin_counts.stride(0)).mul_(real)
        counts = real.reshape(-1).to(output_bin_counts.dtype)
        flat(output_bin_counts).index_add_(0, entries.view(-1), counts)


def _add(table: torch.Tensor, entries: torch.Tensor, tokens: torch.Tensor, real: torch.Tensor) -> None:
    """Make the entries of a table `tokens` by adding, nothing where `real` is 0."""
    window = flat(table)
    entries = entries.view(-1)
    change = (tokens - window.index_select(0, entries).view_as(tokens)).mul_(real)
    window.index_add_(0, entries, change.view(-1).to(table.dtype))


def post_update_compact(
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
    """The same as post_update (KUNLUN_POSTUPD3=0), touching only the entries that change.

    The host waits once, for the list of the tokens that are real (`nonzero`); it cannot be captured in a graph.
    """
    rows, lens, new = _advance(
        idx_mapping,
        num_computed_tokens,
        num_sampled,
        num_rejected,
        query_start_loc,
        all_token_ids,
        total_len,
    )
    step = torch.arange(sampled_tokens.shape[1], dtype=new.dtype, device=new.device)
    real = (step < new.unsqueeze(1)).nonzero()  # sync-ok: the one wait of this form
    batch_rows, column = real[:, 0], real[:, 1]
    tokens = sampled_tokens[batch_rows, column]
    rows = rows.index_select(0, batch_rows)
    column = column + lens.index_select(0, batch_rows)
    entries = column.add_(rows, alpha=all_token_ids.stride(0))
    flat(all_token_ids).index_copy_(0, entries, tokens.to(all_token_ids.dtype))
    if output_bin_counts is not None:
        entries = torch.add(tokens, rows, alpha=output_bin_counts.stride(0))
        ones = torch.ones_like(entries, dtype=output_bin_counts.dtype)
        flat(output_bin_counts).index_add_(0, entries, ones)
    # Of a row's tokens the last one stays: the others add nothing.
    last = last_sampled_tokens.view(-1)
    final = real[:, 1] == new.index_select(0, batch_rows) - 1
    change = (tokens - last.index_select(0, rows)).mul_(final)
    last.index_add_(0, rows, change.to(last.dtype))


def _advance(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    all_token_ids: torch.Tensor,
    total_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Update both counts of each request.

    Returns, by batch row: state row (int64, 0 for a skipped one), total length before, tokens to append.
    """
    num_reqs = idx_mapping.shape[0]
    alive = idx_mapping >= 0
    rows = idx_mapping.clamp(min=0).to(torch.int64)
    lens = total_len.index_select(0, rows)
    new = torch.minimum(num_sampled[:num_reqs], all_token_ids.shape[1] - lens).mul_(alive)
    total_len.index_add_(0, rows, new.to(total_len.dtype))
    if query_start_loc is None:
        done = -num_rejected[:num_reqs]
    else:
        done = query_start_loc[1 : num_reqs + 1] - query_start_loc[:num_reqs] - num_rejected[:num_reqs]
    num_computed_tokens.index_add_(0, rows, done.mul_(alive).to(num_computed_tokens.dtype))
    return rows, lens, new


def post_update_num_computed_tokens(
    # [num_reqs]
    idx_mapping: torch.Tensor,
    # [max_num_reqs]
    num_computed_tokens: torch.Tensor,
    # [num_reqs + 1]
    query_start_loc: torch.Tensor,
) -> None:
    """Count the tokens of this step as computed. Rows of negative index are skipped."""
    num_reqs = idx_mapping.shape[0]
    lens = query_start_loc[1 : num_reqs + 1] - query_start_loc[:num_reqs]
    lens = (lens * (idx_mapping >= 0)).to(num_computed_tokens.dtype)
    num_computed_tokens.index_add_(0, idx_mapping.clamp(min=0), lens)


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    total_num_logits: int,
    cu_num_logits: torch.Tensor,
    max_expand_len: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """State row of each logit (idx_mapping's type, negative ones as they are) and its place in its row (int32).

    Both [total_num_logits], the sum of the rows' logits, which the host knows.
    """
    num_reqs = idx_mapping.shape[0]
    starts = cu_num_logits[:num_reqs]
    repeats = cu_num_logits[1 : num_reqs + 1] - starts
    batch_rows = torch.repeat_interleave(repeats, output_size=total_num_logits)
    ramp = torch.arange(total_num_logits, dtype=torch.int32, device=idx_mapping.device)
    local_pos = ramp - starts.index_select(0, batch_rows).to(torch.int32)
    return idx_mapping.index_select(0, batch_rows), local_pos
