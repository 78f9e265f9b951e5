"""The V2 runner and the start-up check, with stand-ins for torch and for upstream's modules."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest


class Tensor:
    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


class Kernel:
    """What `triton.jit` makes of a function: `kernel[grid](tensor)` does `launch`."""

    def launch(self, x):
        x.value += 1

    def __getitem__(self, grid):
        return lambda x: type(self).launch(self, x)


class Sampler:
    """Upstream's, as far as the runner looks into it."""

    def __init__(self, *temperatures):
        self.sampling_states = SimpleNamespace(temperature=SimpleNamespace(np=temperatures))


class GPUModelRunner:
    """Upstream's V2 runner."""

    made_sampler = Sampler(0.0, 0.7, 0.0)

    def __init__(self, vllm_config, device):
        self.at_init = [(vllm_config, device), *LOG]
        self.sampler = None

    def load_model(self, load_dummy_weights=False, *args, **kwargs):
        LOG.append(("load_model", load_dummy_weights))
        self.sampler = self.made_sampler

    def initialize_kv_cache(self, kv_cache_config):
        LOG.append(("initialize_kv_cache", kv_cache_config))
        self.block_tables = SimpleNamespace(block_sizes=[32], kernel_block_sizes=[16])

    def _init_kv_zero_meta(self):
        self.kv_block_zeroer = "zeroer"
        layers = {"attn": SimpleNamespace(kv_cache="cache"), "moe": SimpleNamespace()}
        self.compilation_config = SimpleNamespace(static_forward_context=layers)

    use_dcp = False

    def prepare_inputs(self, scheduler_output, batch_desc):
        LOG.append("inputs")
        return scheduler_output

    def prepare_attn(self, input_batch):
        LOG.append("attention")
        return input_batch

    def sample(self, hidden_states, input_batch, grammar_output):
        return hidden_states, grammar_output, host_facts().all_rows_greedy()


class CPUModelRunner(GPUModelRunner):
    """Upstream's V2 runner on a CPU."""


LOG: list[object] = []


def host_facts():
    return sys.modules["vllm.v1.worker.gpu.kunlun.host_facts"]


@pytest.fixture
def vllm(kunlun, monkeypatch):
    """The fork's modules as they lie in vLLM, above stand-ins; `log` has what the logger was told."""
    saved = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ("vllm", "torch")}
    for name in saved:
        monkeypatch.delitem(sys.modules, name)
    finders = list(sys.meta_path)
    log: list[str] = []
    logger = SimpleNamespace(
        info=lambda text, *args: log.append(text % args),
        warning=lambda text, *args: log.append("warning: " + text % args),
    )

    def stub(name, **attributes):
        module = ModuleType(name)
        module.__path__ = []
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        return module

    stub("torch", device=str, Tensor=Tensor, int32="int32", full=lambda shape, value, dtype, device: Tensor(value))
    distributed = stub("torch.distributed", is_initialized=lambda: False)
    stub("vllm")
    stub("vllm.config", VllmConfig=object)
    stub("vllm.logger", init_logger=lambda name: logger)
    stub("vllm.distributed", parallel_state=SimpleNamespace())
    triton = stub("vllm.triton_utils", HAS_TRITON=True, tl=None, triton=SimpleNamespace(jit=lambda fn: Kernel()))
    stub("vllm.utils")
    stub("vllm.utils.math_utils", next_power_of_2=lambda n: ("next_power_of_2", n))
    for name in ("vllm.v1", "vllm.v1.worker", "vllm.v1.worker.gpu", "vllm.v1.worker.cpu"):
        stub(name)
    sys.modules["vllm.v1.worker.gpu"].__path__ = [str(kunlun.gpu)]
    stub("vllm.v1.worker.gpu.model_runner", GPUModelRunner=GPUModelRunner, Sampler=Sampler)
    stub("vllm.v1.worker.gpu.kunlun").__path__ = [str(kunlun.gpu / "kunlun")]
    stub(
        "vllm.v1.worker.gpu.kunlun.uva",
        views_work=lambda device: (device == "cpu", f"none on {device}"),
        install=lambda device: LOG.append(("device buffers", device)),
    )
    stub("vllm.v1.worker.cpu.model_runner", CPUModelRunner=CPUModelRunner)
    monkeypatch.setattr(Kernel, "launch", Kernel.launch)
    for name in [n for n in os.environ if n.startswith("KUNLUN_")]:
        monkeypatch.delenv(name)
    LOG.clear()
    yield SimpleNamespace(
        runner=importlib.import_module("vllm.v1.worker.gpu.model_runner_v2"),
        startup=importlib.import_module("vllm.v1.worker.gpu.kunlun.startup"),
        probe=importlib.import_module("vllm.v1.worker.gpu.kunlun.probe"),
        backend=importlib.import_module("vllm.v1.worker.gpu.kunlun.backend"),
        kunlun=lambda name: importlib.import_module(f"vllm.v1.worker.gpu.kunlun.{name}"),
        stub=stub,
        distributed=distributed,
        triton=triton,
        log=log,
    )
    sys.meta_path[:] = finders
    for name in [n for n in sys.modules if n.partition(".")[0] in ("vllm", "torch")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("backend", "attributes", "expected"),
    [
        ("fused", {}, ["open", "inputs", "launched", "open", "attention", "launched"]),
        ("torch", {}, ["inputs", "attention"]),
        # Upstream reads what is prepared before all of it is.
        ("fused", {"use_dcp": True}, ["inputs", "attention"]),
        ("fused", {"pcp_manager": "one"}, ["inputs", "attention"]),
    ],
)
def test_the_launches_of_a_steps_head_go_together(vllm, monkeypatch, backend, attributes, expected):
    @contextmanager
    def scope():
        LOG.append("open")
        yield
        LOG.append("launched")

    vllm.stub("vllm.v1.worker.gpu.kunlun.kernels")
    vllm.stub("vllm.v1.worker.gpu.kunlun.kernels.head", inputs=scope, attention=scope)
    plan = vllm.backend.Plan(backend, "as the test says")
    monkeypatch.setattr(vllm.runner.backend, "decide", lambda *args: plan)
    for name, value in attributes.items():
        monkeypatch.setattr(GPUModelRunner, name, value, raising=False)
    runner = vllm.runner.ModelRunnerV2("config", "cpu")
    LOG.clear()
    assert runner.prepare_inputs("scheduled", None) == "scheduled"
    assert runner.prepare_attn("batch") == "batch"
    assert expected == LOG


