"""What a model's `config.json` and a tree's registry of models say of it, for the choice of the runner."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunlunfork.doctor import source
from kunlunfork.doctor.values import PRESENT, Value
from kunlunfork.errors import ForkError

_MODELS = "vllm/model_executor/models"
_CONVERTORS = "vllm/transformers_utils/model_arch_config_convertor.py"
_CONFIG = "self.model_config"
_DEEPEST = 8


@dataclass(frozen=True)
class Model:
    """A model's folder and its configuration."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def architectures(self) -> tuple[str, ...]:
        names = self.config.get("architectures")
        return tuple(n for n in names if isinstance(n, str)) if isinstance(names, list) else ()


def load(folder: Path) -> Model:
    """Read `config.json` (raises `ForkError`)."""
    file = folder / "config.json"
    try:
        config = json.loads(source.read_file(file))
    except OSError as e:
        raise ForkError(
            f"{file} cannot be read", found=e.strerror or str(e), expected="the folder of a model, on this machine",
            fix="name it: kunlunfork doctor --model DIR",
        ) from e  # fmt: skip
    except (ValueError, RecursionError) as e:
        raise ForkError(f"{file} is not JSON", found=str(e), fix="get the model again") from e
    if not isinstance(config, dict):
        raise ForkError(f"{file} is not a configuration", found=type(config).__name__, fix="get the model again")
    return Model(folder, config)


def facts(model: Model, root: Path) -> dict[str, Value]:
    """What can be said of `self.model_config` without running anything; what is not in it is not known."""
    found: dict[str, Value] = {_CONFIG: PRESENT, f"{_CONFIG}.architectures": model.architectures}
    found[f"{_CONFIG}.is_diffusion"] = model.config.get("canvas_length") is not None
    registry = source.parse(root, f"{_MODELS}/registry.py")
    moe = _is_moe(model, root, registry)
    if moe is not None:
        found[f"{_CONFIG}.is_moe"] = moe
    if registry is None or not model.architectures:
        return found
    name = model.architectures[0]
    if name in _table(registry, "_TEXT_GENERATION_MODELS") and not _sentence_transformers(model.folder):
        found[f"{_CONFIG}.runner_type"] = "generate"
    bases = _bases(root, registry, name)
    if bases is not None:
        found[f"{_CONFIG}.is_attention_free"] = "IsAttentionFree" in bases
        layers = model.config.get("layer_types")
        plain = isinstance(layers, list) and all(layer == "attention" for layer in layers)
        found[f"{_CONFIG}.is_hybrid"] = "IsHybrid" in bases and not plain
    return found


def _sentence_transformers(folder: Path) -> bool:
    """Whether vLLM would look for a pooler in the model's folder."""
    return any((folder / n).exists() for n in ("modules.json", "config_sentence_transformers.json"))


def _is_moe(model: Model, root: Path, registry: ast.Module | None) -> bool | None:
    """Whether the model has experts, by the names that the tree looks them up by."""
    text = model.config.get("text_config")
    config = text if isinstance(text, dict) else model.config
    module = source.parse(root, _CONVERTORS)
    names = source.texts(source.assigned(module, "num_expert_names")) if module is not None else ()
    if not names:
        return None
    for value in (config.get(name) for name in names):
        first = value[0] if isinstance(value, list) and value else value
        if first:
            return True
    # These have ways of their own to count them.
    kind = config.get("model_type")
    assert module is not None
    special = source.texts(source.assigned(module, "MODEL_ARCH_CONFIG_CONVERTORS"))
    if config.get("block_configs") or kind in special or registry is None or not model.architectures:
        return None
    # What config.json leaves out has a default in transformers: only a model that asks for none has none for sure.
    where = _place(registry, model.architectures[0])
    text_of = _file(root, where[0]) if where is not None else None
    data = source.read(root, text_of) if text_of is not None else None
    return None if data is None or any(name.encode() in data for name in names) else False


def _table(registry: ast.Module, name: str) -> dict[str, tuple[str, str]]:
    """One of the registry's tables: architecture -> (module, class)."""
    node = source.assigned(registry, name)
    found = {}
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            match key, value:
                case ast.Constant(value=str() as arch), ast.Tuple(
                    elts=[ast.Constant(value=str() as module), ast.Constant(value=str() as class_name)]
                ):
                    found[arch] = (module, class_name)
    return found


def _bases(root: Path, registry: ast.Module, architecture: str) -> set[str] | None:
    """The names of all classes that a model is made from; None where one of them is out of reach."""
    where = _place(registry, architecture)
    found: set[str] = set()
    return found if where is not None and _collect(root, *where, found, _DEEPEST) else None


def _place(registry: ast.Module, architecture: str) -> tuple[str, str] | None:
    """(module as a path, class) of an architecture that generates."""
    for name in ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS"):
        if where := _table(registry, name).get(architecture):
            module, class_name = where
            path = module.replace(".", "/") if module.startswith("vllm.") else f"{_MODELS}/{module}"
            return path, class_name
    return None


def _file(root: Path, module: str) -> str | None:
    return next((n for n in (f"{module}.py", f"{module}/__init__.py") if (root / n).is_file()), None)


def _collect(root: Path, module: str, class_name: str, found: set[str], depth: int) -> bool:
    """Add what a class derives from; whether all of it could be found."""
    file = _file(root, module)
    tree = source.parse(root, file) if file else None
    if tree is None or depth == 0:
        return False
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name]
    if not classes:
        leads = _import_of(tree, class_name, file or "")
        return leads is not None and _collect(root, *leads, found, depth - 1)
    for base in classes[-1].bases:
        name = ast.unparse(base).partition("[")[0]
        found.add(name)
        # `interfaces` declares what is looked for, torch and typing have nothing of it.
        leads = _import_of(tree, name, file or "")
        if name in ("nn.Module", "torch.nn.Module", "object", "Generic", "Protocol"):
            continue
        if leads is not None and leads[0].rpartition("/")[2].startswith("interfaces"):
            continue
        if not _collect(root, *(leads or (module, name)), found, depth - 1):
            return False
    return True


def _import_of(tree: ast.Module, name: str, file: str) -> tuple[str, str] | None:
    """(module as a path, name in it) of an imported name."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    folder = file.split("/")[: -node.level] if node.level else []
                    return "/".join([*folder, *(node.module or "").split(".")]), alias.name
    return None
