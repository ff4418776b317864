"""`Policy`: the result of training, in memory and as a small file.

The file is safetensors, without pickle. It holds `parameters`, `statistics` if observations are
normalised, and the arrays of custom kernels between environment and network as `interface.NAME`.
The key `pearl` of its metadata holds JSON: format, pearl_version, which (best, last), env_steps of
the run so far, the spec, and the `description` of an exported policy. The format rises when a
reader of the old version would misread a file: it is 2 with custom kernels, and 1 otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pearl import run_folder
from pearl.algorithms.interface import interface, policy_states
from pearl.errors import SpecError
from pearl.files import write_atomically
from pearl.formats import FORMATS, check_format, pearl_version
from pearl.planning.plans import plain
from pearl.planning.runs import POLICIES
from pearl.training.policy_export import description
from pearl_devices import Kernel
from pearl_devices.cpu import Greedy, greedy
from pearl_devices.kernels.interface import STATISTICS
from pearl_devices.kernels.record import Spec
from pearl_devices.primitives.envs.border import Reader
from pearl_devices.validation import check_type

if TYPE_CHECKING:
    import torch

    from pearl.spec.system import System

FILES = POLICIES
"""Which policy → its file in a run folder."""
PASSED = "interface."
"""Beginning of the names, in a file, of the arrays of custom kernels."""


class Policy:
    """The trained policy without exploration.

    system: the loaded spec.
    kernel: of the task `act`, with the kernels between network and environments
        (`pearl.algorithms.evaluation.acting_of`).
    parameters: of the kernel's network, a flat float32 vector; or its table, as in
        `pearl_devices.kernels.arrays`.
    states: constant arrays, by name, that change observations and actions between environment and
        network: those of `pearl.algorithms.interface.policy_states`.
    interface: applies these changes; evaluations use an object of the same class.
    """

    def __init__(
        self,
        system: System,
        kernel: Kernel,
        parameters: npt.NDArray[Any],
        states: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        self.system = system
        self.kernel = kernel
        self.parameters = parameters
        self.states = dict(states or {})
        self.interface = interface(system, kernel, self.states)
        self._greedy: Greedy | None = None
        self._reader = Reader(system.env.parts, table=bool(kernel.dims.get("states")))
        # Normalised in float64, as in training.
        self._dtype = np.float32 if self.statistics is None else np.float64

    @property
    def statistics(self) -> npt.NDArray[np.float64] | None:
        """Mean and variance that normalise observations (`algorithm.normalise`), float64 (2, O).

        None if observations are not normalised.
        """
        return self.states.get(STATISTICS)

    def copy(self) -> Policy:
        """Return a copy of the policy that no training changes."""
        states = {name: array.copy() for name, array in self.states.items()}
        return Policy(self.system, self.kernel, self.parameters.copy(), states)

    def act(self, obs: Any) -> npt.NDArray[Any]:
        """Return greedy actions for several observations, or one action for one observation.

        Observations are those of the environment: arrays, numbers, and dicts and tuples of them.
        Several lie along the first axis of each part, or in a list. They may also be flat, as
        gymnasium flattens them: shape (B, O), or (O,) for one; whole numbers of shape (n,) are n
        observations if the space is Discrete. Actions are those that the environment takes:
        discrete ones int64 of shape (B,), counted from the environment's first action; several
        discrete components int64 of shape (B, A); continuous ones float32 of shape (B, A).

        Raises:
            ValueError: no observation of the environment, or one that is not finite.
            KernelFailed: a custom function between environment and network failed.
        """
        rows, single = self._reader.read_given(obs, self._dtype)
        if not np.isfinite(rows).all():
            raise ValueError(f"observations are {obs!r}; each number must be finite")
        rows = self.interface.observe(rows)
        env = self.system.env
        if self._greedy is None:
            low, high = np.asarray(env.act_low, np.float32), np.asarray(env.act_high, np.float32)
            self._greedy = greedy(self.kernel, self.parameters, low, high, env.choices)
        actions = self.interface.take(self._greedy(rows))
        if env.start:
            actions = actions + np.array(env.start if env.choices else env.start[0])
        return actions[0] if single else actions

    def __call__(self, obs: Any) -> npt.NDArray[Any]:
        """Return the same as `act`."""
        return self.act(obs)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return `tensors` as torch tensors."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.tensors().items()}

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the parameters under torch's names.

        Dense layers are named as in torch.nn.Sequential(Linear, ReLU or Tanh, Linear, …):
        `0.weight` (out, in), `0.bias`, `2.weight`, …. A table is one torch.nn.Embedding: `0.weight`
        (states, actions). A custom module has its own names.
        """
        kernel, flat = self.kernel, self.parameters
        if kernel.dims.get("states"):
            return {"0.weight": flat.copy()}
        (name,) = kernel.networks
        own = kernel.modules.get(name)
        if own is not None:
            import torch

            from pearl_devices.primitives.torch.modules import named

            return {n: t.numpy().copy() for n, t in named(own, torch.from_numpy(flat)).items()}
        found: dict[str, npt.NDArray[Any]] = {}
        at = 0
        for layer, (i, o) in enumerate(pairwise(kernel.layers())):
            weights, at = flat[at : at + i * o], at + i * o
            found[f"{2 * layer}.weight"] = np.ascontiguousarray(weights.reshape(i, o).T)
            found[f"{2 * layer}.bias"] = flat[at : at + o].copy()
            at += o
        return found

    def save(self, path: str | Path, **about: Any) -> None:
        """Write the policy to a file for `load`, atomically. about: further keys of the file's
        JSON.
        """
        from safetensors.numpy import save

        tensors = {"parameters": self.parameters}
        tensors |= {_file_key(name): array for name, array in self.states.items()}
        about |= {"format": FORMATS["policy"].reads[bool(self.kernel.interface)]}
        about |= {"pearl_version": pearl_version()}
        about |= {"spec": plain(self.system.raw), "description": description(self)}
        text = json.dumps(about, allow_nan=False)
        write_atomically(path, save(tensors, metadata={"pearl": text}))

    @classmethod
    def load(cls, path: str | Path, *, trust: bool = False) -> Policy:
        """Load the policy in a file, or the best policy of a run folder. The replay is not read.

        Args:
            trust: import the code that the spec names, although this user has not trained by that
                spec. Without `trust`, such a file is a SpecError, and nothing is imported
                (`docs/trust.md`).

        Raises:
            SpecError: the file is missing, damaged or of another format, or its code is not
                trusted.
        """
        from pearl.algorithms import algorithm
        from pearl.algorithms.evaluation import acting_of
        from pearl.spec.reading import load_on
        from pearl.spec.trust import require_trusted
        from pearl_devices.buffers import specs
        from pearl_devices.discover import host

        if problems := check_type("Policy.load: path", path, str | Path, "a file or a run folder"):
            raise SpecError(*problems)
        file = run_folder.file_of(Path(path), FILES["best"])
        tensors, about = read_policy_file(file)
        require_trusted(about["spec"], path, trust=trust)
        system = load_on(host(), about["spec"])
        source = algorithm(system.algorithm.name)
        kernel = acting_of(source.graph(system))
        wanted: dict[str, Spec] = {"parameters": specs(kernel)[f"policy.{source.POLICY}"]}
        states = policy_states(system, kernel)
        wanted |= {_file_key(name): spec for name, spec in states.items()}
        given = {name: (array.shape, array.dtype.name) for name, array in tensors.items()}
        if given != wanted:
            raise SpecError(f"{file}: holds {given}; a policy of its spec has {wanted}")
        found = {name: tensors[_file_key(name)] for name in states}
        return cls(system, kernel, tensors["parameters"], found)


def _file_key(state: str) -> str:
    """The name of one of a policy's states in a file."""
    return "statistics" if state == STATISTICS else f"{PASSED}{state}"


def pick_states(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the states of a policy among the arrays of its file, by their own names."""
    found = {n.removeprefix(PASSED): a for n, a in tensors.items() if n.startswith(PASSED)}
    return found | ({STATISTICS: tensors["statistics"]} if "statistics" in tensors else {})


def read_policy_file(file: Path) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, Any]]:
    """Read the arrays and the description of a policy file.

    Raises:
        SpecError: the file is missing, damaged, no policy or of another format.
    """
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise SpecError(
            f"{file}: there is no policy here; `pearl train` writes one with each checkpoint"
        )
    try:
        with safe_open(str(file), framework="numpy") as opened:
            about = json.loads((opened.metadata() or {}).get("pearl", "null"))
            keys = opened.keys()
            names = [n for n in keys if n in ("parameters", "statistics") or n.startswith(PASSED)]
            tensors = {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{file}: not a readable policy: {error}") from None
    if not isinstance(about, dict) or "description" not in about or "spec" not in about:
        raise SpecError(f"{file}: not a policy file of pearl (an exported one has no spec)")
    check_format("policy", about, str(file))
    return tensors, about
