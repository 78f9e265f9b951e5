# SPDX-License-Identifier: Apache-2.0
"""Makes real runners without a model: upstream's `GPUModelRunner`, and the fork's on top of it."""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import interpreter
import torch

from step.trace import Shape

DEVICE = torch.device(os.environ.get("KUNLUN_PARITY_DEVICE", "cpu"))
if DEVICE.type == "cpu":
    # Before anything imports vLLM, as the next line does.
    interpreter.prepare()

from step import model  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

_folder: Path | None = None


def _models() -> Path:
    """A folder for what vLLM wants to read from disk."""
    global _folder
    if _folder is None:
        _folder = Path(tempfile.mkdtemp(prefix="kunlunfork-step-"))
        atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    return _folder


def _write_config(name: str, raw: Mapping[str, Any]) -> str:
    folder = _models() / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return str(folder)


def _description(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": shape.vocab,
        "hidden_size": model.WIDTH,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": model.WIDTH,
        "intermediate_size": model.WIDTH,
        "num_hidden_layers": 1,
        "max_position_embeddings": shape.max_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": shape.vocab - 1,
        "bos_token_id": None,
    }


def _draft_name(shape: Shape) -> str:
    return f"{shape.speculator}-{shape.vocab}-{shape.max_len}-{shape.bonus_anchor}"


def _draft(shape: Shape) -> dict[str, Any]:
    seen = {"mask_token_id": shape.vocab - 2, "target_layer_ids": [0]}
    parts: dict[str, dict[str, Any]] = {
        "eagle": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "dflash": {"architectures": ["DFlashDraftModel"], "dflash_config": seen, "block_size": 7, **seen},
        "dspark": {
            **seen,
            "architectures": ["Qwen3DSparkModel"],
            "dflash_config": seen,
            "block_size": 7,
            "markov_rank": model.WIDTH,
            "markov_head_type": "vanilla",
            "enable_confidence_head": False,
            "dspark_bonus_anchor": shape.bonus_anchor,
        },
    }
    return _description(shape) | parts[shape.speculator]


def config(shape: Shape) -> Any:
    """The VllmConfig of an engine of this shape."""
    from vllm.engine.arg_utils import EngineArgs

    spec = None
    if shape.drafts:
        spec = {
            "method": shape.speculator,
            "model": _write_config(_draft_name(shape), _draft(shape)),
            "num_speculative_tokens": shape.drafts,
            "draft_sample_method": "probabilistic" if shape.probabilistic else "greedy",
        }
        if shape.method != "standard":
            spec["rejection_sample_method"] = shape.method
        if shape.method == "synthetic":
            spec["synthetic_acceptance_rates"] = [0.8 / (i + 1) for i in range(shape.drafts)]
    with mock.patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": "1"}):
        return EngineArgs(
            model=_write_config(f"target-{shape.vocab}-{shape.max_len}", _description(shape)),
            skip_tokenizer_init=True,
            dtype="float32",
            max_model_len=shape.max_len,
            max_num_seqs=shape.max_reqs,
            max_num_batched_tokens=shape.budget,
            block_size=shape.groups[0],
            enable_prefix_caching=True,
            enforce_eager=True,
            async_scheduling=shape.overlapped,
            speculative_config=spec,
            seed=0,
        ).create_engine_config()


_distributed = False


def _init_distributed(vllm_config: Any) -> None:
    global _distributed
    if _distributed:
        return
    from vllm.distributed import parallel_state

    where = _models() / "rendezvous"
    backend = "gloo" if DEVICE.type == "cpu" else "nccl"
    parallel_state.init_distributed_environment(1, 0, f"file://{where}", 0, backend)
    parallel_state.ensure_model_parallel_initialized(1, 1)
    _distributed = True


