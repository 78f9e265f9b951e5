# SPDX-License-Identifier: Apache-2.0
"""Small models for the engine, made from seeds: `python -m e2e.models DIR`. Runs in the engine environment; 6 MB.

Targets: `chain` says the tokens of `chain.py`; `soft` does so with less certainty, for sampling; `dense` has weights
in attention and MLP, so that a wrong position or cache slot changes what it says; `woven` has them too, small enough
that it follows the chain more often than not, so that drafts of the chain are right for it now and then; `windows` is
like it, a Llama whose every other layer sees a window of 32 tokens only, so that its cache has groups of its own.

Drafts for `method: dspark`: `exact`, `half`, `never` and `bonus` (the 1 + N layout) guess by the tables of `chain.py`;
`soft` like half, with less certainty; `dense` guesses by its backbone, so what it drafts shows every position and slot.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from e2e import chain

WIDTH, HEADS, KV_HEADS, HEAD_DIM, INNER = 64, 4, 2, 32, 128
TARGET_LAYERS, DRAFT_LAYERS = 3, 2
SOFTNESS, WEAVE = 0.12, 1.5

Weights = dict[str, torch.Tensor]


def make_all(folder: Path) -> None:
    """Write every model into its own folder below `folder`."""
    embedding = _embedding()
    for name, weights in (
        ("chain", _target(embedding, _successors(embedding))),
        ("soft", _target(embedding, _successors(embedding) * SOFTNESS)),
        ("woven", _target(embedding, _successors(embedding), strength=WEAVE)),
        ("dense", _target(embedding, _random_head(2), strength=1.0)),
    ):
        _save(folder / name, _target_config(), weights)
    weights = _target(embedding, _successors(embedding), strength=WEAVE)
    weights = {name: weight for name, weight in weights.items() if "q_norm" not in name and "k_norm" not in name}
    _save(folder / "windows", _windows_config(), weights)
    for name in ("exact", "half", "never", "bonus", "soft", "dense"):
        weights = _dense_draft(embedding) if name == "dense" else _table_draft(embedding, name)
        _save(folder / f"draft-{name}", _draft_config(bonus_anchor=name == "bonus"), weights)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _embedding() -> torch.Tensor:
    """Rows of mean square 1, which a normalisation with unit weights leaves alone."""
    rows = torch.randn(chain.SIZE, WIDTH, generator=_generator(1))
    return rows / rows.norm(dim=1, keepdim=True) * math.sqrt(WIDTH)


def _successors(embedding: torch.Tensor) -> torch.Tensor:
    """A head whose largest logit, for the embedding of a token, is at the token's successor."""
    head = torch.zeros_like(embedding)
    head[list(chain.NEXT)] = embedding[: chain.WORDS]
    return head


def _random_head(seed: int) -> torch.Tensor:
    return torch.randn(chain.SIZE, WIDTH, generator=_generator(seed))


def _layer(prefix: str, generator: torch.Generator, strength: float) -> Weights:
    """What attention and MLP add to the hidden state is in proportion to `strength`."""

    def matrix(rows: int, columns: int, factor: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (factor / math.sqrt(columns))

    return {
        f"{prefix}.input_layernorm.weight": torch.ones(WIDTH),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(WIDTH),
        f"{prefix}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, WIDTH),
        f"{prefix}.self_attn.k_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
        f"{prefix}.self_attn.v_proj.weight": matrix(KV_HEADS * HEAD_DIM, WIDTH),
        f"{prefix}.self_attn.o_proj.weight": matrix(WIDTH, HEADS * HEAD_DIM, strength),
        f"{prefix}.self_attn.q_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}.self_attn.k_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": matrix(INNER, WIDTH),
        f"{prefix}.mlp.up_proj.weight": matrix(INNER, WIDTH),
        f"{prefix}.mlp.down_proj.weight": matrix(WIDTH, INNER, strength),
    }


def _target(embedding: torch.Tensor, head: torch.Tensor, strength: float = 0.0) -> Weights:
    generator = _generator(5)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(WIDTH)}
    for i in range(TARGET_LAYERS):
        weights |= _layer(f"model.layers.{i}", generator, strength)
    head[chain.WORDS :] = 0
    return weights | {"lm_head.weight": head}


def _draft(embedding: torch.Tensor, head: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> Weights:
    generator = _generator(3)
    weights: Weights = {}
    for i in range(DRAFT_LAYERS):
        weights |= _layer(f"layers.{i}", generator, strength=1.0)
    fc = torch.randn(WIDTH, DRAFT_LAYERS * WIDTH, generator=generator) / math.sqrt(DRAFT_LAYERS * WIDTH)
    return weights | {
        "fc.weight": fc,
        "hidden_norm.weight": torch.ones(WIDTH),
        "norm.weight": torch.ones(WIDTH),
        "embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "markov_head.markov_w1.weight": w1,
        "markov_head.markov_w2.weight": w2,
    }


def _table_draft(embedding: torch.Tensor, name: str) -> Weights:
    """The Markov head alone decides: it goes from a token to the one that its table guesses."""
    guess = chain.GUESSES["half" if name == "soft" else name]
    before = {following: token for token, following in enumerate(chain.NEXT)}
    w1 = embedding.clone()
    w1[: chain.WORDS] = embedding[[before[token] for token in guess]]
    scale = SOFTNESS if name == "soft" else 1.0
    return _draft(embedding, torch.zeros_like(embedding), w1, _successors(embedding) * scale)


def _dense_draft(embedding: torch.Tensor) -> Weights:
    return _draft(embedding, _random_head(4), _random_head(6) * 0.1, _random_head(7) * 0.1)


def _config(layers: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "vocab_size": chain.SIZE,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "dtype": "float32",
        "eos_token_id": chain.END,
        "bos_token_id": None,
        "use_sliding_window": False,
    }


def _target_config() -> dict[str, Any]:
    return _config(TARGET_LAYERS) | {"architectures": ["Qwen3ForCausalLM"]}


def _windows_config() -> dict[str, Any]:
    kinds = ("sliding_attention", "full_attention")
    return _config(TARGET_LAYERS) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "sliding_window": 32,
        "layer_types": [kinds[i % 2] for i in range(TARGET_LAYERS)],
    }


def _draft_config(bonus_anchor: bool) -> dict[str, Any]:
    seen = {"mask_token_id": chain.MASK, "target_layer_ids": list(range(DRAFT_LAYERS))}
    config = _config(DRAFT_LAYERS) | seen
    config |= {
        "architectures": ["Qwen3DSparkModel"],
        "dflash_config": seen,
        "block_size": 7,
        "markov_rank": WIDTH,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
    }
    return config | ({"dspark_bonus_anchor": True} if bonus_anchor else {})


def _save(folder: Path, config: dict[str, Any], weights: Weights) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    _save_tokenizer(folder)


def _save_tokenizer(folder: Path) -> None:
    """Token n is the word `tn`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{i}": i for i in range(chain.SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    end = f"t{chain.END}"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0", eos_token=end, pad_token=end).save_pretrained(
        folder
    )


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
