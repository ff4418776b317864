// Runs CUDA source on a CPU: every thread of a block is a fibre, the blocks run one after the other.
//
// g++ includes this file before a source. What it models: threadIdx and friends, static and dynamic
// shared memory, __syncthreads, __syncwarp, shuffles and votes within a warp, atomics. A fibre runs
// until it waits, so threads never interleave between two waits; running them in several orders
// (`order` of a launch: 0 forwards, 1 backwards, else shuffled by that seed) shows a missing wait;
// in orders 1 and above warps run ahead of each other as far as the block's barriers let them.
// Dynamic shared memory begins as NaN in every block.
#pragma once
#include <setjmp.h>
#include <strings.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define DYNAMIC_SHARED(name) unsigned char* name = host_threads::dynamic_shared

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace host_threads {

enum State { RUNS, AT_BLOCK, AT_WARP, DONE };
constexpr size_t STACK_BYTES = 128 * 1024;

struct Fibre {
  ucontext_t context;
  jmp_buf here;
  std::unique_ptr<char[]> stack;
  State state;
  bool begun;
  uint3 thread;
};

static std::vector<Fibre> fibres;
static Fibre* running;
static ucontext_t scheduler_context;
static jmp_buf scheduler;
static std::function<void()> body;
static unsigned char* dynamic_shared;
static uint64_t slots[32][32];  // of each warp, what its lanes hand each other

// Address sanitizer follows swapcontext, not jumps between stacks; jumps cost no system call.
inline void to_scheduler(Fibre& f) {
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&f.context, &scheduler_context);
#else
  if (!_setjmp(f.here)) _longjmp(scheduler, 1);
#endif
}

inline void wait(State state) {
  running->state = state;
  to_scheduler(*running);
}

static void begin() {
  body();
  running->state = DONE;
  to_scheduler(*running);
}

inline void resume(Fibre& f) {
  running = &f;
  threadIdx = f.thread;
  f.state = RUNS;
#ifdef __SANITIZE_ADDRESS__
  swapcontext(&scheduler_context, &f.context);
#else
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.here, 1);
  f.begun = true;
  setcontext(&f.context);
#endif
}

inline unsigned warp_of(const Fibre& f) {
  return (f.thread.x + blockDim.x * (f.thread.y + blockDim.y * f.thread.z)) / 32;
}

// Lets the threads of a warp pass that have all arrived; whether they have.
inline bool release_warp(size_t warp) {
  const size_t first = 32 * warp, last = std::min(first + 32, fibres.size());
  size_t waiting = 0, there = 0;
  for (size_t i = first; i < last; i++) {
    there += fibres[i].state != DONE;
    waiting += fibres[i].state == AT_WARP;
  }
  if (!there || waiting < there) return false;
  for (size_t i = first; i < last; i++)
    if (fibres[i].state != DONE) fibres[i].state = RUNS;
  return true;
}

// Lets those pass that have all arrived; whether any has.
inline bool release() {
  bool passed = false, all = true;
  size_t live = 0;
  for (auto& f : fibres)
    if (f.state != DONE) {
      live++;
      all = all && f.state == AT_BLOCK;
    }
  if (live && all) {
    for (auto& f : fibres)
      if (f.state != DONE) f.state = RUNS;
    return true;
  }
  for (size_t warp = 0; 32 * warp < fibres.size(); warp++) passed |= release_warp(warp);
  return passed;
}

// In order 0 all threads run to their next wait by turns. In others a warp goes on through its own
// shuffles and votes to the next wait for the block before another warp has its turn.
inline bool run_block(const std::vector<size_t>& places, bool by_warp) {
  std::vector<std::vector<size_t>> turns(by_warp ? (places.size() + 31) / 32 : 1);
  std::vector<size_t> order;
  for (size_t i : places) {
    const size_t turn = by_warp ? i / 32 : 0;
    if (turns[turn].empty()) order.push_back(turn);
    turns[turn].push_back(i);
  }
  for (;;) {
    bool ran = false;
    for (size_t turn : order) {
      do
        for (size_t i : turns[turn])
          if (fibres[i].state == RUNS) {
            resume(fibres[i]);
            ran = true;
          }
      while (by_warp && release_warp(turn));
    }
    bool left = false;
    for (auto& f : fibres) left = left || f.state != DONE;
    if (!left) return true;
    if (!release() && !ran) return false;
  }
}