def runner(shape: Shape, variables: Mapping[str, str] | None) -> Any:
    """A runner with its cache and buffers, ready for a first step.

    variables: KUNLUN_* of the fork's runner; None: upstream's own runner, its own launchers.
    """
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker.gpu import model_runner as upstream

    prepare()
    vllm_config = config(shape)
    with set_current_vllm_config(vllm_config):
        _init_distributed(vllm_config)
        _with_views()
        made = _class(upstream, variables, shape.views)
        with _patched(shape):
            one = made(vllm_config, DEVICE)
            one.load_model()
            one.initialize_kv_cache(_cache(shape, one))
        if shape.buckets:
            _graphs(shape, one)
    return one


class _Unpinned:
    """torch for upstream's grammar module, which pins memory where there is nothing to pin it for."""

    def __getattr__(self, attribute: str) -> Any:
        return getattr(torch, attribute)

    def tensor(self, *args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(*args, **kwargs)


def prepare() -> None:
    """Stand-ins that this process needs before a runner is made; repeating is free."""
    if DEVICE.type != "cpu":
        return
    from vllm.v1.sample.ops import topk_topp_sampler
    from vllm.v1.worker.gpu import structured_outputs

    # The interpreter cannot run this one kernel; upstream's own torch path does the same.
    topk_topp_sampler.HAS_TRITON = False
    structured_outputs.torch = _Unpinned()
    # Upstream's stand-ins for streams on a CPU forget it.
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore[method-assign]


def _class(upstream: Any, variables: Mapping[str, str] | None, views: bool) -> Any:
    if variables is None:
        activation().BINDER.activate({})
        return upstream.GPUModelRunner
    from vllm.v1.worker.gpu import model_runner_v2

    row_by_row = variables.get("KUNLUN_KERNELS") == "reference"
    if row_by_row:
        variables = {**variables, "KUNLUN_KERNELS": "torch"}

    def make(vllm_config: Any, device: torch.device) -> Any:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("KUNLUN_")}
        fused = variables.get("KUNLUN_KERNELS") == "fused"
        with (
            mock.patch.dict(os.environ, {**clean, **variables}, clear=True),
            nullcontext() if fused else _no_triton(),
            _kernels(row_by_row),
            _views(views),
        ):
            return model_runner_v2.ModelRunnerV2(vllm_config, device)

    return make


def activation() -> Any:
    from vllm.v1.worker.gpu.kunlun import activation as found

    return found


@contextmanager
def _no_triton() -> Iterator[None]:
    """As on Kunlun: a site that is switched off goes to the reference, not back to upstream."""
    from vllm.v1.worker.gpu.kunlun import probe

    with mock.patch.object(probe, "triton_launches", lambda device: (False, "the step tier says so")):
        yield


@contextmanager
def _views(views: bool) -> Iterator[None]:
    """Without, as on Kunlun: the runner keeps in tensors of the device what upstream keeps in host memory."""
    from vllm.v1.worker.gpu.kunlun import uva

    with mock.patch.object(uva, "views_work", lambda device: (views, "the step tier says so")):
        yield


_buffers: dict[tuple[Any, str], Any] = {}


def _with_views() -> None:
    """Upstream's buffers again, which the fork's runner may have replaced: it does so for the whole process."""
    from vllm.v1.worker.gpu import buffer_utils
    from vllm.v1.worker.gpu.kunlun import uva

    owners = [(buffer_utils, "UvaBuffer"), *((getattr(buffer_utils, o), name) for o, name in uva._REPLACED)]
    if not _buffers:
        _buffers.update({(owner, name): getattr(owner, name) for owner, name in owners})
    for (owner, name), value in _buffers.items():
        setattr(owner, name, value)


@contextmanager
def _kernels(row_by_row: bool) -> Iterator[None]:
    """With `row_by_row`, the reference at every site: an engine has no name for that."""
    from vllm.v1.worker.gpu.kunlun import backend

    def decide(switches: Any, probe: Any, sites: Any) -> Any:
        # It has one form of everything.
        bare = {dataclasses.replace(site, variants=(), when_greedy=None): site for site in sites}
        plan = whole(dataclasses.replace(switches, kernels="reference"), probe, bare)
        return dataclasses.replace(plan, targets={bare[site]: target for site, target in plan.targets.items()})

    whole = backend.decide
    with mock.patch.object(backend, "decide", decide if row_by_row else whole):
        yield


