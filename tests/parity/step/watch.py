# SPDX-License-Identifier: Apache-2.0
"""What is compared after a step: every state tensor of the runner, the batch, what attention and models were told, the
output. Two snapshots are compared by path (compare.py says how paths are made)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from compare import Comparison, State, walk

# Parts of the runner, by the name under which they are reported.
PARTS = {
    "states": "req_states",
    "buffers": "input_buffers",
    "tables": "block_tables",
    "sampling": "sampler.sampling_states",
    "penalties": "sampler.penalties_state",
    "bias": "sampler.logit_bias_state",
    "words": "sampler.bad_words_state",
    "ids": "sampler.logprob_token_ids_state",
    "thinking": "sampler.thinking_budget_state",
    "prompts": "prompt_logprobs_worker",
    "grammar": "structured_outputs_worker",
    "handler": "draft_tokens_handler",
    "context": "speculator.model.context",
    "draft_buffers": "speculator.input_buffers",
}
# What differs by design: addresses, staging that only upstream's kernels read, streams. Whole components of a path.
_OWN = {
    "pool",
    "write_indices",
    "write_starts",
    "write_cu_lens",
    "fused_writer",
    "block_table_ptrs",
    "input_block_table_ptrs",
    "_uva_buf",
    "copy_stream",
    "copy_event",
    "device",
    "kunlun_device",
    "kunlun_sent",
}
# Logarithms of another library; the tokens that they lead to are compared bit by bit.
CLOSE = (1e-5, 1e-5)
_PROMPTS = ("output.prompt_logprobs_dict", "prompts.in_progress_prompt_logprobs")
TOLERANCE = dict.fromkeys(("output.logprobs", *_PROMPTS), CLOSE)


def batch(state: Any) -> State:
    """Between forward and sampling: InputBatch, attention metadata, slots, hidden states (ExecuteModelState)."""
    found = State()
    for name, value in (state._asdict() if state is not None else {}).items():
        walk(name, value, found)
    return _kept(found)


def after(runner: Any, output: Any, drafts: Any) -> State:
    """All state once the step is over, and its output."""
    found = State()
    seen: set[int] = set()
    for name, path in PARTS.items():
        value: Any = runner
        for part in path.split("."):
            value = getattr(value, part, None)
        walk(name, value, found, seen)
    for name, value in vars(runner.speculator).items() if runner.speculator is not None else ():
        if isinstance(value, torch.Tensor) and name not in _unwritten(runner.speculator):
            found[f"speculator.{name}"] = value
    walk("output", output, found)
    walk("drafts", drafts, found)
    return _kept(found)


def _unwritten(speculator: Any) -> tuple[str, ...]:
    """Tensors that are as malloc left them (since 0.28.0)."""
    return () if getattr(speculator, "enable_adaptive_verification", True) else ("draft_token_confidence_probs",)


def _kept(found: State) -> State:
    return State({path: _copy(value) for path, value in found.items() if not _parts(path) & _OWN})


def _parts(path: str) -> set[str]:
    return set(path.replace("[", ".").replace("]", "").replace("#", ".").split("."))


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        # Memory of its own, and no more than it shows.
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, np.ndarray):
        return value.copy()
    return list(value) if isinstance(value, list) else value


def differences(want: State, got: State) -> Comparison:
    """A comparison of all that is not plainly the same."""
    paths = [p for p in want.keys() | got.keys() if not (p in want and p in got and _same(p, want[p], got[p]))]
    comparison = Comparison(tolerance=TOLERANCE)
    comparison.states(*(State({p: side[p] for p in paths if p in side}) for side in (want, got)))
    return comparison


def _same(path: str, want: Any, got: Any) -> bool:
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return want.dtype == got.dtype and want.shape == got.shape and _bytes(want) == _bytes(got)
    if isinstance(want, list) and isinstance(got, list) and len(want) == len(got) and path.startswith(tuple(TOLERANCE)):
        # Lists of numbers in the output.
        return all(a == b or abs(a - b) <= CLOSE[1] + CLOSE[0] * abs(a) for a, b in _pairs(want, got))
    return False


def _bytes(x: torch.Tensor) -> bytes:
    return bytes(x.view(torch.uint8).numpy()) if x.dim() else bytes(x.reshape(1).view(torch.uint8).numpy())


def _pairs(want: list[Any], got: list[Any]) -> Iterator[tuple[float, float]]:
    for a, b in zip(want, got, strict=True):
        yield (a, b) if isinstance(a, (int, float)) and isinstance(b, (int, float)) else (0.0, 0.0 if a == b else 1.0)
