"""The driver of NVIDIA's GPUs: the calls that it makes of CuPy, held by a twin of CuPy; and what
it says where something is missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
import torch

from pearl_devices import UnsupportedError
from pearl_devices.gpu import nvidia, nvrtc
from pearl_devices.gpu.nvrtc import MachineCode
from pearl_devices.gpu.program import Program

TOY = Program(str(Path(__file__).with_name("toy.cu")), {"WIDTH": 4})


class Cupy:
    """What the driver uses of CuPy, noting every call."""

    def __init__(self, cuda: int) -> None:
        self.calls: list[Any] = []
        note = self.calls.append

        class Function:
            ptr = 77

            def __call__(self, *given: Any) -> None:
                note(("launch", *given))

        class Module:
            def load(self, code: bytes) -> None:
                note(("load", code))

            def get_function(self, name: str) -> Function:
                note(("function", name))
                return Function()

        class Device:
            def __init__(self, index: int) -> None:
                self.index = index

            def __enter__(self) -> None:
                note(("enter", self.index))

            def __exit__(self, *error: object) -> None:
                note(("leave", self.index))

        self.cuda = SimpleNamespace(
            Device=Device,
            ExternalStream=lambda stream: ("stream", stream),
            function=SimpleNamespace(Module=Module),
            runtime=SimpleNamespace(runtimeGetVersion=lambda: cuda),
            driver=SimpleNamespace(funcSetAttribute=lambda *given: note(("attribute", *given))),
        )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine whose torch is of CUDA 12 and sees an H100. Takes CuPy's CUDA; None: no CuPy."""

    def here(cuda: int | None) -> Any:
        twin = None if cuda is None else Cupy(cuda)
        monkeypatch.setitem(sys.modules, "cupy", twin)
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(
            torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=55)
        )
        made = lambda program, where: MachineCode(where.encode(), {}, "")  # noqa: E731
        monkeypatch.setattr(nvidia, "compile_program", made)
        return twin

    return here


def test_a_launch_keeps_its_arrays(gpu: Any) -> None:
    gpu(12080)
    scratch = torch.zeros(3)
    seen = ref(scratch)
    launch = nvidia.Gpu(torch.device("cuda", 0)).prepare_launch(
        TOY, "axpy", (1,), (32,), (scratch,)
    )
    del scratch
    assert seen() is not None
    del launch
    assert seen() is None


@pytest.mark.parametrize(("cuda", "why"), [
    (None, r"need CuPy, which cannot be imported .*extra \[gpu-cuda12\], or use eager"),
    (13000, r"CuPy is built for CUDA 13 and torch for CUDA 12, .*\[gpu-cuda12\] in place of "),
])  # fmt: skip
def test_a_cupy_that_is_missing_or_of_another_cuda_is_a_sentence(
    cuda: int | None, why: str, gpu: Any
) -> None:
    gpu(cuda)
    with pytest.raises(UnsupportedError, match=why):
        nvidia.Gpu(torch.device("cuda", 0)).prepare_launch(TOY, "axpy", (1,), (32,), ())


def test_no_gpu_is_a_sentence_that_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "torch_kind", lambda: None)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match=r"built for CPUs alone; install .*limits.devices"):
        nvidia.driver(0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(UnsupportedError, match=r"finds no driver .*install the vendor's driver"):
        nvidia.driver(0)


def test_machine_code_is_compiled_once_unless_it_is_damaged_or_others_may_have_written_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_anew(_: Program, architecture: str, options: Any) -> tuple[str, bytes]:
        compiled.append(" ".join(options))
        used = f"Used {len(compiled)} registers"
        return f"Compiling entry function 'axpy' for '{architecture}'\n{used}", b"\n{code}\x00"

    monkeypatch.setattr(nvrtc, "_compile", compile_anew)
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    first = nvrtc.compile_program(TOY, "sm_80")
    assert (first.code, first.resources["axpy"].registers) == (b"\n{code}\x00", 1)
    assert nvrtc.compile_program(TOY, "sm_80") == first
    (file,) = (tmp_path / nvrtc.FOLDER).iterdir()
    others = [(TOY, "sm_90a"), (replace(TOY, exact=True), "sm_80"), (Program(TOY.file), "sm_80")]
    for number, (program, architecture) in enumerate(others, start=2):
        code = nvrtc.compile_program(program, architecture)
        assert code.resources["axpy"].registers == number
    monkeypatch.setattr(nvrtc, "_version", lambda: ("99.1", "1"))
    assert nvrtc.compile_program(TOY, "sm_80") != first
    monkeypatch.undo()
    monkeypatch.setattr(nvrtc, "_compile", compile_anew)
    monkeypatch.setenv("PEARL_CACHE_DIR", str(tmp_path))
    whole, made = file.read_bytes(), len(compiled)
    for damaged in (b"", whole[:-1], whole.replace(b"sha256", b"sha257"), b"[]\n" + first.code):
        file.write_bytes(damaged)
        again = nvrtc.compile_program(TOY, "sm_80")
        assert nvrtc.compile_program(TOY, "sm_80") == again != first
    assert len(compiled) == made + 4
    file.parent.chmod(0o777)
    kept = file.read_bytes()
    assert nvrtc.compile_program(TOY, "sm_80") != nvrtc.compile_program(TOY, "sm_80")
    assert file.read_bytes() == kept
