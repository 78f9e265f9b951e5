# SPDX-License-Identifier: Apache-2.0
"""Site 16, row by row."""

import torch

# As in launchers/sample_bad_words.py.
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
    """A word whose tokens but the last end the output, drafts included, forbids its last token."""
    inputs = input_ids.tolist()
    rows = zip(expanded_idx_mapping.tolist(), expanded_local_pos.tolist(), strict=True)
    for i, (request, pos) in enumerate(rows):
        if request < 0:
            continue
        first_row = i - pos
        prompt_end, end = int(prompt_len[request]), int(total_len[request])
        output = all_token_ids[request, prompt_end:end].tolist()
        drafted = [inputs[first_row + j + SPEC_OFFSET] for j in range(pos)]
        text = output + drafted
        offsets = bad_word_offsets[request].tolist()
        for w in range(min(int(num_bad_words[request]), max_num_bad_words)):
            word = bad_word_token_ids[request, offsets[w] : offsets[w + 1]].tolist()
            if not word:
                # Upstream forbids the last token of the word before; there is none before the first.
                word = bad_word_token_ids[request, max(offsets[w] - 1, 0) : offsets[w]].tolist()
                if not word:
                    continue
            prefix, last = word[:-1], word[-1]
            if len(prefix) <= len(text) and text[len(text) - len(prefix) :] == prefix and 0 <= last < logits.shape[1]:
                logits[i, last] = float("-inf")
