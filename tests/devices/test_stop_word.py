"""Gradient steps that are cut short by the stop word, and gone on with, give the same bits."""

from typing import Any

import pytest

import pearl
from pearl.testing.kernel_buffers import copied, equal
from pearl_devices import Kernel, cpu, kernel
from tests.devices.test_iterations import system, trained
from tests.devices.test_primitives_ppo import CARTPOLE
from tests.devices.test_primitives_ppo import fill_arrays as rollout
from tests.devices.test_primitives_td3_sac import started
from tests.devices.test_two_cores import PAIRED, STORE, sizes, update

Q = {"obs": 3, "act": 0, "batch": 16, "steps": 3, "double": 1, "q": (3, 16, 16, 2)}


def cut(call: Any, buffers: Any, fresh: Any = None) -> list[int]:
    """Calls that each return after a gradient step; how many were done of the firing after each.

    fresh: makes another call for every second one, as a run that goes on does.
    """
    buffers["loop.stop"][0], seen = 1, []
    while True:
        call()
        seen.append(int(buffers["loop.stop"][1]))
        assert len(seen) < 99, seen
        if seen[-1] == 0:
            buffers["loop.stop"][0] = 0
            return seen
        if fresh and len(seen) % 2:
            call = fresh()


def check(k: Kernel, variant: str, one: Any, steps: int) -> None:
    other = copied(one)
    whole, pieces = cpu.bind(k, variant, one), cpu.bind(k, variant, other)
    for _ in range(2):
        whole()
        seen = cut(pieces, other, lambda: cpu.bind(k, variant, other))
        assert seen == [*range(1, steps), 0]
    assert equal(one, other) == []


@pytest.mark.parametrize("kind", ["learn", "update"])
@pytest.mark.parametrize("algorithm", ["dqn", *PAIRED])
def test_a_firing_in_several_calls_computes_what_it_computes_in_one(algorithm, kind):
    of = dict(Q) if algorithm == "dqn" else sizes(algorithm, 16)
    variants = ["native", *(["native-pair"] if algorithm in PAIRED else [])]
    program = f"pearl.algorithms.{algorithm}:losses"
    k = (
        kernel(f"learn.{algorithm}", {**of, **STORE}, program=program)
        if kind == "learn"
        else update(algorithm, 16)
        if algorithm != "dqn"
        else kernel("update.dqn", of, program=program)
    )
    if kind == "update":
        variants.append("torch")
    for variant in variants:
        arrays = started(k)
        if kind == "learn":
            arrays["replay.cursor"][:] = 0, 64
            arrays["replay.tree"][:] = 1.0
        check(k, variant, arrays, 3)


@pytest.mark.parametrize("variant", ["native", "torch"])
def test_so_do_the_minibatches_of_a_rollout(variant):
    k = kernel("update.ppo", CARTPOLE, program="pearl.algorithms.ppo:losses")
    arrays = rollout([k])
    arrays["hyper.clip"][:], arrays["hyper.normalise"][:], arrays["hyper.anneal"][:] = 0.2, 1, 50
    check(k, variant, arrays, k.dim("steps"))


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
def test_an_iteration_goes_on_amid_its_gradient_steps(name):
    env = "Pendulum-v1" if name == "sac" else "CartPole-v1"
    if name == "ppo":
        of = pearl.load({"algorithm": {"name": name, "env": env}, "platform": "host"})
    else:
        of = system(name, env, replay="prioritised", ratio=2)
    whole, graph, steps = trained(of, True, 30, 3)
    arrays, _, steps = trained(of, True, 30, 0)
    (step,), stop, more = steps, arrays["loop.stop"], arrays["loop.more"]
    more[0], stop[0], calls = 2, 1, 0
    while True:
        step.call()
        calls += 1
        if stop[1] == 0:
            if more[0] == 0:
                break
            more[0] -= 1  # the next of the iterations that were asked for
    stop[0] = 0
    assert calls == 3 * int(graph.updates)
    assert equal(whole, arrays) == []


def test_a_call_ends_between_two_iterations_too():
    of = system("dqn", replay="prioritised")
    whole, _, _ = trained(of, True, 30, 1)
    arrays, graph, steps = trained(of, True, 30, 0)
    arrays["loop.more"][0] = 5
    for _ in range(graph.updates):
        arrays["loop.stop"][0] = 1
        steps[0].call()
    assert (arrays["loop.more"][0], arrays["loop.stop"][1]) == (5, 0)
    arrays["loop.more"][0] = arrays["loop.stop"][0] = 0
    assert equal(whole, arrays) == []
