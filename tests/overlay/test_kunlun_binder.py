"""What the binder does about drift, other packages and modules that rebind names."""

from __future__ import annotations

import functools
import importlib
import sys

import pytest

LAUNCH = "def launch(x):\n    return ('upstream', x)\n"


def drift(binder, targets=None):
    """The problems with which activation stops."""
    with pytest.raises(RuntimeError) as caught:
        binder.activate(targets or {})
    assert type(caught.value).__name__ == "DriftError"
    return caught.value.problems


CHANGED = {
    "missing": ("other = 1\n", "nothing"),
    "parameter renamed": ("def launch(y):\n    pass\n", "(y)"),
    "parameter added": ("def launch(x, y=0):\n    pass\n", "(x, y=0)"),
    "default added": ("def launch(x=None):\n    pass\n", "(x=None)"),
    "keyword only": ("def launch(*, x):\n    pass\n", "(*, x)"),
    "variadic": ("def launch(*x):\n    pass\n", "(*x)"),
    "not a function": ("launch = 3\n", "a int"),
    "a class": ("class launch:\n    def __init__(self, x):\n        pass\n", "a type"),
    "a partial": ("import functools\nlaunch = functools.partial(print)\n", "a partial"),
    "a kernel object": ("class Kernel:\n    def __call__(self, x):\n        pass\nlaunch = Kernel()\n", "a Kernel"),
    "moved": ("from fakeup.elsewhere import launch\n", "a function of fakeup.elsewhere"),
}


@pytest.mark.parametrize("source, found", CHANGED.values(), ids=CHANGED)
def test_a_changed_launcher_stops_v2_and_nothing_else(world, ours, source, found):
    world.write("fakeup.elsewhere", LAUNCH)
    world.write("fakeup.changed", source)
    world.write("fakeup.fine", LAUNCH)
    site, fine = world.site("fakeup.changed"), world.site("fakeup.fine")
    binder = world.binder(site, fine)
    importlib.import_module("fakeup.changed")
    module = importlib.import_module("fakeup.fine")
    expected = f"fakeup.changed:launch: expected a function (x), found {found}"
    assert binder.problems() == (expected,)
    assert drift(binder, {site: ours, fine: ours}) == (expected,)
    assert module.launch(1) == ("upstream", 1)
    # Twice: a second engine in the process must not get through.
    assert drift(binder, {site: ours, fine: ours}) == (expected,)


METHODS = {
    "no class": ("other = 1\n", "nothing"),
    "no method": ("class Table:\n    pass\n", "nothing"),
    "inherited": ("class Base:\n    def launch(self, x):\n        pass\nclass Table(Base):\n    pass\n", "nothing"),
    "static": ("class Table:\n    @staticmethod\n    def launch(self, x):\n        pass\n", "a staticmethod"),
    "property": ("class Table:\n    @property\n    def launch(self, x):\n        pass\n", "a property"),
    "class is a function": ("def Table(self, x):\n    pass\n", "nothing"),
}


@pytest.mark.parametrize("source, found", METHODS.values(), ids=METHODS)
def test_a_changed_method_stops_v2(world, source, found):
    world.write("fakeup.table", source)
    binder = world.binder(world.site("fakeup.table", "Table.launch", "(self, x)"))
    importlib.import_module("fakeup.table")
    assert drift(binder) == (f"fakeup.table:Table.launch: expected a function (self, x), found {found}",)


def test_the_error_says_what_to_do(world):
    world.write("fakeup.changed", "")
    binder = world.binder(world.site("fakeup.changed"))
    importlib.import_module("fakeup.changed")
    with pytest.raises(
        RuntimeError, match=r"Apply the fork made for this version of vLLM, .*VLLM_USE_V2_MODEL_RUNNER=0"
    ):
        binder.activate({})


def test_annotations_are_no_drift(world, ours):
    world.write("fakeup.notes", "from __future__ import annotations\ndef launch(x: Gone | None) -> Gone:\n    pass\n")
    site = world.site("fakeup.notes")
    binder = world.binder(site)
    from fakeup.notes import launch

    binder.activate({site: ours})
    assert launch(1) == ("ours", 1)