def test_the_kernels_are_decided_before_upstreams_init(vllm, monkeypatch):
    monkeypatch.setattr(vllm.runner.BINDER, "activate", lambda targets: LOG.append(("activate", dict(targets))))
    runner = vllm.runner.ModelRunnerV2("config", "cpu")
    assert runner.at_init == [("config", "cpu"), ("activate", {})]
    assert runner.kunlun_plan.backend == "upstream"
    assert vllm.log == [
        "kunlunfork (unstamped: a developer's tree): ModelRunnerV2 runs upstream kernels "
        "(auto: a trivial Triton kernel launches)"
    ]


def test_without_views_of_host_memory_the_state_goes_to_the_device_before_upstreams_init(vllm):
    vllm.runner.ModelRunnerV2("config", "xpu")
    assert LOG[0] == ("device buffers", "xpu")
    assert vllm.log[0] == "ModelRunnerV2 keeps its state on the device: none on xpu"


def test_after_loading_the_model_the_binder_settles(vllm, monkeypatch):
    runner = vllm.runner.ModelRunnerV2("config", "cpu")
    monkeypatch.setattr(vllm.runner.BINDER, "settle", lambda: LOG.append("settle"))
    runner.load_model(load_dummy_weights=True)
    assert LOG == [("load_model", True), "settle"]


@pytest.fixture
def torch_runner(vllm, monkeypatch):
    """Makes a runner that runs the fork's kernels, for which there are none here."""

    def make(**environ):
        for name, value in environ.items():
            monkeypatch.setenv(f"KUNLUN_{name}", value)
        plan = vllm.backend.Plan("torch", "said by the test")
        monkeypatch.setattr(vllm.backend, "decide", lambda switches, probe, sites: plan)
        monkeypatch.setattr(vllm.runner.BINDER, "activate", lambda targets: None)
        return vllm.runner.ModelRunnerV2("config", "cpu")

    def all_rows_greedy(temperature, rows):
        return all(temperature[row] == 0.0 for row in rows)

    vllm.stub("vllm.v1.worker.gpu.kunlun.launchers")
    vllm.stub("vllm.v1.worker.gpu.kunlun.launchers.sample_gumbel", all_rows_greedy=all_rows_greedy)
    return make


def sampled(runner, *rows):
    return runner.sample("hidden", SimpleNamespace(idx_mapping_np=rows), "grammar")


def test_launchers_hear_of_a_batch_that_is_all_greedy_and_of_no_other(torch_runner):
    runner = torch_runner()
    assert sampled(runner, 0) == ("hidden", "grammar", False), "nobody has looked at the sampler yet"
    runner.load_model()
    assert sampled(runner, 0, 2) == ("hidden", "grammar", True)
    assert sampled(runner, 0, 1) == ("hidden", "grammar", False)
    assert host_facts().all_rows_greedy() is False


