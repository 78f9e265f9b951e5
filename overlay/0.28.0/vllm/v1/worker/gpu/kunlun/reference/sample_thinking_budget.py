# SPDX-License-Identifier: Apache-2.0
"""Sites 53 and 54, request by request and row by row."""

import torch

from ..launchers.sample_thinking_budget import COLD_SCAN_BLOCK, FORCED


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
    """Find the markers in what is committed, then in each row's drafts; force the end where the budget is used up."""
    start_ids, end_ids = reasoning_start_token_ids.tolist(), natural_reasoning_end_token_ids.tolist()
    forced_ids = reasoning_end_token_ids.tolist()
    for state in req_ids.tolist():
        if state < 0 or int(thinking_token_budget[state]) < 0:
            continue
        tokens = all_token_ids[state, : int(total_len[state])].tolist()
        first = int(cached_scan_pos[state])
        last_start, last_end = int(cached_last_start[state]), int(cached_last_end[state])
        if first > len(tokens):
            first, last_start, last_end = 0, -1, -1
        starts, ends = _places(tokens, start_ids, first), _places(tokens, end_ids, first)
        if first == 0 and last_start < 0 and last_end < 0 and (starts or ends):
            # Only the last block that has a marker is looked at.
            block = (len(tokens) - 1 - max(starts + ends)) // COLD_SCAN_BLOCK
            low = len(tokens) - (block + 1) * COLD_SCAN_BLOCK
            starts, ends = [p for p in starts if p >= low], [p for p in ends if p >= low]
        cached_last_start[state] = max(starts, default=last_start)
        cached_last_end[state] = max(ends, default=last_end)
        cached_scan_pos[state] = max(len(tokens) - (max(len(start_ids), len(end_ids)) - 1), 0)

    inputs = input_ids.tolist()
    rows = zip(expanded_idx_mapping.tolist(), expanded_local_pos.tolist(), strict=True)
    for row, (state, pos) in enumerate(rows):
        budget = -1 if state < 0 else int(thinking_token_budget[state])
        if budget < 0:
            continue
        committed = all_token_ids[state, : int(total_len[state])].tolist()
        text = committed + inputs[row - pos + 1 : row + 1]
        last_start = _last(text, start_ids, len(committed), int(cached_last_start[state]))
        last_end = _last(text, end_ids, len(committed), int(cached_last_end[state]))
        if last_start < 0 or last_start <= last_end or len(text) - last_start - len(start_ids) < budget:
            continue
        done = [n for n in range(1, len(forced_ids)) if n <= len(text) and text[len(text) - n :] == forced_ids[:n]]
        token = forced_ids[max(done, default=0)]
        if 0 <= token < logits.shape[1]:
            logits[row, token] = FORCED


def _places(tokens: list[int], marker: list[int], first: int) -> list[int]:
    return [i for i in range(first, len(tokens) - len(marker) + 1) if tokens[i : i + len(marker)] == marker]


def _last(text: list[int], marker: list[int], committed: int, cached: int) -> int:
    """The last place whose marker has a drafted token in it, or else what was found before."""
    return max(_places(text, marker, max(committed - len(marker) + 1, 0)), default=cached)
