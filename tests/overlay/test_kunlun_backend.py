"""Which kernels run, and that all ranks run the same."""

from __future__ import annotations

import pickle
import threading

import pytest


@pytest.fixture
def site(kunlun):
    def site(name, switch=None, impl="impl", **more):
        return kunlun.sites.Site((0,), "fakeup.m", name, "(x)", switch, impl, **more)

    return site


@pytest.fixture
def package(world):
    """A package with launchers and references for `impl`, and one switch's other form."""
    for layer in ("launchers", "reference"):
        world.write(
            f"fakekunlun.{layer}.impl",
            f"""
            def launch(x):
                return '{layer}'
            def other(x):
                return '{layer} other'
            def compact(x):
                return 'compact'
            """,
        )
    return "fakekunlun"


@pytest.fixture
def decide(kunlun, package):
    def decide(sites, probe=(True, "it launches"), **environ):
        def answer():
            if probe is None:
                raise AssertionError("the probe was not needed")
            return probe

        switches = kunlun.switches.read({f"KUNLUN_{k}": v for k, v in environ.items()})
        return kunlun.backend.decide(switches, answer, sites, package)

    return decide


def run(plan):
    return {site.name: fn(1) for site, fn in plan.targets.items()}


def test_auto_takes_upstream_where_triton_launches(decide, site):
    plan = decide([site("launch")])
    assert (plan.backend, run(plan)) == ("upstream", {})
    assert str(plan) == "upstream kernels (auto: it launches)"


def test_auto_takes_torch_where_it_does_not(decide, site):
    plan = decide([site("launch")], probe=(False, "no driver"))
    assert (plan.backend, run(plan)) == ("torch", {"launch": "launchers"})
    assert str(plan) == "torch kernels (auto: no driver)"


def test_an_explicit_choice_does_not_probe(decide, site):
    assert run(decide([site("launch")], probe=None, KERNELS="upstream")) == {}
    assert run(decide([site("launch")], probe=None, KERNELS="torch")) == {"launch": "launchers"}


def test_upstream_needs_no_implementation(decide, site):
    assert run(decide([site("launch", impl="absent")], probe=None, KERNELS="upstream", HOSTVEC="0")) == {}


@pytest.mark.parametrize(
    ("launches", "off", "expected"),
    [
        (True, "upstream", {"other": "launchers other"}),
        (False, "reference", {"launch": "reference", "other": "launchers other"}),
    ],
)
def test_a_site_that_is_off_goes_back(decide, site, launches, off, expected):
    sites = [site("launch", "KUNLUN_REJ_XPU"), site("other", "KUNLUN_HOSTVEC")]
    plan = decide(sites, probe=(launches, "because"), KERNELS="torch", REJ_XPU="0")
    assert run(plan) == expected
    assert plan.off == off
    assert str(plan) == f"torch kernels (KUNLUN_KERNELS=torch), KUNLUN_REJ_XPU=off, sites switched off run {off}"


def test_a_site_goes_off_with_the_switch_that_its_own_needs(decide, site):
    plan = decide([site("launch", "KUNLUN_HOSTVEC_POSTUPDATE")], probe=(False, ""), HOSTVEC="off")
    assert run(plan) == {"launch": "reference"}


def test_a_variant_runs_while_its_switch_is_off(decide, site):
    sites = [site("launch", "KUNLUN_HOSTVEC_POSTUPDATE", variants=(("KUNLUN_POSTUPD3", "compact"),))]
    assert run(decide(sites, probe=None, KERNELS="torch")) == {"launch": "launchers"}
    assert run(decide(sites, probe=None, KERNELS="torch", POSTUPD3="0")) == {"launch": "compact"}
    # The reference has one form.
    assert run(decide(sites, probe=(False, ""), KERNELS="torch", HOSTVEC="0")) == {"launch": "reference"}


def test_a_batch_that_is_all_greedy_runs_the_form_for_it(kunlun, decide, site):
    sites = [site("launch", when_greedy="other")]
    plan = decide(sites, probe=None, KERNELS="torch")
    assert run(plan) == {"launch": "launchers"}
    with kunlun.host_facts.batch(all_rows_greedy=True):
        assert run(plan) == {"launch": "launchers other"}
        with kunlun.host_facts.batch(all_rows_greedy=False):
            assert run(plan) == {"launch": "launchers"}
        assert run(plan) == {"launch": "launchers other"}
    assert run(plan) == {"launch": "launchers"}