def test_a_step_that_fails_does_not_leave_the_next_one_greedy(torch_runner, monkeypatch):
    runner = torch_runner()
    runner.load_model()

    def fails(self, *args):
        assert host_facts().all_rows_greedy()
        raise LookupError

    monkeypatch.setattr(GPUModelRunner, "sample", fails)
    with pytest.raises(LookupError):
        sampled(runner, 0)
    assert host_facts().all_rows_greedy() is False


@pytest.mark.parametrize("case", ["switched off", "no sampler", "another sampler", "upstream"])
def test_who_does_not_look_at_temperatures(vllm, torch_runner, monkeypatch, case):
    if case == "no sampler":
        monkeypatch.setattr(GPUModelRunner, "made_sampler", None)
    if case == "another sampler":
        monkeypatch.setattr(GPUModelRunner, "made_sampler", object())
    if case == "upstream":
        runner = vllm.runner.ModelRunnerV2("config", "cpu")
    else:
        runner = torch_runner(GUMBEL_GREEDY="off" if case == "switched off" else "on")
    runner.load_model()
    assert sampled(runner, 0) == ("hidden", "grammar", False)


@pytest.mark.parametrize("fixes", ["0", "1"])
def test_upstream_fixes(vllm, torch_runner, fixes):
    constants = {}
    for layer in ("launchers", "reference"):
        vllm.stub(f"vllm.v1.worker.gpu.kunlun.{layer}")
        constants[layer] = vllm.stub(f"vllm.v1.worker.gpu.kunlun.{layer}.sample_bad_words", SPEC_OFFSET=None)
    torch_runner(UPSTREAM_FIXES=fixes)
    assert {layer: module.SPEC_OFFSET for layer, module in constants.items()} == dict.fromkeys(constants, int(fixes))


def test_drafts_never_take_slots_behind_the_end_of_the_cache(torch_runner):
    runner = torch_runner()
    runner.initialize_kv_cache("kv")
    assert LOG == [("initialize_kv_cache", "kv")]
    assert runner.block_tables.block_sizes == [16]


def test_upstream_fixes_do_nothing_with_upstreams_kernels_and_that_is_said(vllm, monkeypatch):
    monkeypatch.setenv("KUNLUN_UPSTREAM_FIXES", "1")
    runner = vllm.runner.ModelRunnerV2("config", "cpu")
    runner.initialize_kv_cache("kv")
    assert runner.block_tables.block_sizes == [32]
    assert vllm.log[1:] == [
        "warning: KUNLUN_UPSTREAM_FIXES changes nothing where upstream's kernels run; set KUNLUN_KERNELS=torch"
    ]


def test_the_caches_behind_the_zeroers_addresses_are_kept(vllm, torch_runner, monkeypatch):
    kept = []
    monkeypatch.setattr(
        vllm.runner.kv_segments, "keep_kv_caches", lambda zeroer, caches: kept.append([zeroer, *caches])
    )
    torch_runner()._init_kv_zero_meta()
    assert kept == [["zeroer", "cache", None]]


def test_upstreams_zeroer_is_left_alone(vllm, monkeypatch):
    monkeypatch.setattr(vllm.runner.kv_segments, "keep_kv_caches", None)
    vllm.runner.ModelRunnerV2("config", "cpu")._init_kv_zero_meta()


@pytest.mark.parametrize("has_triton", [True, False])
def test_the_stand_in_for_triton_gets_what_it_lacks(vllm, has_triton):
    """B15: upstream's launchers call triton.next_power_of_2 before they reach any kernel."""
    vllm.triton.HAS_TRITON = has_triton
    vllm.kunlun("placeholder").complete()
    triton = vllm.triton.triton
    if has_triton:
        assert not hasattr(triton, "next_power_of_2")
        return
    assert triton.next_power_of_2(5) == ("next_power_of_2", 5)
    triton.next_power_of_2 = "upstream's"
    vllm.kunlun("placeholder").complete()
    assert triton.next_power_of_2 == "upstream's"


def test_the_workers_names(vllm):
    assert vllm.runner.GPUModelRunner is vllm.runner.ModelRunnerV2
    assert issubclass(vllm.runner.ModelRunnerV2, GPUModelRunner)
    cpu = vllm.runner.CPUModelRunner
    assert cpu is vllm.runner.CPUModelRunnerV2
    assert issubclass(cpu, CPUModelRunner)
    assert cpu.__mro__[1] is vllm.runner.KunlunRunnerMixin
    with pytest.raises(AttributeError, match="TPUModelRunner"):
        _ = vllm.runner.TPUModelRunner


