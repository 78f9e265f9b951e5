"""A target with nonzero attention and MLP weights, of the shape that the permutation model has: `python models.py DIR`.

DIR holds the models of shared/gpu/drv/make_models.py. That target's o_proj and down_proj are zero, so it cannot see an
error in attention or in the KV cache; this one computes with everything. Its drafts are the ones that are there: they
are nearly always wrong, which greedy decoding must not show.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main(folder: Path) -> None:
    source, target = folder / "target", folder / "soft"
    if (target / "model.safetensors").is_file():
        return
    target.mkdir(exist_ok=True)
    shutil.copy(source / "config.json", target)
    weights = load_file(source / "model.safetensors", device="cuda")
    torch.manual_seed(1)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
            weight.copy_(torch.randn(weight.shape, device="cuda") * 0.05)
    save_file({k: v.contiguous().cpu() for k, v in weights.items()}, target / "model.safetensors", {"format": "pt"})
    print(json.dumps({"model": str(target.name)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
