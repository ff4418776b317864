"""What every backend of `pearl_devices` must keep: inherit it, name a backend and kernels."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import ClassVar

import pytest

from pearl_devices import Call, Device, Kernel, UnsupportedError
from pearl_devices.buffers import specs
from tests.kernel_buffers import copied, equal, filled


class BackendContract:
    """backend: the module. device: one of its kind. kernels: at least one it can run."""

    backend: ClassVar[ModuleType]
    device: ClassVar[Device]
    kernels: ClassVar[tuple[Kernel, ...]]
    unknown: ClassVar[Kernel | None] = Kernel("no_such_kind")

    def _each(self) -> list[tuple[Kernel, str]]:
        offered = [(k, v) for k in self.kernels for v, _ in self.backend.offers(k, self.device)]
        assert offered
        return offered

    def test_every_kernel_is_offered_in_some_variant_of_positive_width(self) -> None:
        for kernel in self.kernels:
            offers = self.backend.offers(kernel, self.device)
            assert offers, kernel.kind
            assert len({variant for variant, _ in offers}) == len(offers)
            for variant, width in offers:
                assert isinstance(variant, str)
                assert 1 <= width <= self.device.width

    def test_a_kind_it_does_not_know_is_not_offered(self) -> None:
        if self.unknown is not None:
            assert self.backend.offers(self.unknown, self.device) == ()

    def test_offering_imports_neither_torch_nor_numba_nor_gymnasium(self) -> None:
        name = self.backend.__name__
        code = (
            "import sys\n"
            "from pearl_devices import Device, kernel\n"
            f"import {name} as backend\n"
            f"device = Device('d', {self.device.kind!r})\n"
            "backend.offers(kernel('param_sync', params=3, args={'network': 'q'}), device)\n"
            "env = kernel('env_step', program='CartPole-v1', envs=2, obs=4, act=0)\n"
            "backend.offers(env, device)\n"
            "heavy = {'torch', 'numba', 'gymnasium', 'scipy'} & set(sys.modules)\n"
            "sys.exit(', '.join(heavy) or 0)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def test_an_unknown_variant_is_refused_by_name(self) -> None:
        for kernel in self.kernels:
            with pytest.raises(UnsupportedError, match=kernel.kind) as refusal:
                self.backend.bind(kernel, "no_such_variant", filled([kernel]))
            assert "no_such_variant" in str(refusal.value)

    def test_a_bound_kernel_runs_without_arguments_and_keeps_shapes_and_types(self) -> None:
        for kernel, variant in self._each():
            buffers = filled([kernel])
            call: Call = self.backend.bind(kernel, variant, buffers)
            assert call() is None  # type: ignore[func-returns-value]
            call()
            for name, (shape, dtype) in specs(kernel).items():
                assert buffers[name].shape == shape, (kernel.kind, variant, name)
                assert buffers[name].dtype == dtype, (kernel.kind, variant, name)

    def test_a_bound_kernel_leaves_arrays_of_others_alone(self) -> None:
        for kernel, variant in self._each():
            buffers = filled(self.kernels)
            before = copied(buffers)
            call = self.backend.bind(kernel, variant, buffers)
            call()
            own = set(specs(kernel))
            changed = [name for name in equal(before, buffers) if name not in own]
            assert changed == [], (kernel.kind, variant)

    def test_equal_arrays_give_bit_equal_results(self) -> None:
        for kernel, variant in self._each():
            first, second = filled([kernel], seed=3), filled([kernel], seed=3)
            for buffers in (first, second):
                call = self.backend.bind(kernel, variant, buffers)
                for _ in range(3):
                    call()
            assert equal(first, second) == [], (kernel.kind, variant)