@pytest.mark.parametrize(
    ("switch", "probe", "expected"),
    [("GUMBEL_GREEDY", None, "launchers"), ("REJ_XPU", (False, ""), "reference"), ("REJ_XPU", (True, ""), None)],
)
def test_who_has_no_form_for_a_greedy_batch(kunlun, decide, site, switch, probe, expected):
    plan = decide([site("launch", "KUNLUN_REJ_XPU", when_greedy="other")], probe, KERNELS="torch", **{switch: "0"})
    with kunlun.host_facts.batch(all_rows_greedy=True):
        assert run(plan).get("launch") == expected


def test_what_one_thread_knows_of_its_batch_is_not_told_to_another(kunlun):
    seen = []
    with kunlun.host_facts.batch(all_rows_greedy=True):
        thread = threading.Thread(target=lambda: seen.append(kunlun.host_facts.all_rows_greedy()))
        thread.start()
        thread.join()
    assert seen == [False]


def test_whatever_is_missing_is_named_at_once(kunlun, decide, site, world):
    world.write("fakekunlun.launchers.wrong", "def launch(x, y=0):\n    pass\n")
    sites = [site("launch"), site("gone"), site("lost"), site("launch", impl="absent"), site("launch", impl="wrong")]
    with pytest.raises(kunlun.backend.BackendError) as caught:
        decide(sites, probe=(False, "no driver"))
    text = str(caught.value)
    assert "cannot run torch kernels (auto: no driver)" in text
    assert (
        "launchers.impl: gone, lost; launchers.absent: launch; launchers.wrong: launch(x) (it has launch(x, y=0))."
        in text
    )


def test_a_missing_form_for_a_greedy_batch_is_named(kunlun, decide, site):
    with pytest.raises(kunlun.backend.BackendError, match=r"launchers\.impl: quick\."):
        decide([site("launch", when_greedy="quick")], probe=None, KERNELS="torch")


def test_a_missing_variant_and_a_missing_reference_are_named(kunlun, decide, site):
    variant = site("launch", variants=(("KUNLUN_POSTUPD3", "dense"),))
    assert run(decide([variant], probe=None, KERNELS="torch")) == {"launch": "launchers"}
    with pytest.raises(kunlun.backend.BackendError, match=r"launchers\.impl: dense"):
        decide([variant], probe=None, KERNELS="torch", POSTUPD3="0")
    with pytest.raises(kunlun.backend.BackendError, match=r"reference\.absent: launch"):
        decide([site("launch", "KUNLUN_REJ_XPU", "absent")], probe=(False, ""), REJ_XPU="0")


@pytest.mark.parametrize(("kernels", "folder"), [("fused", "kernels"), ("vendor", "vendor")])
def test_a_backend_that_is_not_in_this_build_is_refused_not_replaced(kunlun, decide, site, world, kernels, folder):
    # Only the fork's own kernels are Triton's.
    probe = (True, "it launches") if kernels == "fused" else None
    with pytest.raises(kunlun.backend.BackendError, match=rf"lacks {folder}: all\."):
        decide([site("launch")], probe, KERNELS=kernels)
    world.write(f"fakekunlun.{folder}.impl", f"def launch(x):\n    return '{folder}'\n")
    plan = decide([site("launch"), site("other")], probe, KERNELS=kernels)
    # Upstream's kernel is better than operators of torch where kernels launch.
    rest = {} if kernels == "fused" else {"other": "launchers other"}
    assert run(plan) == {"launch": folder, **rest}


def test_with_upstreams_fixes_the_rest_of_fused_is_the_forks(kunlun, decide, site, world):
    """Upstream's own kernels have no fixes."""
    world.write("fakekunlun.kernels.impl", "def launch(x):\n    return 'kernels'\n")
    plan = decide([site("launch"), site("other")], KERNELS="fused", UPSTREAM_FIXES="1")
    assert run(plan) == {"launch": "kernels", "other": "launchers other"}


