# SPDX-License-Identifier: Apache-2.0
"""Small models for the engine, made from seeds: `python -m e2e.models DIR`. Runs in the engine environment; 6 MB.

Targets: `chain` says the tokens of `chain.py`; `soft` does so with less certainty, for sampling; `dense` has weights
in attention and MLP, so that a wrong position or cache slot changes what it says; `woven` has them too, small enough
that it follows the chain more often than not, so that drafts of the chain are right for it now and then; `windows` is
like it, a Llama whose every other layer sees a window of 32 tokens only, so that its cache has groups of its own.

Drafts for `method: dspark`: `exact`, `half`, `never` and `bonus` (the 1 + N layout) guess by the tables of `chain.py`;
`soft` like half, with less certainty; `dense` guesses by its backbone, so what it drafts shows every position and slot.

For other methods there are `draft-eagle`, right for `woven` now and then, and `draft-eagle3` and `draft-dflash`, whose
guesses are of their own; `few` is a target that says four words only, so that such guesses are right now and then.
`mimo` is a Qwen2 that brings its own layer of multi-token prediction (`method: mtp`). `adapter-a` and `adapter-b` are
LoRA adapters of `woven`.
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
    _save(folder / "windows", _windows_config(), _without_head_norms(weights))
    _save(folder / "few", _target_config(), _target(embedding, _few_words(), strength=1.0))
    _save(folder / "mimo", _mimo_config(), _mimo(embedding))
    _save(folder / "draft-eagle", _llama_config("LlamaForCausalLM"), _eagle())
    _save(folder / "draft-eagle3", _llama_config("LlamaForCausalLMEagle3"), _eagle3())
    _save(folder / "draft-dflash", _dflash_config(), _backbone(embedding))
    for number, name in enumerate(("a", "b")):
        _save_adapter(folder / f"adapter-{name}", number)
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


def _layer(
    prefix: str, generator: torch.Generator, strength: float, heads: int = HEADS, kv_heads: int = KV_HEADS
) -> Weights:
    """What attention and MLP add to the hidden state is in proportion to `strength`."""

    def matrix(rows: int, columns: int, factor: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (factor / math.sqrt(columns))

    return {
        f"{prefix}.input_layernorm.weight": torch.ones(WIDTH),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(WIDTH),
        f"{prefix}.self_attn.q_proj.weight": matrix(heads * HEAD_DIM, WIDTH),
        f"{prefix}.self_attn.k_proj.weight": matrix(kv_heads * HEAD_DIM, WIDTH),
        f"{prefix}.self_attn.v_proj.weight": matrix(kv_heads * HEAD_DIM, WIDTH),
        f"{prefix}.self_attn.o_proj.weight": matrix(WIDTH, heads * HEAD_DIM, strength),
        f"{prefix}.self_attn.q_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}.self_attn.k_norm.weight": torch.ones(HEAD_DIM),
        f"{prefix}.mlp.gate_proj.weight": matrix(INNER, WIDTH),
        f"{prefix}.mlp.up_proj.weight": matrix(INNER, WIDTH),
        f"{prefix}.mlp.down_proj.weight": matrix(WIDTH, INNER, strength),
    }


def _target(embedding: torch.Tensor, head: torch.Tensor, strength: float = 0.0, **heads: int) -> Weights:
    generator = _generator(5)
    weights = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(WIDTH)}
    for i in range(TARGET_LAYERS):
        weights |= _layer(f"model.layers.{i}", generator, strength, **heads)
    head[chain.WORDS :] = 0
    return weights | {"lm_head.weight": head}


def _few_words() -> torch.Tensor:
    head = _random_head(2)
    head[4:] = 0
    return head


def _without_head_norms(weights: Weights) -> Weights:
    return {name: weight for name, weight in weights.items() if "q_norm" not in name and "k_norm" not in name}


def _mimo(embedding: torch.Tensor) -> Weights:
    """The layer of multi-token prediction sees the token itself, and a little of what the target thought of it."""
    weights = _without_head_norms(_target(embedding, _successors(embedding), strength=WEAVE, **_MIMO_HEADS))
    generator = _generator(8)
    ahead = "model.mtp_layers.0"
    weights |= _without_head_norms(_layer(ahead, generator, strength=0.3, **_MIMO_HEADS))
    weights |= {f"{ahead}.{name}.weight": torch.ones(WIDTH) for name in _MIMO_NORMS}
    weights[f"{ahead}.input_proj.weight"] = torch.cat([_glance(generator), torch.eye(WIDTH)], dim=1)
    layers = [name.removesuffix("q_proj.weight") for name in weights if name.endswith("q_proj.weight")]
    return weights | {f"{at}{n}_proj.bias": torch.zeros(WIDTH) for at in layers for n in ("q", "k", "v")}


# A Qwen2 has no say in how wide a head is.
_MIMO_HEADS = {"heads": WIDTH // HEAD_DIM, "kv_heads": WIDTH // HEAD_DIM}
_MIMO_NORMS = ("token_layernorm", "hidden_layernorm", "final_layernorm")


def _glance(generator: torch.Generator) -> torch.Tensor:
    return torch.randn(WIDTH, WIDTH, generator=generator) * (0.3 / math.sqrt(WIDTH))


def _eagle() -> Weights:
    """One layer behind the token itself and a little of the target's hidden state; embedding and head are shared."""
    generator = _generator(9)
    weights = _without_head_norms(_layer("layers.0", generator, strength=0.3))
    del weights["layers.0.input_layernorm.weight"]
    return weights | {"fc.weight": torch.cat([torch.eye(WIDTH), _glance(generator)], dim=1)}


