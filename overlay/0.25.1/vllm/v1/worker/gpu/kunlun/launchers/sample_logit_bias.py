# SPDX-License-Identifier: Apache-2.0
"""Site 19: allowed tokens, logit bias and minimum length."""

import torch

from ..vocab import row_pieces

# Entries of the lists that are worked on at a time; each takes about 45 bytes. 2**18 are all of a step of 256 rows.
_PIECE = 1 << 18


def apply_logit_bias(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    pos: torch.Tensor,
    num_allowed_token_ids: torch.Tensor,
    allowed_token_ids: torch.Tensor,
    num_logit_bias: torch.Tensor,
    logit_bias_token_ids: torch.Tensor,
    logit_bias: torch.Tensor,
    min_lens: torch.Tensor,
    num_stop_token_ids: torch.Tensor,
    stop_token_ids: torch.Tensor,
) -> None:
    """In place and in this order: all but the allowed tokens to -inf, biases added, stop tokens to -inf while short.

    logits [num_tokens, vocab_size]; expanded_idx_mapping [num_tokens]; pos [num_tokens], position of the row's input
    token; the counts and min_lens [max_num_reqs]; the lists [max_num_reqs, their maximum], entries behind the count
    are not read. A row is short while pos + 1 < min_lens. Tokens outside the vocabulary have no effect (upstream
    writes out of bounds), nor has a row of no request (negative). Memory: about 30 MiB at most, whatever the batch.
    """
    longest = max(allowed_token_ids.shape[1], logit_bias.shape[1], stop_token_ids.shape[1])
    for piece in row_pieces(logits.shape[0], longest, _PIECE):
        _apply(
            logits[piece], expanded_idx_mapping[piece], pos[piece], num_allowed_token_ids, allowed_token_ids,
            num_logit_bias, logit_bias_token_ids, logit_bias, min_lens, num_stop_token_ids, stop_token_ids,
        )  # fmt: skip


def _apply(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    pos: torch.Tensor,
    num_allowed_token_ids: torch.Tensor,
    allowed_token_ids: torch.Tensor,
    num_logit_bias: torch.Tensor,
    logit_bias_token_ids: torch.Tensor,
    logit_bias: torch.Tensor,
    min_lens: torch.Tensor,
    num_stop_token_ids: torch.Tensor,
    stop_token_ids: torch.Tensor,
) -> None:
    """Some rows."""
    vocab_size = logits.shape[1]
    request = expanded_idx_mapping.clamp(min=0)
    has_request = (expanded_idx_mapping >= 0).unsqueeze_(1)

    def listed(count: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens of each row's list, int64 [num_tokens, maximum], and which of them count."""
        ids = tokens.index_select(0, request)
        column = torch.arange(tokens.shape[1], device=tokens.device)
        within = column < count.index_select(0, request).unsqueeze(1)
        return ids.to(torch.int64), within & has_request & (ids >= 0) & (ids < vocab_size)

    allowed, is_allowed = listed(num_allowed_token_ids, allowed_token_ids)
    restricted = (num_allowed_token_ids.index_select(0, request) > 0).unsqueeze_(1) & has_request
    _keep_only(logits, allowed, is_allowed, restricted)

    biased, is_biased = listed(num_logit_bias, logit_bias_token_ids)
    bias = logit_bias.index_select(0, request)
    place, source, live = _aimed(biased, is_biased)
    old = logits.gather(1, place)
    new = (old + bias.gather(1, source)).to(logits.dtype)
    logits.scatter_(1, place, torch.where(live, new, old))

    stop, is_stop = listed(num_stop_token_ids, stop_token_ids)
    short = (pos + 1 < min_lens.index_select(0, request)).unsqueeze_(1)
    place, _, live = _aimed(stop, is_stop & short)
    logits.scatter_(1, place, logits.gather(1, place).masked_fill_(live, float("-inf")))


def _keep_only(logits: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, restricted: torch.Tensor) -> None:
    """In the restricted rows, everything but the tokens that count to -inf."""
    num_tokens, vocab_size = logits.shape
    place = tokens.masked_fill(~counts, vocab_size)
    for piece in row_pieces(num_tokens, vocab_size // 16):
        x = logits[piece]
        # The column behind the vocabulary takes the entries that don't count.
        dropped = x.new_ones((x.shape[0], vocab_size + 1), dtype=torch.bool)
        dropped.scatter_(1, place[piece], False)
        x.masked_fill_(dropped[:, :vocab_size].logical_and_(restricted[piece]), float("-inf"))


def _aimed(tokens: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where to write so that every write is harmless: (token, list entry, whether the row writes anything).

    An entry that does not count repeats the first one that does, value and place; a row with none aims at token 0.
    """
    first = counts.to(torch.uint8).argmax(1, keepdim=True)
    live = counts.any(1, keepdim=True)
    column = torch.arange(tokens.shape[1], device=tokens.device)
    source = torch.where(counts, column, first)
    return tokens.gather(1, source).masked_fill_(~live, 0), source, live