def test_the_factory_makes_one_class_for_a_base(vllm):
    make = vllm.runner.runner_class
    assert make(GPUModelRunner) is vllm.runner.ModelRunnerV2
    assert make(CPUModelRunner) is make(CPUModelRunner) is vllm.runner.CPUModelRunner
    assert make(make(CPUModelRunner)) is make(CPUModelRunner)

    class Other(GPUModelRunner):
        pass

    assert make(Other) is make(Other)
    assert make(Other) is not make(CPUModelRunner)
    # Another class of the same name is another base.
    twin = type("Other", (GPUModelRunner,), {})
    assert make(twin) is not make(Other)
    assert issubclass(make(twin), twin)


def test_classes_are_named_and_pickled_by_this_module(vllm):
    for cls, name in ((vllm.runner.ModelRunnerV2, "ModelRunnerV2"), (vllm.runner.CPUModelRunner, "CPUModelRunnerV2")):
        assert repr(cls) == f"<class 'vllm.v1.worker.gpu.model_runner_v2.{name}'>"
        assert pickle.loads(pickle.dumps(cls)) is cls


def test_a_bad_switch_stops_the_runner(vllm, monkeypatch):
    monkeypatch.setenv("KUNLUN_REJ_XPU", "perhaps")
    with pytest.raises(ValueError, match="KUNLUN_REJ_XPU='perhaps'"):
        vllm.runner.ModelRunnerV2("config", "cpu")


def test_a_rank_that_decides_differently_stops_the_runner(vllm, monkeypatch):
    def all_gather_object(out, told, group):
        assert group == "cpu group"
        out[:] = [told, ("torch", "torch kernels (KUNLUN_KERNELS=torch)")]

    vllm.distributed.is_initialized = lambda: True
    vllm.distributed.all_gather_object = all_gather_object
    world = SimpleNamespace(world_size=2, cpu_group="cpu group")
    monkeypatch.setattr(vllm.runner.parallel_state, "get_world_group", lambda: world, raising=False)
    with pytest.raises(vllm.backend.BackendError, match="rank 1: torch kernels"):
        vllm.runner.ModelRunnerV2("config", "cpu")


def test_drift_stops_the_runner_and_the_other_ranks_hear_of_it(vllm, monkeypatch):
    told = []
    module = ModuleType("vllm.v1.worker.gpu.input_batch")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(vllm.runner, "_gather", lambda mine: told.append(mine) or [mine])
    with pytest.raises(RuntimeError, match=r"input_batch:post_update: expected a function \(.*\), found nothing"):
        vllm.runner.ModelRunnerV2("config", "cpu")
    assert told[0][0] == "failed"


def test_the_probe(vllm, monkeypatch):
    launches = vllm.probe.triton_launches
    assert launches("a") == (True, "a trivial Triton kernel launches")

    def unloadable(self, x):
        raise RuntimeError("Triton Error [CUDA]: not supported\nmodule {\n...")

    monkeypatch.setattr(Kernel, "launch", unloadable)
    assert launches("a") == (True, "a trivial Triton kernel launches")
    assert launches("b") == (
        False,
        "a trivial Triton kernel does not launch: RuntimeError: Triton Error [CUDA]: not supported",
    )

    def silent(self, x):
        raise NotImplementedError

    monkeypatch.setattr(Kernel, "launch", silent)
    assert launches("c") == (False, "a trivial Triton kernel does not launch: NotImplementedError")
    monkeypatch.setattr(Kernel, "launch", lambda self, x: None)
    assert launches("d") == (False, "a trivial Triton kernel computed 41, not 42")
    monkeypatch.setattr(vllm.probe, "HAS_TRITON", False)
    assert launches("e") == (False, "vLLM found no Triton")


def test_start_up_says_once_which_fork_this_is(vllm, monkeypatch):
    vllm.startup.check()
    vllm.startup.check()
    assert vllm.log == ["kunlunfork (unstamped: a developer's tree)"]
    monkeypatch.setenv("KUNLUN_KERNELS", "upstream")
    vllm.startup.check()
    assert vllm.log[1:] == ["kunlunfork (unstamped: a developer's tree) KUNLUN_KERNELS=upstream"]


def test_start_up_refuses_what_it_does_not_understand(vllm, monkeypatch):
    monkeypatch.setenv("KUNLUN_HOSTVECT", "1")
    with pytest.raises(ValueError, match="did you mean KUNLUN_HOSTVEC"):
        vllm.startup.check()
    assert vllm.log == []
