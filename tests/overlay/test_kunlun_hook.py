"""The hook tells the binder when a module has executed, and disturbs nothing else about importing it."""

from __future__ import annotations

import copy
import importlib
import importlib.resources
import importlib.util
import inspect
import pickle
import subprocess
import sys
import threading
import zipfile
from importlib.machinery import FrozenImporter, ModuleSpec, SourceFileLoader

import pytest

LAUNCH = "def launch(x):\n    return ('upstream', x)\n"


def test_a_module_is_bound_right_after_it_executes(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    world.write("fakeup.runner", "from fakeup.kernels import launch\n")
    site = world.site("fakeup.kernels")
    binder = world.binder(site)
    from fakeup import runner

    assert runner.launch(1) == ("upstream", 1)
    binder.activate({site: ours})
    assert runner.launch(1) == ("ours", 1)
    assert runner.launch is sys.modules["fakeup.kernels"].launch
    binder.activate({})
    assert runner.launch(1) == ("upstream", 1)


def test_a_module_that_loads_after_activation_is_bound_at_once(world, ours):
    world.write("fakeup.late", LAUNCH)
    site = world.site("fakeup.late")
    world.binder(site).activate({site: ours})
    from fakeup.late import launch

    assert launch(2) == ("ours", 2)


def test_modules_and_consumers_that_were_there_before_the_hook(world, ours):
    world.write("fakeup.early", LAUNCH + "alias = launch\n")
    world.write("fakeup.consumer", "from fakeup.early import launch as taken\nother = 1\n")
    from fakeup import consumer, early

    original = early.launch
    site = world.site("fakeup.early")
    binder = world.binder(site)
    assert consumer.taken is early.launch is early.alias
    assert consumer.taken.__wrapped__ is original
    binder.activate({site: ours})
    assert consumer.taken(3) == ("ours", 3)


def test_looking_for_consumers_wakes_no_lazy_module(world, ours):
    world.write("fakeup.early", LAUNCH)
    world.write("fakeup.lazy", "def __getattr__(name):\n    raise AssertionError(name)\n")
    importlib.import_module("fakeup.lazy")
    importlib.import_module("fakeup.early")
    sys.modules["fakeup.odd"] = object()
    sys.modules["fakeup.none"] = None
    site = world.site("fakeup.early")
    world.binder(site).activate({site: ours})


def test_a_module_that_came_past_the_hook_is_found_at_activation(world, ours):
    path = world.write("fakeup.past", LAUNCH)
    world.write("fakeup.consumer", "from fakeup.past import launch\n")
    site = world.site("fakeup.past")
    binder = world.binder(site)

    class Ahead:
        def find_spec(self, name, path_=None, target=None):
            if name == "fakeup.past":
                return importlib.util.spec_from_file_location(name, path)
            return None

    sys.meta_path.insert(0, Ahead())
    from fakeup import consumer

    assert not hasattr(consumer.launch, "__wrapped__")
    binder.activate({site: ours})
    assert consumer.launch(4) == ("ours", 4)


def test_a_consumer_inside_an_import_cycle_is_rebound_at_activation(world, ours):
    world.write("fakeup.cycle", LAUNCH + "import fakeup.consumer\n")
    world.write("fakeup.consumer", "from fakeup.cycle import launch\n")
    site = world.site("fakeup.cycle")
    binder = world.binder(site)
    importlib.import_module("fakeup.cycle")
    from fakeup import consumer

    binder.activate({site: ours})
    assert consumer.launch(5) == ("ours", 5)


def test_installing_in_the_middle_of_a_watched_import_waits_for_its_end(world, ours, monkeypatch):
    world.write("fakeup.middle", "import fakeup.installer\n" + LAUNCH)
    world.write("fakeup.installer", "import kunlun_test_hooks\nkunlun_test_hooks.install()\n")
    site = world.site("fakeup.middle")
    made = []
    hooks = type(sys)("kunlun_test_hooks")
    hooks.install = lambda: made.append(world.binder(site))
    monkeypatch.setitem(sys.modules, "kunlun_test_hooks", hooks)
    from fakeup import middle

    (binder,) = made
    assert binder.problems() == ()
    binder.activate({site: ours})
    assert middle.launch(6) == ("ours", 6)


def test_reload_binds_the_new_code_and_old_names_keep_working(world, ours):
    path = world.write("fakeup.again", LAUNCH)
    site = world.site("fakeup.again")
    binder = world.binder(site)
    from fakeup import again

    before = again.launch
    path.write_text(LAUNCH.replace("upstream", "reloaded upstream"), encoding="utf-8")
    importlib.invalidate_caches()
    assert importlib.reload(again) is again
    assert again.launch is not before
    assert again.launch(7) == ("reloaded upstream", 7)
    binder.activate({site: ours})
    assert (again.launch(7), before(7)) == (("ours", 7), ("ours", 7))
    assert type(again.__loader__) is SourceFileLoader
    importlib.reload(again)
    assert again.launch(8) == ("ours", 8)


def test_an_exception_of_the_body_passes_untouched_and_a_retry_works(world, ours):
    path = world.write(
        "fakeup.broken",
        LAUNCH + "error = LookupError('mine')\nimport builtins\nbuiltins._kunlun_error = error\nraise error\n",
    )
    site = world.site("fakeup.broken")
    binder = world.binder(site)
    import builtins

    with pytest.raises(LookupError) as caught:
        importlib.import_module("fakeup.broken")
    assert caught.value is builtins._kunlun_error
    del builtins._kunlun_error
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "fakeup.broken" not in sys.modules
    assert binder.problems() == ()
    path.write_text(LAUNCH + "# mended, and of another size\n", encoding="utf-8")
    importlib.invalidate_caches()
    from fakeup.broken import launch

    binder.activate({site: ours})
    assert launch(9) == ("ours", 9)


def test_system_exit_in_a_body_passes_too(world):
    world.write("fakeup.leaves", "raise SystemExit(3)\n")
    world.binder(world.site("fakeup.leaves"))
    with pytest.raises(SystemExit) as caught:
        importlib.import_module("fakeup.leaves")
    assert caught.value.code == 3


def test_a_module_that_does_not_exist_is_not_found_as_ever(world):
    world.binder(world.site("fakeup_absent"))
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("fakeup_absent")
    assert caught.value.name == "fakeup_absent"
    assert importlib.util.find_spec("fakeup_absent") is None


def test_modules_that_are_not_watched_are_not_looked_at(world):
    asked = []

    class Recorder:
        def find_spec(self, name, path=None, target=None):
            asked.append(name)
            return None

    world.write("fakeup.plain", LAUNCH)
    world.binder(world.site("fakeup.watched"))
    sys.meta_path.insert(1, Recorder())
    importlib.import_module("fakeup.plain")
    assert asked == ["fakeup", "fakeup.plain"]
    assert sys.meta_path[0].find_spec("fakeup.plain", None) is None
    assert sys.meta_path[0].find_spec("json", None) is None


def test_after_the_import_nothing_of_the_hook_is_left(world):
    world.write("fakeup.clean", "import sys\nduring = (type(__loader__), type(__spec__.loader))\n" + LAUNCH)
    world.binder(world.site("fakeup.clean"))
    from fakeup import clean

    assert clean.during == (SourceFileLoader, SourceFileLoader)
    assert type(clean.__loader__) is SourceFileLoader
    assert clean.__spec__.loader is clean.__loader__
    assert clean.__spec__.origin == clean.__file__
    assert clean.__cached__ == importlib.util.cache_from_source(clean.__file__)
    assert pickle.loads(pickle.dumps(clean.__spec__)).name == "fakeup.clean"
    assert "def launch" in inspect.getsource(clean)


def test_a_spec_that_is_only_asked_for_looks_like_the_real_one(world, ours):
    path = world.write("fakeup.asked", LAUNCH)
    world.write("fakeup.pkg.inner", "")
    (world.root / "fakeup/pkg/data.txt").write_text("data", encoding="utf-8")
    site = world.site("fakeup.asked")
    binder = world.binder(site, world.site("fakeup.pkg"))
    spec = importlib.util.find_spec("fakeup.asked")
    loader = spec.loader
    assert isinstance(loader, SourceFileLoader)
    assert loader.get_filename("fakeup.asked") == str(path)
    assert loader.get_source("fakeup.asked") == LAUNCH
    assert loader.get_code("fakeup.asked").co_filename == str(path)
    assert loader.is_package("fakeup.asked") is False
    assert "SourceFileLoader" in repr(loader)
    assert not hasattr(loader, "no_such_attribute")
    for twin in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert type(twin) is SourceFileLoader
        assert twin.path == str(path)
    package = importlib.util.find_spec("fakeup.pkg")
    assert package.loader.is_package("fakeup.pkg") is True
    assert package.submodule_search_locations
    reader = package.loader.get_resource_reader("fakeup.pkg")
    assert reader.open_resource("data.txt").read() == b"data"
    # And it can be executed by hand, as tools do.
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    binder.activate({site: ours})
    assert module.launch(1) == ("ours", 1)


def test_resources_of_a_watched_package(world):
    world.write("fakeup.pkg.inner", "")
    (world.root / "fakeup/pkg/data.txt").write_text("data", encoding="utf-8")
    world.binder(world.site("fakeup.pkg", "absent"))
    pkg = importlib.import_module("fakeup.pkg")
    assert pkg.__path__ == [str(world.root / "fakeup" / "pkg")]
    assert importlib.resources.files("fakeup.pkg").joinpath("data.txt").read_text() == "data"
    assert importlib.import_module("fakeup.pkg.inner").__package__ == "fakeup.pkg"


def test_a_module_in_a_zip(world, monkeypatch):
    archive = world.root / "packed.zip"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("fakezip/__init__.py", "")
        z.writestr("fakezip/kernels.py", LAUNCH)
        z.writestr("fakezip/data.txt", "zipped")
    monkeypatch.syspath_prepend(str(archive))
    world.binder(world.site("fakezip.kernels"), world.site("fakezip", "absent"))
    from fakezip import kernels

    assert kernels.__loader__ is kernels.__spec__.loader
    assert type(kernels.__loader__).__name__ == "zipimporter"
    assert kernels.__loader__.get_source("fakezip.kernels") == LAUNCH
    assert importlib.resources.files("fakezip").joinpath("data.txt").read_text() == "zipped"
    assert kernels.launch.__wrapped__(1) == ("upstream", 1)


def test_a_frozen_module_whose_loader_is_a_class(world, ours):
    name = "__phello__.spam"
    for module in ("__phello__", name):
        sys.modules.pop(module, None)
    site = world.site(name, "main", "()")
    binder = world.binder(site)
    module = importlib.import_module(name)
    if not hasattr(module, "main"):
        pytest.skip("this Python's frozen test module defines nothing")
    assert module.__spec__.loader is module.__loader__ is FrozenImporter
    binder.activate({site: lambda: "ours"})
    assert module.main() == "ours"


@pytest.mark.filterwarnings("ignore::ImportWarning", "ignore::DeprecationWarning")
@pytest.mark.skipif(sys.version_info >= (3, 15), reason="load_module is gone")
def test_a_loader_without_exec_module_is_left_alone_and_bound_later(world, ours):
    class Old:
        def load_module(self, name):
            module = sys.modules.setdefault(name, type(sys)(name))
            exec(LAUNCH, module.__dict__)
            module.__loader__ = self
            return module

    class OldFinder:
        def find_spec(self, name, path=None, target=None):
            return ModuleSpec(name, Old()) if name == "fakeold" else None

    sys.meta_path.append(OldFinder())
    site = world.site("fakeold")
    binder = world.binder(site)
    module = importlib.import_module("fakeold")
    binder.activate({site: ours})
    assert module.launch(1) == ("ours", 1)


@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_finders_without_find_spec_are_passed_over(world):
    class Legacy:
        def find_module(self, name, path=None):
            return None

    world.write("fakeup.kernels", LAUNCH)
    world.binder(world.site("fakeup.kernels"))
    sys.meta_path.insert(1, Legacy())
    from fakeup.kernels import launch

    assert launch.__wrapped__(1) == ("upstream", 1)


def test_installing_twice_installs_once(world):
    binder = world.binder(world.site("fakeup.kernels"))
    before = list(sys.meta_path)
    world.kunlun.hook.install(binder)
    assert sys.meta_path == before


def test_two_hooks_leave_each_other_working(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    site = world.site("fakeup.kernels")
    first, second = world.binder(site), world.binder(site)
    from fakeup import kernels

    assert kernels.launch(1) == ("upstream", 1)
    # The one that bound the module is the one that can move it.
    for binder in (first, second):
        binder.activate({site: ours})
    assert kernels.launch(1) == ("ours", 1)


def test_threads_that_import_and_activate_see_only_bound_modules(world, ours):
    count = 8
    for i in range(count):
        world.write(f"fakeup.m{i}", (f"import fakeup.m{i + 1}\n" if i + 1 < count else "") + LAUNCH)
    sites = [world.site(f"fakeup.m{i}") for i in range(count)]
    binder = world.binder(*sites)
    barrier = threading.Barrier(count + 1)
    seen, errors = [], []

    def importer(i):
        try:
            barrier.wait()
            module = importlib.import_module(f"fakeup.m{i}")
            seen.append(hasattr(module.launch, "__wrapped__"))
        except BaseException as e:  # noqa: BLE001 - told to the test
            errors.append(e)

    def activator():
        try:
            barrier.wait()
            for _ in range(50):
                binder.activate(dict.fromkeys(sites, ours))
                binder.activate({})
        except BaseException as e:  # noqa: BLE001 - told to the test
            errors.append(e)

    threads = [threading.Thread(target=importer, args=(i,), daemon=True) for i in range(count)]
    threads.append(threading.Thread(target=activator, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []
    assert seen == [True] * count
    binder.activate(dict.fromkeys(sites, ours))
    assert all(sys.modules[f"fakeup.m{i}"].launch(i) == ("ours", i) for i in range(count))


def test_another_thread_waits_for_the_binding(world, monkeypatch):
    world.write("fakeup.slow", LAUNCH)
    binder = world.binder(world.site("fakeup.slow"))
    inside, go = threading.Event(), threading.Event()
    executed = binder.executed

    def slow(module):
        inside.set()
        assert go.wait(60)
        executed(module)

    monkeypatch.setattr(binder, "executed", slow)
    seen = []

    def importer():
        module = importlib.import_module("fakeup.slow")
        seen.append(hasattr(module.launch, "__wrapped__"))

    threads = [threading.Thread(target=importer, daemon=True) for _ in range(2)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    assert seen == []
    go.set()
    for thread in threads:
        thread.join(60)
    assert seen == [True, True]


def test_the_hook_imports_neither_torch_nor_vllm(kunlun):
    code = (
        "import sys, types\n"
        "package = types.ModuleType('k'); sys.modules['k'] = package\n"
        f"package.__path__ = [{str(kunlun.gpu / 'kunlun')!r}]\n"
        "import k.activation\n"
        "assert any(type(f).__module__ == 'k.hook' for f in sys.meta_path)\n"
        "assert not {'torch', 'vllm', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
        "assert k.activation.BINDER.problems() == ()\n"
        "assert set(k.activation.BINDER.owners().values()) == {'not loaded'}\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
