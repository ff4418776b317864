"""The command line: `pearl COMMAND`. `--help` lists the commands in the order of these imports."""

from importlib import import_module

from pearl.cli import inspection, planning, training  # noqa: F401
from pearl.cli.application import app, main, register_refusal

__all__ = ["app", "main"]

OPTIONAL = {
    "advise": "pearl.cli.advising",
    "sweep": "pearl.cli.sweeps",
    "rtl": "pearl.cli.verilog",
    "calibrate-gpu": "pearl.cli.gpu_timings",
}
"""Command of a room that may be left out → its module, which goes with the room."""

for name, module in OPTIONAL.items():
    try:
        import_module(module)
    except ModuleNotFoundError:
        register_refusal(
            name, f"pearl {name} needs {module}, which this installation of PEARL leaves out"
        )

register_refusal(
    "balance",
    "pearl balance is gone: `pearl advise SPEC --about capacities` plans with half and twice the "
    "cores and multiprocessors",
)