@contextmanager
def _patched(shape: Shape) -> Iterator[None]:
    """Hash models where upstream would load weights."""
    from vllm.v1.worker.gpu import model_runner as upstream
    from vllm.v1.worker.gpu.spec_decode.dflash import speculator as dflash
    from vllm.v1.worker.gpu.spec_decode.dspark import speculator as dspark
    from vllm.v1.worker.gpu.spec_decode.eagle import speculator as eagle

    class Loader:
        def load_model(self, vllm_config: Any, model_config: Any) -> Any:
            model.register(vllm_config, "target", shape.groups)
            aux = bool(shape.drafts) and shape.speculator != "eagle"
            return model.Target(shape.vocab, _no_slots, aux, shape.speculator == "dflash")

    def load_draft(target: Any, vllm_config: Any) -> Any:
        model.register(vllm_config, "draft", shape.groups[:1])
        return model.Draft(shape.vocab, _no_slots, shape.speculator == "dflash")

    with (
        mock.patch.object(upstream, "get_model_loader", lambda config: Loader()),
        mock.patch.object(dspark, "load_dspark_model", load_draft),
        mock.patch.object(dflash, "load_dflash_model", load_draft),
        mock.patch.object(eagle, "load_eagle_model", load_draft),
    ):
        yield


def _no_slots(n: int) -> torch.Tensor:
    return torch.zeros(1, n, dtype=torch.int64, device=DEVICE)


def _cache(shape: Shape, one: Any) -> Any:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

    specs = one.get_kv_cache_spec()
    groups = []
    for i, _ in enumerate(shape.groups):
        names = [name for name in specs if name.endswith(f".{i}")]
        groups.append(KVCacheGroupSpec(names, specs[names[0]]))
    tensors = [
        KVCacheTensor(size=shape.blocks * spec.page_size_bytes, shared_by=[name]) for name, spec in specs.items()
    ]
    return KVCacheConfig(num_blocks=shape.blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


def watch_slots(one: Any) -> None:
    """Let the models see the slots of the cache that attention would be told."""
    tables = one.block_tables

    def slots(n: int) -> torch.Tensor:
        return tables.slot_mappings[:, :n]

    one.model.slots = slots
    if one.speculator is not None:
        one.speculator.model.slots = slots


def _graphs(shape: Shape, one: Any) -> None:
    """Upstream's choice of graphs, and calls of the hash models where it would replay one: on the persistent buffers,
    padding included."""
    from vllm.config.compilation import CUDAGraphMode
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
    from vllm.v1.worker.gpu.spec_decode.dflash import speculator as dflash

    class Graphs(ModelCudaGraphManager):
        def run_fullgraph(self, desc: Any) -> Any:
            buffers = one.input_buffers
            return one.model(buffers.input_ids[: desc.num_tokens], buffers.positions[: desc.num_tokens])

        def run_pw_graph(self, target: Any, model_inputs: Any) -> Any:
            return target(**model_inputs)

    class DraftGraphs(dflash.DFlashCudaGraphManager):
        def run_fullgraph(self, desc: Any) -> None:
            one.speculator._generate_draft(desc.num_reqs, desc.num_tokens, None, None, None)

    settings = one.compilation_config
    settings.cudagraph_capture_sizes = list(shape.buckets)
    settings.max_cudagraph_capture_size = max(shape.buckets)
    mode = CUDAGraphMode.FULL_AND_PIECEWISE
    with mock.patch.object(type(current_platform), "get_global_graph_pool", lambda self: None):
        one.cudagraph_manager = Graphs(one.vllm_config, DEVICE, mode, decode_query_len=one.decode_query_len)
        one.cudagraph_manager._graphs_captured = True
        if one.speculator is not None:
            # Its own method knows what this release's manager wants.
            with mock.patch.object(dflash, "DFlashCudaGraphManager", DraftGraphs):
                one.speculator.init_cudagraph_manager(mode)
            one.speculator.query_cudagraph_manager._graphs_captured = True
