from __future__ import annotations

import pytest

from kunlunfork.store import Base, Store
from kunlunfork.symbols.facts import Class, Function
from kunlunfork.symbols.kept import Kept
from kunlunfork.symbols.release import Given, Release, Symbol, module_of

FILES = {
    b"vllm/__init__.py": b"_TABLE = {'LLM': '.entry:LLM'}\ndef __getattr__(name): ...\n",
    b"vllm/entry.py": b"from .core import Engine as LLM\n",
    b"vllm/core/__init__.py": b"from .stars import *\nfrom .engine import Engine\nfrom . import engine as motor\n",
    b"vllm/core/stars.py": b"__all__ = ['shown']\ndef shown(): ...\ndef hidden(): ...\n",
    b"vllm/core/open.py": b"def seen(): ...\ndef _private(): ...\n",
    b"vllm/core/circle.py": b"from .round import *\nfrom .round import a\n",
    b"vllm/core/round.py": b"from .circle import *\nfrom .circle import a\n",
    b"vllm/core/engine.py": (
        b"import vllm.core.stars\nfrom vllm.core.open import *\nfrom ..other import Base, missing\nimport torch\n"
        b"class Engine(Base):\n    size = 1\n    def run(self): ...\n"
        b"def f():\n    from vllm.other import Base as seen\n    return seen\n"
    ),
    b"vllm/other.py": b"class Root:\n    def stop(self): self.left = 1\nclass Base(Root):\n    def run(self): ...\n",
    b"vllm/broken.py": b"def f(:\n",
    b"vllm/data.json": b"{}",
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name", "found"),
    [
        ("vllm", "LLM", "vllm.core.engine:Engine"),
        ("vllm", "LLM.run", "vllm.core.engine:Engine.run"),
        ("vllm", "core.motor.Engine.stop", "vllm.other:Root.stop"),
        ("vllm.core", "shown", "vllm.core.stars:shown"),
        ("vllm.core", "hidden", None),
        ("vllm.core", "engine", "vllm.core.engine"),
        ("vllm.core.engine", "seen", "vllm.core.open:seen"),
        ("vllm.core.engine", "_private", None),
        ("vllm.core.engine", "missing", None),
        ("vllm.core.engine", "torch", None),
        ("vllm.core.engine", "vllm.core.stars.hidden", "vllm.core.stars:hidden"),
        ("vllm.core.engine", "Engine.size", "vllm.core.engine:Engine.size"),
        ("vllm.core.engine", "Engine.left", "vllm.other:Root.left"),
        ("vllm.core.engine", "Engine.right", None),
        ("vllm.core.circle", "a", None),
        ("vllm.core.circle", "b", None),
        ("vllm.broken", "f", None),
        ("vllm.gone", "f", None),
    ],
)
def test_what_a_name_stands_for(module: str, name: str, found: str | None) -> None:
    symbol = Given(FILES).find(module, name)
    assert (symbol and str(symbol)) == found


def test_a_function_has_names_of_its_own() -> None:
    assert str(Given(FILES).find("vllm.core.engine", "seen", "f")) == "vllm.other:Base"


def test_who_imports_whom() -> None:
    modules = Given(FILES)
    assert set(modules.importers(["vllm.core.stars"])) == {"vllm.core", "vllm.core.engine", "vllm.core.stars"}
    assert set(modules.importers(["vllm.other"])) == {"vllm.core.engine", "vllm.other"}


def test_files_over_others() -> None:
    assert module_of(b"vllm/a/__init__.py") == "vllm.a"
    assert module_of(b"vllm/a-b.py") == module_of(b"vllm/x.json") == ""
    # A package comes before a module of its name, as Python has it.
    both = Given({b"vllm/a.py": b"x = 1\n", b"vllm/a/__init__.py": b"y = 1\n", b"vllm/__init__.py": b""})
    assert both.find("vllm.a", "y") and not both.find("vllm.a", "x")


@pytest.fixture(scope="module")
def release(store: Store, base: Base, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return Release(store, base.tree, Kept(tmp_path_factory.mktemp("kept")), base.version)


def test_the_real_release(release: Release) -> None:
    runner = "vllm.v1.worker.gpu.model_runner"
    assert [s.name for s in release.mro(Symbol(runner, "GPUModelRunner"))] == ["GPUModelRunner", "LoRAModelRunnerMixin"]
    assert str(release.find("vllm", "LLM")) == "vllm.entrypoints.llm:LLM"
    assert str(release.find("vllm.config", "VllmConfig")) == "vllm.config.vllm:VllmConfig"
    found = release.definition(Symbol("vllm.v1.worker.gpu.input_batch", "post_update"))
    assert isinstance(found, Function)
    assert [c.to for c in found.calls if c.launch] == ["_post_update_kernel"]
    assert "[max_num_reqs,max_model_len]" in found.shapes
    batch = release.definition(Symbol("vllm.v1.worker.gpu.input_batch", "InputBatch"))
    assert isinstance(batch, Class)
    assert next(a for a in batch.attributes if a.name == "query_start_loc").shapes == ("[num_reqs+1]",)
    assert "vllm.v1.worker.gpu.model_runner" in release.importers(["vllm.v1.worker.gpu.input_batch"])


def test_what_was_read_before_is_the_same(release: Release, store: Store, base: Base) -> None:
    again = Release(store, base.tree, release.kept, base.version)
    module = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
    assert release.facts(module) == again.facts(module)
    assert release.imported == again.imported


def test_a_release_with_other_files(release: Release) -> None:
    path, module = b"vllm/v1/worker/gpu/states.py", "vllm.v1.worker.gpu.states"
    changed = Given({path: release.source(module).replace(b"class RequestState", b"class Other")}, release)
    assert changed.find(module, "Other") and not changed.find(module, "RequestState")
    assert changed.find("vllm.v1.worker.gpu.model_runner", "GPUModelRunner")
    gone = Given({path: None}, release)
    assert gone.facts(module) is None and not gone.find(module, "RequestState")