def test_a_form_that_a_switch_asks_for_is_the_forks_though_upstream_has_a_kernel(kunlun, decide, site, world):
    world.write("fakekunlun.kernels.impl", "def launch(x):\n    return 'kernels'\n")
    variant = site("launch", variants=(("KUNLUN_POSTUPD3", "compact"),))
    assert run(decide([variant], KERNELS="fused")) == {"launch": "kernels"}
    assert run(decide([variant], KERNELS="fused", POSTUPD3="0")) == {"launch": "compact"}


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_fused_kernel_for_greedy_batches_only(kunlun, decide, site, world, switch):
    """Upstream's kernel is the general form."""
    world.write("fakekunlun.kernels.impl", "def quick(x):\n    return 'kernels'\n")
    launch = site("launch", when_greedy="quick")
    target = decide([launch], KERNELS="fused", GUMBEL_GREEDY=switch).targets.get(launch)
    binding = kunlun.dispatch.Binding(launch, lambda x: "upstream")
    binding.lead_to(target)
    assert binding.dispatcher(1) == "upstream"
    with kunlun.host_facts.batch(all_rows_greedy=True):
        assert binding.dispatcher(1) == ("kernels" if switch == "1" else "upstream")


def test_fused_kernels_without_triton_are_refused(kunlun, decide, site, world):
    world.write("fakekunlun.kernels.impl", "raise AssertionError('loaded without Triton')\n")
    with pytest.raises(kunlun.backend.BackendError, match="KUNLUN_KERNELS=fused needs Triton, and no driver") as caught:
        decide([site("launch")], probe=(False, "no driver"), KERNELS="fused")
    assert "Set KUNLUN_KERNELS=torch" in str(caught.value)


def test_what_an_implementation_fails_to_import_is_not_called_missing(decide, site, world):
    world.write("fakekunlun.launchers.broken", "import fakekunlun_needs_this\n")
    with pytest.raises(ModuleNotFoundError, match="fakekunlun_needs_this"):
        decide([site("launch", impl="broken")], probe=None, KERNELS="torch")


def plan(kunlun, backend="torch", why="because", **more):
    return kunlun.backend.Plan(backend, why, **more)


def test_ranks_that_agree_may_have_other_reasons(kunlun):
    mine = plan(kunlun, why="no driver on cuda:0")
    other = plan(kunlun, why="no driver on cuda:1")
    got = kunlun.backend.agree(lambda: mine, lambda told: [told, (other.decision, str(other))])
    assert got is mine


@pytest.mark.parametrize("other", [{"backend": "upstream"}, {"off": "reference"}, {"changed": ("KUNLUN_REJ_XPU=off",)}])
def test_ranks_that_differ_stop(kunlun, other):
    theirs = plan(kunlun, **other)
    with pytest.raises(kunlun.backend.BackendError, match=r"rank 0: torch kernels .*; rank 1: ") as caught:
        kunlun.backend.agree(lambda: plan(kunlun), lambda told: [told, (theirs.decision, str(theirs))])
    assert str(theirs) in str(caught.value)


def test_a_rank_that_fails_tells_the_others_and_raises_its_own_error(kunlun):
    sent = []

    def gather(told):
        sent.append(told)
        return [told, ("torch", "torch kernels")]

    def attempt():
        raise LookupError("no kernels here")

    with pytest.raises(LookupError, match="no kernels here"):
        kunlun.backend.agree(attempt, gather)
    assert sent == [("failed", "failed: no kernels here")]


def test_the_other_ranks_stop_with_the_reason_of_the_one_that_failed(kunlun):
    with pytest.raises(kunlun.backend.BackendError, match="rank 1: failed: no kernels there"):
        kunlun.backend.agree(lambda: plan(kunlun), lambda told: [told, ("failed", "failed: no kernels there")])


def test_what_is_sent_between_ranks_is_text(kunlun, decide, site):
    sent = []
    kunlun.backend.agree(lambda: decide([site("launch")], probe=(False, "x")), lambda told: sent.append(told) or [told])
    assert pickle.loads(pickle.dumps(sent[0])) == ("torch", "torch kernels (auto: x)")