def _eagle3() -> Weights:
    """One layer that sees the token and three of the target's hidden states; embedding and head are shared."""
    generator = _generator(10)
    weights = _without_head_norms(_layer("midlayer", generator, strength=1.0))
    for name in ("q", "k", "v"):
        old = weights[f"midlayer.self_attn.{name}_proj.weight"]
        new = torch.randn(old.shape[0], 2 * WIDTH, generator=generator) / math.sqrt(2 * WIDTH)
        weights[f"midlayer.self_attn.{name}_proj.weight"] = new
    fc = torch.randn(WIDTH, 3 * WIDTH, generator=generator) / math.sqrt(3 * WIDTH)
    return weights | {
        "fc.weight": fc,
        "midlayer.hidden_norm.weight": torch.ones(WIDTH),
        "norm.weight": torch.ones(WIDTH),
    }


def _backbone(embedding: torch.Tensor) -> Weights:
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
    }


def _draft(embedding: torch.Tensor, head: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> Weights:
    return _backbone(embedding) | {
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


def _mimo_config() -> dict[str, Any]:
    config = _config(TARGET_LAYERS) | {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2"}
    heads = {"num_attention_heads": WIDTH // HEAD_DIM, "num_key_value_heads": WIDTH // HEAD_DIM}
    return config | heads | {"num_nextn_predict_layers": 1}


def _llama_config(architecture: str) -> dict[str, Any]:
    return _config(1) | {"architectures": [architecture], "model_type": "llama", "draft_vocab_size": chain.SIZE}


def _dflash_config() -> dict[str, Any]:
    seen = {"mask_token_id": chain.MASK, "target_layer_ids": list(range(DRAFT_LAYERS))}
    config = _config(DRAFT_LAYERS) | seen
    return config | {"architectures": ["DFlashDraftModel"], "dflash_config": seen, "block_size": 7}


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


def _save_adapter(folder: Path, number: int) -> None:
    """An adapter of rank 4 of the attention's and the MLP's outputs, strong enough to change what is said."""
    generator = _generator(20 + number)
    weights: Weights = {}
    for i in range(TARGET_LAYERS):
        for name, width in (("self_attn.o_proj", HEADS * HEAD_DIM), ("mlp.down_proj", INNER)):
            at = f"base_model.model.model.layers.{i}.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(4, width, generator=generator) / math.sqrt(width)
            weights[f"{at}.lora_B.weight"] = torch.randn(WIDTH, 4, generator=generator)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["o_proj", "down_proj"], "bias": "none"}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})


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