def test_drift_in_a_module_that_loads_after_activation_stops_its_import(world):
    world.write("fakeup.late", "def launch(y):\n    pass\n")
    world.write("fakeup.optional", "try:\n    import fakeup.late\nexcept ImportError:\n    pass\n")
    world.binder(world.site("fakeup.late")).activate({})
    with pytest.raises(RuntimeError, match=r"fakeup\.late:launch: expected a function \(x\), found \(y\)"):
        importlib.import_module("fakeup.optional")
    assert "fakeup.late" not in sys.modules


def test_a_reload_mends_a_problem(world, ours):
    path = world.write("fakeup.mended", "")
    site = world.site("fakeup.mended")
    binder = world.binder(site)
    from fakeup import mended

    assert len(binder.problems()) == 1
    path.write_text(LAUNCH, encoding="utf-8")
    importlib.invalidate_caches()
    importlib.reload(mended)
    assert binder.problems() == ()
    binder.activate({site: ours})
    assert mended.launch(1) == ("ours", 1)


def test_methods_are_bound_on_their_class(world):
    world.write(
        "fakeup.table",
        """
        class Table:
            def launch(self, x):
                return ("upstream", self.rows, x)
            rows = 3
        class Child(Table):
            rows = 4
        class Override(Table):
            def launch(self, x):
                return super().launch(x + 1)
        """,
    )
    site = world.site("fakeup.table", "Table.launch", "(self, x)")
    binder = world.binder(site)
    from fakeup.table import Child, Override, Table

    table = Table()
    assert table.launch(1) == ("upstream", 3, 1)
    binder.activate({site: lambda self, x: ("ours", self.rows, x)})
    assert (table.launch(1), Child().launch(1), Override().launch(1)) == (
        ("ours", 3, 1),
        ("ours", 4, 1),
        ("ours", 3, 2),
    )


def test_class_methods_are_bound_as_such(world):
    world.write(
        "fakeup.masks",
        """
        class Masks(tuple):
            @classmethod
            def launch(cls, x):
                return cls(("upstream", x))
        class Child(Masks):
            pass
        """,
    )
    site = world.site("fakeup.masks", "Masks.launch", "(cls, x)")
    binder = world.binder(site)
    from fakeup.masks import Child, Masks

    assert (Masks.launch(1), type(Child.launch(1))) == (("upstream", 1), Child)
    binder.activate({site: lambda cls, x: cls(("ours", x))})
    assert (Masks.launch(1), Child((3,)).launch(2)) == (("ours", 1), ("ours", 2))
    assert type(Child.launch(1)) is Child
    binder.settle()
    assert (binder.problems(), binder.owners()) == ((), {"fakeup.masks:Masks.launch": "kunlunfork"})
    binder.activate({})
    assert Child.launch(1) == ("upstream", 1)


def test_a_module_that_rebinds_names_is_followed(world, ours):
    world.write("fakeup.buffers", LAUNCH)
    world.write(
        "fakeup.shm",
        "import fakeup.buffers as b\ndef launch(x):\n    return ('shm', x)\nb.launch = launch\n",
    )
    site = world.site("fakeup.buffers")
    binder = world.binder(site, rebinders={"fakeup.shm": ("fakeup.buffers",)})
    from fakeup import shm

    buffers = sys.modules["fakeup.buffers"]
    assert buffers.launch is not shm.launch
    assert buffers.launch(1) == ("shm", 1)
    assert binder.owners() == {"fakeup.buffers:launch": "upstream"}
    binder.activate({site: ours})
    assert buffers.launch(1) == ("ours", 1)


def test_a_rebinding_that_changes_the_signature_is_drift(world):
    world.write("fakeup.buffers", LAUNCH)
    world.write("fakeup.shm", "import fakeup.buffers as b\ndef launch(y):\n    pass\nb.launch = launch\n")
    binder = world.binder(world.site("fakeup.buffers"), rebinders={"fakeup.shm": ("fakeup.buffers",)})
    importlib.import_module("fakeup.shm")
    assert drift(binder) == ("fakeup.buffers:launch: expected a function (x), found (y)",)


