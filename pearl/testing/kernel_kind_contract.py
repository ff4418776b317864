"""`KernelKindContract`: tests of the record of a kernel kind."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest

from pearl.testing.kernel_buffers import copied, equal, fill_arrays
from pearl_devices import Device, Kernel, backend, kernel, offers
from pearl_devices.kernels import LEFT_OUT, KernelKind, kind_of
from pearl_devices.kernels.interface import changes, misfit, trained_arrays
from pearl_devices.kernels.record import select_arrays
from pearl_devices.primitives.envs.interface import Passing
from pearl_devices.user_imports import import_function

HOST = Device("host", "cpu", width=2)


class KernelKindContract:
    """Inherit it in a class `Test…` and set:

    kernel: one of the kind.
    """

    kernel: ClassVar[Kernel]

    @property
    def kind(self) -> KernelKind:
        return kind_of(self.kernel)

    def test_its_name_leads_to_its_record(self) -> None:
        assert self.kind.structure != "unknown"
        assert self.kind.name == self.kernel.kind

    def test_its_work_is_counted(self) -> None:
        k = self.kernel
        again = kernel(
            k.kind,
            k.dims,
            program=k.program,
            args=k.args,
            modules=k.modules,
            interface=k.interface,
        )
        assert again == k
        counts = (k.flops, k.bytes_in, k.bytes_out, k.resident_bytes)
        assert all(math.isfinite(n) and n >= 0 for n in counts)
        assert k.bytes_in > 0
        assert k.bytes_out > 0

    def test_its_arrays_have_shapes_and_types(self) -> None:
        arrays = self.kind.arrays(self.kernel)
        assert arrays
        for name, (shape, dtype) in arrays.items():
            assert all(isinstance(n, int) and n >= 0 for n in shape), name
            assert np.dtype(dtype).kind in "fiu", name

    def test_every_array_that_it_names_is_one_of_its_own(self) -> None:
        arrays, kind = self.kind.arrays(self.kernel), self.kind
        assert kind.written(arrays)
        assert set(kind.sent(self.kernel)) <= set(kind.written(arrays))
        assert bool(kind.sends) <= bool(kind.sent(self.kernel))
        for patterns in (kind.per_copy, kind.per_group):
            assert bool(patterns) <= bool(select_arrays(arrays, patterns)), patterns

    def test_its_variants_can_be_imported(self) -> None:
        assert self.kind.variants
        for variant in self.kind.variants.values():
            assert callable(import_function(variant.program(self.kernel)))
            assert variant.cores >= 1

    def test_a_firing_changes_only_what_it_is_said_to_write(self) -> None:
        offered = offers(self.kernel, HOST)
        if not offered:
            pytest.skip("its variants need a program or a package")
        arrays = fill_arrays([self.kernel])
        if self.kind.structure == "own":
            random = np.random.default_rng(0)
            for array in (a for a in arrays.values() if a.dtype.kind == "f"):
                array[:] = random.normal(0, 0.3, array.shape)
        call = backend("cpu").bind(self.kernel, offered[0][0], arrays)
        before = copied(arrays)
        call()
        changed = set(equal(before, arrays))
        assert changed
        assert changed <= set(self.kind.written(arrays))

    def test_in_evaluation_it_changes_each_row_by_itself_and_nothing_else(self) -> None:
        """A kind between environments and network must treat each row by itself, with the same
        result each time, and cannot write any other array."""
        k, kind = self.kernel, self.kind
        written = changes(k)
        if not written:
            assert kind.in_evaluation is None, "it changes neither observations nor actions"
            pytest.skip("the kind is not between environments and network")
        assert len(written) == 1, "a kernel changes observations or actions"
        assert kind.in_evaluation is not None, "in_evaluation, or LEFT_OUT, is needed"
        if kind.in_evaluation == LEFT_OUT:
            return
        assert misfit(k) == ""
        random = np.random.default_rng(0)
        specs = kind.arrays(k)
        states = {
            n: np.abs(random.normal(1, 0.3, s)).astype(d) for n, (s, d) in trained_arrays(k).items()
        }
        shape, dtype = specs[written[0]]
        rows = random.normal(0, 1, (6, *shape[1:])).astype(dtype)
        passing = Passing(k, states)  # its arrays of `states` are read-only
        whole = passing(written[0], rows)
        assert (whole.shape, whole.dtype) == (rows.shape, rows.dtype)
        assert np.array_equal(whole, passing(written[0], rows), equal_nan=True)
        apart = np.concatenate([passing(written[0], row[np.newaxis]) for row in rows])
        np.testing.assert_allclose(apart, whole, rtol=1e-5, atol=1e-6)
        turned = passing(written[0], rows[::-1])[::-1]
        np.testing.assert_allclose(turned, whole, rtol=1e-5, atol=1e-6)

    def test_a_fused_kind_is_made_of_kinds_with_the_same_arrays(self) -> None:
        whole = self.kind.arrays(self.kernel)
        for cut in self.kind.cuts(self.kernel):
            for part, firings in cut:
                assert firings >= 1
                assert kind_of(part).arrays(part).items() <= whole.items(), part.kind
