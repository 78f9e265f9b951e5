# SPDX-License-Identifier: Apache-2.0
"""Models that compute nothing: what they say is a hash of what they are given.

A hidden state is the hash of (token, position, slots of the cache), so a wrong token, position or slot changes what is
sampled; slots are a request's own. The target mostly follows a fixed successor of the token, and the draft model often
guesses that successor, so that drafts are accepted now and then. DFlash's draft model is given masks where it is to
predict, so with it both go by the position (`by_position`).

Attention is never computed: its backend hands on the metadata that upstream made, for comparing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadataBuilder
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

WIDTH = 8
# How much likelier the usual successor is; small enough that sampling options and noise decide now and then.
LEAN = 4.0

Slots = Callable[[int], torch.Tensor]


def stir(x: torch.Tensor) -> torch.Tensor:
    """int64 -> int64 in [0, 2**31), without a bit of floating point."""
    x = (x ^ (x >> 15)) * 0x2C1B3C6D & 0x7FFFFFFF
    x = (x ^ (x >> 12)) * 0x297A2D39 & 0x7FFFFFFF
    return x ^ (x >> 15)


class Backend(AttentionBackend):
    """Hands on what upstream tells attention."""

    @staticmethod
    def get_name() -> str:
        return "HASH"

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> type[AttentionMetadataBuilder[Any]]:
        return Builder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return (num_blocks, 2, block_size, num_kv_heads, head_size)


class Builder(AttentionMetadataBuilder[Any]):
    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        return common_attn_metadata


class Layer(AttentionLayerBase):
    """An attention layer by name only."""

    def __init__(self, block_size: int) -> None:
        self.spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=WIDTH, dtype=torch.float32)
        self.kv_cache: Any = None

    def get_attn_backend(self) -> type[AttentionBackend]:
        return Backend

    def get_kv_cache_spec(self, vllm_config: Any) -> KVCacheSpec:
        return self.spec


def register(vllm_config: Any, prefix: str, block_sizes: tuple[int, ...]) -> None:
    """Give the engine one layer for each cache group."""
    for i, size in enumerate(block_sizes):
        vllm_config.compilation_config.static_forward_context[f"{prefix}.{i}"] = Layer(size)


class Target(nn.Module):
    """The model that the runner runs. `slots`: of the first n tokens, for each cache group; [groups, n]."""

    supports_eagle3 = True
    has_own_lm_head = False
    has_own_embed_tokens = False
    requires_raw_input_tokens = False

    def __init__(self, vocab: int, slots: Slots, aux: bool, by_position: bool) -> None:
        super().__init__()
        self.vocab = vocab
        self.slots = slots
        self.aux = aux
        self.by_position = by_position

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        return (1,)

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        pass

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **unused: Any) -> Any:
        hidden = hash_states(input_ids, positions, self.slots(input_ids.shape[0]))
        return (hidden, [hidden]) if self.aux else hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits(hidden, self.vocab, hidden[:, 2 if self.by_position else 1])


def hash_states(tokens: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[n, WIDTH] float32 of small whole numbers: 20 bits of the hash, the token, the position."""
    state = stir(tokens.long() * 7919 + positions * 104729 + 1)
    for group in slots:
        state = stir(state + (group + 2) * 31)
    hidden = torch.zeros(tokens.shape[0], WIDTH, device=tokens.device)
    hidden[:, 0] = state & 0xFFFFF
    hidden[:, 1] = tokens
    hidden[:, 2] = positions
    return hidden


def logits(hidden: torch.Tensor, vocab: int, towards: torch.Tensor | None) -> torch.Tensor:
    """[n, vocab] float32: multiples of 1/64 below 8, no two rows alike; they lean to the successor of `towards` [n]."""
    column = torch.arange(vocab, device=hidden.device)
    row = hidden[:, 0].long().unsqueeze(1)
    values = (stir(row * 613 + column * 7907 + 5) & 0x1FF).float() / 64
    if towards is not None:
        values += torch.where(column == successor(towards.long(), vocab).unsqueeze(1), LEAN, 0.0)
    return values


def successor(token: torch.Tensor, vocab: int) -> torch.Tensor:
    return stir(token + 17) % vocab


class Draft(nn.Module):
    """The model that speculators run: DSpark's, DFlash's and EAGLE's."""

    draft_id_to_target_id = None

    def __init__(self, vocab: int, slots: Slots, by_position: bool) -> None:
        super().__init__()
        self.vocab = vocab
        self.slots = slots
        self.by_position = by_position
        # What the last context step was given: states, positions, slots.
        self.context: list[Any] = []

    def combine_hidden_states(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def precompute_and_store_context_kv(self, hidden: torch.Tensor, positions: torch.Tensor, slots: Any = None) -> None:
        self.context = [hidden.clone(), positions.clone(), slots.clone() if isinstance(slots, torch.Tensor) else slots]

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor | None = None, **unused: Any
    ) -> torch.Tensor:
        given = self.slots(input_ids.shape[0])
        if hidden_states is not None:
            # EAGLE goes on from the target's states.
            given = torch.cat([given, hidden_states[:, 0].long().unsqueeze(0)])
        return hash_states(input_ids, positions, given)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits(hidden, self.vocab, hidden[:, 2] - 1 if self.by_position else hidden[:, 1])

    def compute_draft_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        # Weaker than the bias, or no guess would be right.
        return logits(hidden, self.vocab, None) / 4

    def markov_embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens.long()

    def markov_bias(self, tokens: torch.Tensor) -> torch.Tensor:
        column = torch.arange(self.vocab, device=tokens.device)
        right = stir(tokens + 3) % 4 != 0
        guess = torch.where(right, successor(tokens, self.vocab), (tokens + 1) % self.vocab)
        return torch.where(column == guess.unsqueeze(1), 2 * LEAN, 0.0)

    def map_draft_to_target(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens
