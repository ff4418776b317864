"""`BackendContract`: tests of the `offers` and `bind` of a device kind."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import pytest

from pearl.testing.kernel_buffers import copied, equal, fill_arrays
from pearl_devices import (
    Buffers,
    Call,
    Device,
    Kernel,
    Refused,
    UnsupportedError,
    backend,
    offers,
    trust_kind,
)
from pearl_devices.buffers import specs


class BackendContract:
    """Inherit it in a class `Test…` and set:

    device: a device of the kind.
    kernels: at least one that the device can run.
    binds: whether kernels can be bound; else `bind` always raises UnsupportedError.
    unknown: a kernel that is not offered; None if every kernel is.
    """

    device: ClassVar[Device]
    kernels: ClassVar[tuple[Kernel, ...]]
    binds: ClassVar[bool] = True
    unknown: ClassVar[Kernel | None] = Kernel("no_such_kind")

    def __init_subclass__(cls) -> None:
        """Allow the import of the kind, because its author names it."""
        super().__init_subclass__()
        if device := getattr(cls, "device", None):
            trust_kind(device.kind)

    def _each(self) -> list[tuple[Kernel, str]]:
        """Every kernel in every variant that is offered and can be bound."""
        offered = [(k, v) for k in self.kernels for v in dict(offers(k, self.device))]
        assert offered
        return offered if self.binds else []

    def test_every_kernel_is_offered(self) -> None:
        for kernel in self.kernels:
            assert offers(kernel, self.device), kernel.kind

    def test_a_kind_it_does_not_know_is_refused_with_a_reason(self) -> None:
        if self.unknown is not None:
            refused = backend(self.device.kind).offers(self.unknown, self.device)
            assert isinstance(refused, Refused), f"return Refused(why), not {refused!r}"

    def test_offering_imports_neither_torch_nor_numba_nor_gymnasium(self) -> None:
        code = (
            "import sys\n"
            "from pearl_devices import Device, kernel, offers, trust_kind\n"
            f"trust_kind({self.device.kind!r})\n"
            f"device = Device('d', {self.device.kind!r}, figures={dict(self.device.figures)})\n"
            "offers(kernel('param_sync', params=3, args={'network': 'q'}), device)\n"
            "env = kernel('env_step', program='CartPole-v1', envs=2, obs=4, act=0)\n"
            "offers(env, device)\n"
            "heavy = {'torch', 'numba', 'gymnasium', 'scipy'} & set(sys.modules)\n"
            "sys.exit(', '.join(heavy) or 0)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _bound(self, kernel: Kernel, variant: str, buffers: Buffers) -> Call:
        return backend(self.device.kind).bind(kernel, variant, buffers)

    def test_what_cannot_be_bound_is_refused_by_name(self) -> None:
        for kernel in self.kernels:
            variants = ["no_such_variant"]
            if not self.binds:
                variants += dict(offers(kernel, self.device))
            for variant in variants:
                with pytest.raises(UnsupportedError, match=kernel.kind) as refusal:
                    self._bound(kernel, variant, fill_arrays([kernel]))
                assert variant in str(refusal.value)

    def test_a_bound_kernel_runs_without_arguments_and_keeps_shapes_and_types(self) -> None:
        for kernel, variant in self._each():
            buffers = fill_arrays([kernel])
            call = self._bound(kernel, variant, buffers)
            assert call() is None
            call()
            for name, (shape, dtype) in specs(kernel).items():
                assert buffers[name].shape == shape, (kernel.kind, variant, name)
                assert buffers[name].dtype == dtype, (kernel.kind, variant, name)

    def test_a_bound_kernel_leaves_arrays_of_others_alone(self) -> None:
        for kernel, variant in self._each():
            buffers = fill_arrays(self.kernels)
            before = copied(buffers)
            call = self._bound(kernel, variant, buffers)
            call()
            own = set(specs(kernel))
            changed = [name for name in equal(before, buffers) if name not in own]
            assert changed == [], (kernel.kind, variant)

    def test_equal_arrays_give_bit_equal_results(self) -> None:
        for kernel, variant in self._each():
            first, second = fill_arrays([kernel], seed=3), fill_arrays([kernel], seed=3)
            for buffers in (first, second):
                call = self._bound(kernel, variant, buffers)
                for _ in range(3):
                    call()
            assert equal(first, second) == [], (kernel.kind, variant)
