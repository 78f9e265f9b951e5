# SPDX-License-Identifier: Apache-2.0
"""Site 16: bad words."""

import torch

from ..vocab import row_pieces

# The input in front of a request's drafts is its last sampled token.
SPEC_OFFSET = 1


def apply_bad_words(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    bad_word_token_ids: torch.Tensor,
    bad_word_offsets: torch.Tensor,
    num_bad_words: torch.Tensor,
    all_token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    max_num_bad_words: int,
) -> None:
    """Set to -inf, in place, the last token of every bad word whose other tokens end the row's output.

    logits [num_tokens, vocab_size]; expanded_idx_mapping [num_tokens]; bad_word_token_ids [max_num_reqs, n], a
    request's words end to end; bad_word_offsets [max_num_reqs, m + 1], where each begins; num_bad_words, prompt_len,
    total_len [max_num_reqs]; all_token_ids [max_num_reqs, max_model_len]; input_ids [num_tokens], of the rows;
    expanded_local_pos [num_tokens], drafts of the request before this row; max_num_bad_words: most words of a request
    in this batch. Tokens outside the vocabulary have no effect (upstream writes out of bounds), nor has a row of no
    request (negative). Memory: 1 byte for 2**24 logits, about 100 bytes for 2**18 entries of the rows' lists.
    """
    num_tokens, vocab_size = logits.shape
    width = bad_word_token_ids.shape[1]
    states = (bad_word_token_ids, bad_word_offsets, num_bad_words, all_token_ids, prompt_len, total_len)
    for piece in row_pieces(num_tokens, max(vocab_size // 16, 4 * width)):
        last = _forbidden(
            expanded_idx_mapping[piece],
            expanded_local_pos[piece],
            *states,
            input_ids,
            piece.start,
            max_num_bad_words,
            vocab_size,
        )
        x = logits[piece]
        # The column behind the vocabulary takes the words that don't match.
        hit = x.new_zeros((x.shape[0], vocab_size + 1), dtype=torch.bool).scatter_(1, last, True)
        x.masked_fill_(hit[:, :vocab_size], float("-inf"))


def _forbidden(
    idx_mapping: torch.Tensor,
    local_pos: torch.Tensor,
    bad_word_token_ids: torch.Tensor,
    bad_word_offsets: torch.Tensor,
    num_bad_words: torch.Tensor,
    all_token_ids: torch.Tensor,
    prompt_len: torch.Tensor,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    first_row: int,
    max_num_bad_words: int,
    vocab_size: int,
) -> torch.Tensor:
    """Last token of each word that matches, int64 [rows, max_num_bad_words]; vocab_size for one that does not."""
    device = idx_mapping.device
    request = idx_mapping.clamp(min=0).to(torch.int64)
    num_rows, width = request.shape[0], bad_word_token_ids.shape[1]

    def state(x: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, request)

    words = state(bad_word_token_ids).to(torch.int64)
    offsets = state(bad_word_offsets[:, : max_num_bad_words + 1]).to(torch.int64).clamp_(0, width)
    word = torch.arange(max_num_bad_words, device=device)
    count = state(num_bad_words).masked_fill_(idx_mapping < 0, 0).unsqueeze_(1)
    exists = word < count
    start, end = offsets[:, :-1], offsets[:, 1:]
    prefix_len = end - start - 1

    pos = local_pos.to(torch.int64).unsqueeze(1)
    prompt = state(prompt_len).to(torch.int64).unsqueeze_(1)
    output_len = state(total_len).to(torch.int64).unsqueeze_(1) - prompt
    length = output_len + pos
    exists &= (prefix_len <= length) & (end > 0)

    # Which word each bad-word token belongs to: one mark where a word ends. The words of a request that has fewer
    # than others end where the table does.
    marks = words.new_zeros((num_rows, width + 1))
    marks.scatter_add_(1, end.masked_fill(~(word < count), width), torch.ones_like(end))
    owner = marks.cumsum(1)[:, :width].clamp_(max=max_num_bad_words - 1)
    column = torch.arange(width, device=device)
    # Token c of a word that ends at e is compared with the token at length - (e - 1 - c).
    at = length - (end.gather(1, owner) - 1 - column)
    from_input = at >= output_len
    row = torch.arange(first_row, first_row + num_rows, device=device).unsqueeze_(1)
    drafted = input_ids[(row - pos + (at - output_len) + SPEC_OFFSET).clamp_(0, input_ids.shape[0] - 1)]
    generated = all_token_ids[request.unsqueeze(1), (prompt + at).clamp_(0, all_token_ids.shape[1] - 1)]
    differs = words != torch.where(from_input, drafted, generated)

    # Mismatches among a word's tokens but the last, from running sums.
    sums = torch.nn.functional.pad(differs.cumsum(1), (1, 0))
    before_last = (end - 1).clamp_(min=0)
    mismatches = sums.gather(1, before_last) - sums.gather(1, start)
    last = words.gather(1, before_last)
    matches = exists & ((mismatches == 0) | (prefix_len <= 0)) & (last >= 0) & (last < vocab_size)
    return last.masked_fill_(~matches, vocab_size)
