"""Public functions refuse arguments of a wrong type in a sentence that names them."""

import pytest

import pearl
from pearl.errors import SpecError
from pearl.testing.graphs import loop

SPEC = "q_learning_frozenlake"
CPU = pearl.Platform("p", (pearl.Device("cpu"),))
CALLS = {
    "spec is None": lambda: pearl.load(None),
    r"spec is 3; a path, the name of a shipped": lambda: pearl.plan(3),
    r"set is \['a=1'\]; a mapping": lambda: pearl.compile(SPEC, set=["a=1"]),
    "plan is 3; a Plan": lambda: pearl.compile(SPEC, plan=3),
    "plan is 'x'; a Plan": lambda: pearl.explain("x"),
    "report: plan is 'x'": lambda: pearl.Report("x"),
    "seeds is 3; a list": lambda: pearl.sweep(SPEC, seeds=3, dry_run=True),
    "over is 'x'; a mapping": lambda: pearl.sweep(SPEC, over="x", dry_run=True),
    "asha is 3; a mapping of eta": lambda: pearl.sweep(SPEC, asha=3, dry_run=True),
    "seconds is 'x'; it must": lambda: pearl.Mode.of("a", "cpu", "x"),
    "unit_bytes is -1": lambda: pearl.Mode.of("a", "cpu", 1.0, unit_bytes=-1),
    "seconds is 3; a mapping": lambda: pearl.CostTable.from_seconds(CPU, 3),
    "no device 'gpu'": lambda: pearl.CostTable.from_seconds(CPU, {"a": {"gpu": 1.0}}),
    "apart_extra_s has 'ab'; a pair": lambda: pearl.CostTable(CPU, (), apart_extra_s={"ab": 1.0}),
    "shared_extra_s of a with b": lambda: pearl.CostTable(
        CPU, (), shared_extra_s={("a", "b"): -1.0}
    ),
    "apart has 3; each entry": lambda: pearl.Limits(apart=(3,)),
    "a task cannot be apart from itself": lambda: pearl.Limits(apart=(("a", "a"),)),
    "shares are": lambda: pearl.Fusion("f", ("a", "b"), shares={"a": 1.0}),
    "unit_memory_bytes is 0": lambda: pearl.Device("gpu", unit_memory_bytes=0),
    "on_incumbent is 3; it must be a function": lambda: pearl.solve(
        pearl.TaskGraph("g", (pearl.Task("a"),), ()), pearl.CostTable(CPU, ()), on_incumbent=3
    ),
    "path is 3; the path": lambda: pearl.io.read_fjsp(3),
    "graph is 3; a DiGraph": lambda: pearl.io.from_networkx(3),
    "out is 3; a folder": lambda: pearl.sweep(SPEC, out=3),
    "kernel is 'update'": lambda: pearl.estimate("update", "gpu"),
    "add is 3; a list": lambda: pearl.advise(SPEC, add=3),
    "about is 3; a list": lambda: pearl.advise(SPEC, about=3),
    "limits are given in addition to a system": lambda: pearl.pareto(SPEC, limits=pearl.Limits()),
    "costs is None; a CostTable": lambda: pearl.pareto(loop("x")),
    "seconds is 'x'": lambda: pearl.calibrate(seconds="x"),
    "path is 3; a file": lambda: pearl.Policy.load(3),
}
OF_A_RUN = {
    "steps is 10000.0; a whole number": {"steps": 1e4},
    "steps is 'many'": {"steps": "many"},
    "callbacks is .*Callback": {"callbacks": pearl.Callback()},
    "progress is 3; a function": {"progress": 3},
    "out is 3; a path": {"out": 3},
    "start_from is 3; a path": {"start_from": 3},
}


@pytest.mark.parametrize("said", CALLS)
def test_a_wrong_argument_is_named(said: str) -> None:
    with pytest.raises((SpecError, ValueError), match=said):
        CALLS[said]()


def test_a_wrong_argument_of_a_run_is_named_before_it_begins() -> None:
    trainer = pearl.compile(SPEC, set={"limits.max_lanes": 1}, emulate=True)
    for said, given in OF_A_RUN.items():
        with pytest.raises(SpecError, match=said):
            trainer.train(**given)
    with pytest.raises(SpecError, match="run is 'x'; a Run"):
        trainer.report("x")