def test_a_rebinder_alone_binds_nothing(world):
    world.write("fakeup.shm", "")
    binder = world.binder(world.site("fakeup.buffers"), rebinders={"fakeup.shm": ("fakeup.buffers",)})
    importlib.import_module("fakeup.shm")
    assert binder.owners() == {"fakeup.buffers:launch": "not loaded"}


def plugin(world):
    """Another package that replaces the launcher, as plugins do."""
    world.write(
        "fakeplugin.patch",
        """
        import functools
        import fakeup.kernels as k
        before = k.launch
        def launch(x):
            return ("plugin", x)
        k.launch = launch
        """,
    )
    return importlib.import_module("fakeplugin.patch")


@pytest.mark.parametrize("when", ["before the hook", "after the hook"])
def test_another_packages_replacement_stays_until_the_fork_has_the_site(world, ours, when):
    world.write("fakeup.kernels", LAUNCH)
    site = world.site("fakeup.kernels")
    if when == "before the hook":
        patch = plugin(world)
        binder = world.binder(site)
    else:
        binder = world.binder(site)
        importlib.import_module("fakeup.kernels")
        patch = plugin(world)
    world.write("fakeup.consumer", "from fakeup.kernels import launch\n")
    from fakeup import consumer, kernels

    assert consumer.launch(1) == ("plugin", 1)
    assert binder.owners() == {"fakeup.kernels:launch": "fakeplugin.patch"}
    binder.activate({})
    assert (kernels.launch(1), consumer.launch(1)) == (("plugin", 1), ("plugin", 1))
    binder.activate({site: ours})
    assert (kernels.launch(1), consumer.launch(1)) == (("ours", 1), ("ours", 1))
    assert binder.owners() == {"fakeup.kernels:launch": "kunlunfork"}
    # The plugin's own function is not a name that it took.
    assert patch.launch(1) == ("plugin", 1)


def test_a_plugin_that_replaces_after_activation_is_replaced_in_turn(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    site = world.site("fakeup.kernels")
    binder = world.binder(site)
    from fakeup import kernels

    binder.activate({site: ours})
    plugin(world)
    assert kernels.launch(1) == ("plugin", 1)
    binder.settle()
    assert kernels.launch(1) == ("ours", 1)
    binder.activate({})
    assert kernels.launch(1) == ("upstream", 1)


def test_a_plugins_wrapper_around_a_dispatcher_does_not_pass_for_one(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    site = world.site("fakeup.kernels")
    binder = world.binder(site)
    from fakeup import kernels

    inner = kernels.launch

    @functools.wraps(inner)
    def wrapper(x):
        return ("wrapped", inner(x))

    wrapper.__module__ = __name__
    kernels.launch = wrapper
    assert binder.owners() == {"fakeup.kernels:launch": __name__}
    binder.activate({site: ours})
    assert kernels.launch(1) == ("ours", 1)


def test_binding_again_changes_nothing(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    site = world.site("fakeup.kernels")
    binder = world.binder(site)
    from fakeup import kernels

    bound = kernels.launch
    binder.settle()
    binder.activate({site: ours})
    binder.activate({})
    assert kernels.launch is bound


def test_owners_before_and_after(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    site, absent = world.site("fakeup.kernels"), world.site("fakeup.absent")
    binder = world.binder(site, absent)
    assert binder.owners() == {"fakeup.kernels:launch": "not loaded", "fakeup.absent:launch": "not loaded"}
    importlib.import_module("fakeup.kernels")
    assert binder.owners()["fakeup.kernels:launch"] == "upstream"
    binder.activate({site: ours})
    assert binder.owners() == {"fakeup.kernels:launch": "kunlunfork", "fakeup.absent:launch": "not loaded"}


def test_a_failed_activation_keeps_what_ran_before(world, ours):
    world.write("fakeup.kernels", LAUNCH)
    world.write("fakeup.other", LAUNCH)
    site, other = world.site("fakeup.kernels"), world.site("fakeup.other")
    binder = world.binder(site, other)
    from fakeup import kernels

    binder.activate({site: ours})
    from fakeup import other as module

    module.launch = lambda y: None
    module.launch.__module__ = "fakeup.other"
    with pytest.raises(RuntimeError):
        binder.activate({other: ours})
    assert kernels.launch(1) == ("ours", 1)
