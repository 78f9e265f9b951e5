"""What holds for every release that the fork supports, on upstream's real files of it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version
from support import REPO, Upstream, apply, digest, state, undo
from test_cli import as_json

from kunlunfork import overlay, paths, status, target
from kunlunfork.content import Content
from kunlunfork.fork import load
from kunlunfork.store import Base, Store

PINS = Content(REPO, clone=True).versions()
KUNLUN = b"vllm/v1/worker/gpu/kunlun/"
# What makes a folder a tree of vLLM.
TREE = (b"vllm/__init__.py", b"vllm/_version.py", b"vllm/version.py", b"PKG-INFO", b"setup.py")


@pytest.fixture(params=PINS)
def pin(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def tree(pin: str, bases: dict[str, Base], content: Content, store: Store, tmp_path: Path) -> Path:
    """The files of the release that its series changes, and those that say what tree this is."""
    wanted = {*load(content, pin).patched, *TREE}
    entries = {p: e for p, e in store.entries(bases[pin].tree).items() if p in wanted}
    return Upstream(store.read(entries)).write(tmp_path / "tree")


def test_apply_verify_revert(pin: str, content: Content, tree: Path, store: Store) -> None:
    """The release is told by the tree itself."""
    before = digest(tree)
    outcome = apply(content, tree, store)
    assert (outcome.action, outcome.version) == ("applied", pin)
    fork = load(content, pin)
    for path in (*fork.added, *fork.patched):
        assert paths.read_entry(tree, path) is not None, path
    assert state(tree, content).current
    assert status.verify(target.of_tree(tree), content, None).problems == ()
    assert apply(content, tree, store).action == "unchanged"
    undo(tree)
    assert digest(tree) == before


def test_the_series_of_all_pins_is_one(content: Content) -> None:
    """A patch that a rebase lost would be missing here."""
    names = {version: [p.name for p in load(content, version).patches] for version in PINS}
    assert all(found == names[PINS[0]] for found in names.values()), names


def test_the_command_lists_them() -> None:
    code, body = as_json("pins", "--repo", REPO)
    assert code == 0
    assert [found["version"] for found in body["result"]["pins"]] == list(PINS)
    # Every commit whole: a git source is checked by it.
    assert {len(found["commit"]) for found in body["result"]["pins"]} == {40}


def test_a_layer_holds_only_what_differs(content: Content) -> None:
    for version in PINS[1:]:
        earlier = overlay.resolve(content.overlay, PINS[PINS.index(version) - 1]).files
        found = overlay.resolve(content.overlay, version).files
        same = [p for p, f in found.items() if f.layer == version and p in earlier and earlier[p].entry == f.entry]
        assert same == []


@pytest.fixture
def kunlun(pin: str, content: Content, tmp_path: Path) -> Iterator[Any]:
    """The declarations of the overlay as this pin gets them, imported without vLLM and torch."""
    folder = tmp_path / "kunlun"
    for path, file in overlay.resolve(content.overlay, pin).files.items():
        if path.startswith(KUNLUN):
            copy = folder / path.removeprefix(KUNLUN).decode()
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.data)
    name = f"kunlun_of_{pin.replace('.', '_')}"
    package: Any = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    for module in ("sites", "upstream_source"):
        importlib.import_module(f"{name}.{module}")
    yield package
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def test_upstream_has_every_launcher_as_it_is_declared(
    pin: str, kunlun: Any, bases: dict[str, Base], store: Store, tmp_path: Path
) -> None:
    """What a worker checks when it binds, for all sites: read from the release's own source."""
    modules = {f"{site.module.replace('.', '/')}.py".encode() for site in kunlun.sites.SITES}
    entries = {p: e for p, e in store.entries(bases[pin].tree).items() if p in modules}
    assert set(entries) == modules
    root = Upstream(store.read(entries)).write(tmp_path / "source") / "vllm"
    assert kunlun.upstream_source.problems(kunlun.sites.SITES, root) == ()
    # And it can say no.
    name = kunlun.sites.SITES[0].module.replace(".", "/").removeprefix("vllm/")
    (root / f"{name}.py").write_text("")
    assert len(kunlun.upstream_source.problems(kunlun.sites.SITES, root)) >= 1


# Modules with kernels that no site launches, since which release and until which: nothing imports them there.
UNREACHED = {"spec_decode/multi_module_mtp/speculator.py": ("0.27.1", "0.28.0")}
# Kernels that came later, by the first pin that has them: their sites run them, or refuse the feature.
LATER = {
    "0.28.0": {
        "model_states/mamba_hybrid.py:_fill_num_accepted_kernel",
        "sample/gumbel.py:gumbel_noised_argmax",
        "sample/output.py:_pack_sampling_mask_kernel",
        "sample/thinking_budget.py:_load_effective_token",
        "sample/thinking_budget.py:_thinking_budget_kernel",
        "sample/thinking_budget.py:_update_committed_marker_cache_kernel",
        "spec_decode/dflash2/speculator.py:_cache_draft_logits_kernel",
        "spec_decode/dflash2/speculator.py:_selector_walk_kernel",
        "spec_decode/multi_module_mtp/speculator.py:_cache_inputs_kernel",
        "spec_decode/multi_module_mtp/speculator.py:_pad_trailing_draft_slots_kernel",
        "spec_decode/multi_module_mtp/speculator.py:_prepare_input_buffers_kernel",
        "spec_decode/multi_module_mtp/speculator.py:_prepare_input_hidden_states_and_embeddings_kernel",
        "spec_decode/multi_module_mtp/speculator.py:_shift_input_embeds_kernel",
        "spec_decode/multi_module_mtp/speculator.py:_shift_input_ids_kernel",
    },
}


def _kernels(base: Base, store: Store) -> set[str]:
    """`module:function` of everything that Triton compiles for the runner."""
    gpu = b"vllm/v1/worker/gpu/"
    entries = {p: e for p, e in store.entries(base.tree).items() if p.startswith(gpu) and p.endswith(b".py")}
    found = set()
    for path, (_, data) in store.read(entries).items():
        if b"triton.jit" in data:
            for node in ast.walk(ast.parse(data)):
                if isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list):
                    found.add(f"{path.removeprefix(gpu).decode()}:{node.name}")
    return found


def test_no_kernel_is_forgotten(pin: str, bases: dict[str, Base], store: Store) -> None:
    """The runner's kernels are those of the first pin and those that came later, which have sites, or nobody's."""
    first, here = _kernels(bases[PINS[0]], store), _kernels(bases[pin], store)
    assert len(first) == 46
    there = {name for name, (since, until) in UNREACHED.items() if Version(since) <= Version(pin) < Version(until)}
    later = {kernel for since, names in LATER.items() if Version(since) <= Version(pin) for kernel in names}
    assert {kernel for kernel in here - first if kernel.partition(":")[0] not in there} == later
    for name in there:
        assert any(kernel.startswith(f"{name}:") for kernel in here)
        package = name.partition("/speculator")[0].rpartition("/")[2].encode()
        sources = {p: e for p, e in store.entries(bases[pin].tree).items() if p.endswith(b".py")}
        sources = {p: e for p, e in sources.items() if p.startswith(b"vllm/") and package not in p}
        lines = [line for _, data in store.read(sources).values() for line in data.splitlines()]
        assert [line for line in lines if package in line and b"import" in line] == []
    assert first - here == set(), "a site without a kernel"
