"""Slices of a GPU's SMs: the driver's calls, by a library that stands in for the driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from pearl_devices.base import UnsupportedError
from pearl_devices.gpu.slices import GreenContexts, HostSlices

DRIVER = r"""
// What cuda.h of CUDA 12.9 declares, for a device of 132 SMs in groups of 8.
#include <cstdint>
typedef int CUresult; typedef int CUdevice;
struct CUdevResource { int type; unsigned char padding[92];
  union { struct { unsigned smCount; } sm; unsigned char oversize[48]; }; };
static_assert(sizeof(CUdevResource) == 144, "cuda.h");
static long made = 0, held = 0;
extern "C" {
CUresult cuInit(unsigned flags) { return flags ? 1 : 0; }
CUresult cuDriverGetVersion(int* version) { *version = VERSION; return 0; }
CUresult cuDeviceGet(CUdevice* device, int ordinal) { *device = 40 + ordinal; return 0; }
CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* found, int type) {
  if (device != 41 || type != 1) return 101;
  found->type = type; found->sm.smCount = 132; return 0; }
CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups,
    const CUdevResource* input, CUdevResource* remaining, unsigned flags, unsigned least) {
  if (input->type != 1 || flags) return 1;
  unsigned each = (least + 7) / 8 * 8, possible = input->sm.smCount / each;
  *groups = *groups < possible ? *groups : possible;
  for (unsigned i = 0; i < *groups; ++i) { result[i].type = 1; result[i].sm.smCount = each; }
  *remaining = *input; remaining->sm.smCount = input->sm.smCount - *groups * each; return 0; }
CUresult cuDevResourceGenerateDesc(void** description, CUdevResource* of, unsigned count) {
  if (count != 1) return 1;
  *description = (void*)(uintptr_t)(1000 + of->sm.smCount); return 0; }
CUresult cuGreenCtxCreate(void** context, void* description, CUdevice device, unsigned flags) {
  if (device != 41 || flags != 1) return 1;
  ++held; *context = description; return 0; }
CUresult cuGreenCtxStreamCreate(void** stream, void* context, unsigned flags, int priority) {
  if (flags != 1 || priority) return 1;
  *stream = (void*)((uintptr_t)context * 100 + ++made); return 0; }
CUresult cuGreenCtxDestroy(void* context) { --held; return 0; }
CUresult cuGetErrorName(CUresult status, const char** name) { *name = "CUDA_ERROR_TEST"; return 0; }
long contexts_held() { return held; }
}
"""


def driver(folder: Path, source: str = DRIVER, version: int = 12090) -> str:
    file, library = folder / "driver.cpp", folder / f"driver-{version}-{len(source)}.so"
    file.write_text(source)
    command = ["g++", "-O0", "-shared", "-fPIC", f"-DVERSION={version}", str(file), "-o"]
    subprocess.run([*command, str(library)], check=True, timeout=60)
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return driver(tmp_path_factory.mktemp("driver"))


class Numbered(GreenContexts):
    """Streams as the driver numbers them: torch has none here."""

    def as_torch(self, stream: int) -> int:
        return stream


DEVICE = torch.device("cuda", 1)


def test_slices_are_cut_from_what_is_left_and_given_back(library: str) -> None:
    slices = Numbered(DEVICE, library)
    found = slices.cut([10, 1, 64])
    assert [s.sms for s in found] == [16, 8, 64]
    # of a context whose description was made of the part cut off
    assert [s.stream // 100 for s in found] == [1016, 1008, 1064]
    assert len({s.stream for s in found}) == 3
    assert slices._cuda.contexts_held() == 3
    slices.close()
    assert slices._cuda.contexts_held() == 0


def test_the_twin_on_the_host_cuts_and_refuses_alike(library: str) -> None:
    for counts in ([132 - 4], [64, 64], [1] * 16, [8, 120]):
        pair = (Numbered(DEVICE, library), HostSlices(132))
        real, twin = (slices.cut(counts) for slices in pair)
        assert [s.sms for s in real] == [s.sms for s in twin]
        for slices in pair:
            slices.close()
    for counts in ([64, 64, 1], [0], [133], [132], [8, 128]):
        said = []
        for slices in (Numbered(DEVICE, library), HostSlices(132)):
            with pytest.raises(UnsupportedError) as refused:
                slices.cut(counts)
            said.append(str(refused.value))
            slices.close()
        assert said[0] == said[1]


def test_a_driver_that_cannot_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"its driver is of CUDA 12\.4; update the driver"):
        GreenContexts(DEVICE, driver(tmp_path, version=12040))
    with pytest.raises(UnsupportedError, match="no CUDA driver is here"):
        GreenContexts(DEVICE, str(tmp_path / "none.so"))
    bare = DRIVER.replace("cuGreenCtxStreamCreate", "cuGreenCtxStreamOther")
    with pytest.raises(UnsupportedError, match="no cuGreenCtxStreamCreate; update the driver"):
        Numbered(DEVICE, driver(tmp_path, bare)).cut([8])
    with pytest.raises(UnsupportedError, match=r"error 101 \(CUDA_ERROR_TEST\)"):
        Numbered(torch.device("cuda", 0), driver(tmp_path)).cut([8])
