# SPDX-License-Identifier: Apache-2.0
"""Sites 24 and 25: penalties, and the token statistics that they read.

Memory: about 32 bytes an element of one piece of 2**20 elements.
"""

import torch

from ..vocab import BLOCK, pieces, row_pieces


def apply_penalties(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    token_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    repetition_penalty: torch.Tensor,
    frequency_penalty: torch.Tensor,
    presence_penalty: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    output_bin_counts: torch.Tensor,
) -> None:
    """Repetition, frequency and presence penalty, in this order, in place.

    logits [num_tokens, vocab_size]; expanded_idx_mapping [num_tokens]; token_ids [num_tokens], input token of each
    row; expanded_local_pos [num_tokens], place of a row among its request's; the penalties [max_num_reqs];
    prompt_bin_mask [max_num_reqs, ceil(vocab_size / 32)], a bit a token; output_bin_counts [max_num_reqs, vocab_size].
    Row i counts the drafts before it too: the tokens of the rows i - pos + 1 to i. Rows with no penalty and rows of
    no request (negative) are left alone. Repetition multiplies by 1 / penalty, as upstream does.
    """
    num_tokens = logits.shape[0]
    request = expanded_idx_mapping.clamp(min=0)

    def param(state: torch.Tensor) -> torch.Tensor:
        return state.index_select(0, request).unsqueeze_(1)

    repetition, frequency, presence = map(param, (repetition_penalty, frequency_penalty, presence_penalty))
    used = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
    used &= (expanded_idx_mapping >= 0).unsqueeze(1)
    first = (torch.arange(num_tokens, device=logits.device) - expanded_local_pos).clamp_(min=0)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    drafts = token_ids.unsqueeze(1)
    # A word of the prompt's bits holds 32 tokens; blocks of 1,024 of 8,192 rows would take 200 MiB.
    for piece in pieces(*logits.shape, block=32):
        # Running count down the rows: what stands at the request's first row is not its own.
        ids = torch.arange(piece.start, piece.stop, dtype=drafts.dtype, device=logits.device)
        running = (drafts == ids).cumsum(0, dtype=torch.int32)
        counts = output_bin_counts[:, piece].index_select(0, request)
        counts += running
        counts -= running.index_select(0, first)
        seen = counts > 0

        words = slice(piece.start // 32, -(-piece.stop // 32))
        packed = prompt_bin_mask[:, words].index_select(0, request).unsqueeze_(2)
        in_prompt = packed.bitwise_right_shift(bits).bitwise_and_(1).view(num_tokens, -1)[:, : ids.shape[0]]
        scale = torch.where(in_prompt.bool().logical_or_(seen), repetition, 1.0)

        old = logits[:, piece]
        x = old.to(torch.float32)
        x = x * torch.where(x > 0, 1.0 / scale, scale)
        x -= frequency * counts
        x -= presence * seen
        logits[:, piece] = torch.where(used, x.to(logits.dtype), old)


def bincount(
    expanded_idx_mapping: torch.Tensor,
    all_token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    prefill_len: torch.Tensor,
    prompt_bin_mask: torch.Tensor,
    output_bin_counts: torch.Tensor,
    max_prefill_len: int,
) -> None:
    """Build the statistics of new requests: bits of their prompt tokens, counts of the tokens generated before.

    expanded_idx_mapping [num_reqs]; all_token_ids [max_num_reqs, max_model_len]; prompt_len and prefill_len
    [max_num_reqs]; prompt_bin_mask and output_bin_counts as above: the requests' rows are written whole, others not
    at all. max_prefill_len: largest prefill_len of these requests. Tokens outside the vocabulary are not counted
    (upstream writes out of bounds).
    """
    request = expanded_idx_mapping.to(torch.int64)
    vocab_size = output_bin_counts.shape[1]
    words = prompt_bin_mask.shape[1]
    # Upstream's kernel works in blocks: a block whose start is inside the prefill takes all its prompt tokens.
    length = min(-(-max_prefill_len // BLOCK) * BLOCK, all_token_ids.shape[1])
    column = torch.arange(length, device=request.device)
    block_start = column // BLOCK * BLOCK
    bits = torch.arange(32, dtype=torch.int32, device=request.device)
    # All rows become 0 before any is counted, so that a request that is listed twice counts twice, as upstream.
    output_bin_counts.index_fill_(0, request, 0)
    for piece in row_pieces(request.shape[0], max(32 * words, vocab_size)):
        rows = request[piece]
        prompt_end = prompt_len.index_select(0, rows).unsqueeze_(1)
        prefill_end = prefill_len.index_select(0, rows).unsqueeze_(1)
        present = rows.new_zeros((rows.shape[0], 32 * words + 1), dtype=torch.bool)
        counts = rows.new_zeros((rows.shape[0], vocab_size + 1), dtype=output_bin_counts.dtype)
        for part in pieces(rows.shape[0], length):
            tokens = all_token_ids[:, part].index_select(0, rows).to(torch.int64)
            in_prompt = (column[part] < prompt_end) & (block_start[part] < prefill_end)
            is_output = (column[part] >= prompt_end) & (column[part] < prefill_end)
            # The last column takes what does not count.
            in_prompt &= (tokens >= 0) & (tokens < 32 * words)
            present.scatter_(1, torch.where(in_prompt, tokens, 32 * words), True)
            is_output &= (tokens >= 0) & (tokens < vocab_size)
            place = torch.where(is_output, tokens, vocab_size)
            counts.scatter_add_(1, place, is_output.to(counts.dtype))
        packed = present[:, :-1].reshape(-1, words, 32).to(torch.int32) << bits
        # Different bits: their sum is their union, the sign bit included.
        prompt_bin_mask.index_copy_(0, rows, packed.sum(-1, dtype=torch.int32))
        output_bin_counts.index_add_(0, rows, counts[:, :-1])