template <class... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<A>*>(args[I])...);
}

// 0, or 1 where threads wait for threads that never come.
template <class... A>
int launch(void (*kernel)(A...), const unsigned* grid, const unsigned* block, size_t shared_bytes,
           void** args, unsigned order) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  const size_t count = size_t(block[0]) * block[1] * block[2];
  if (count > 1024) return 2;
  body = [=] { call(kernel, args, std::index_sequence_for<A...>{}); };
  std::vector<float> shared(shared_bytes / 4 + 4);
  dynamic_shared = reinterpret_cast<unsigned char*>(shared.data());
  if (fibres.size() != count) {
    fibres.clear();
    fibres.resize(count);
    for (auto& f : fibres) f.stack.reset(new char[STACK_BYTES]);
  }
  std::vector<size_t> places(count);
  for (size_t i = 0; i < count; i++) places[i] = order == 1 ? count - 1 - i : i;
  uint64_t dice = order;
  for (size_t i = count; order > 1 && i > 1; i--) {
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(places[i - 1], places[(dice >> 33) % i]);
  }
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        std::fill(shared.begin(), shared.end(), NAN);
        for (size_t i = 0; i < count; i++) {
          Fibre& f = fibres[i];
          f.state = RUNS;
          f.begun = false;
          f.thread = {unsigned(i % block[0]), unsigned(i / block[0] % block[1]),
                      unsigned(i / (size_t(block[0]) * block[1]))};
          getcontext(&f.context);
          f.context.uc_stack.ss_sp = f.stack.get();
          f.context.uc_stack.ss_size = STACK_BYTES;
          f.context.uc_link = nullptr;
          makecontext(&f.context, begin, 0);
        }
        if (!run_block(places, order > 0)) return 1;
      }
  return 0;
}

template <class T>
T exchange(T value, int from) {
  const unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  uint64_t* row = slots[linear / 32];
  memcpy(&row[linear % 32], &value, sizeof(T));
  wait(AT_WARP);
  T found = value;
  if (from >= 0 && from < 32) memcpy(&found, &row[from], sizeof(T));
  wait(AT_WARP);
  return found;
}

inline int lane() {
  return int((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}

}  // namespace host_threads

inline void __syncthreads() { host_threads::wait(host_threads::AT_BLOCK); }
inline void __syncwarp(unsigned = 0xffffffffu) { host_threads::wait(host_threads::AT_WARP); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return host_threads::exchange(value, from & 31);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return host_threads::exchange(value, host_threads::lane() ^ mask);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
  return host_threads::exchange(value, host_threads::lane() + int(by));
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  return host_threads::exchange(value, host_threads::lane() - int(by));
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  using namespace host_threads;
  const size_t me = size_t(running - fibres.data()), first = me - me % 32;
  slots[me / 32][me % 32] = predicate != 0;
  wait(AT_WARP);
  unsigned found = 0;
  for (size_t i = first; i < std::min(first + 32, fibres.size()); i++)
    if (fibres[i].state != DONE && slots[me / 32][i % 32]) found |= 1u << (i % 32);
  wait(AT_WARP);
  return found;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  T old = *at;
  *at = old + value;
  return old;
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  T old = *at;
  *at = std::max(old, value);
  return old;
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  T old = *at;
  *at = std::min(old, value);
  return old;
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, value);
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  T old = *at;
  if (old == expected) *at = value;
  return old;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T>
T __ldg(const T* at) {
  return *at;
}
inline int __ffs(int bits) { return ffs(bits); }
inline int __clz(int bits) { return std::countl_zero(unsigned(bits)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double cospi(double x) { return std::cos(M_PI * x); }
inline double sinpi(double x) { return std::sin(M_PI * x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
using std::max;
using std::min;
