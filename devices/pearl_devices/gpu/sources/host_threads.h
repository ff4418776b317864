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
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <ucontext.h>

// Of the C++ library only overloads of C's functions: its containers take g++ longer to read than a
// whole program takes to compile, and so do Bessel functions, which math.h else brings along.
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <math.h>

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
constexpr size_t STACK_BYTES = 128 * 1024, MOST_THREADS = 1024;

struct Fibre {
  ucontext_t context;
  jmp_buf here;
  char* stack;
  State state;
  bool begun;
  uint3 thread;
};

static Fibre fibres[MOST_THREADS];
static size_t fibre_count;
static Fibre* running;
static ucontext_t scheduler_context;
static jmp_buf scheduler;
static void (*body)();  // calls `kernel`, whose type it knows, with `arguments`
static void (*kernel)();
static void** arguments;
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
  const size_t first = 32 * warp, last = first + 32 < fibre_count ? first + 32 : fibre_count;
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
  for (size_t i = 0; i < fibre_count; i++)
    if (fibres[i].state != DONE) {
      live++;
      all = all && fibres[i].state == AT_BLOCK;
    }
  if (live && all) {
    for (size_t i = 0; i < fibre_count; i++)
      if (fibres[i].state != DONE) fibres[i].state = RUNS;
    return true;
  }
  for (size_t warp = 0; 32 * warp < fibre_count; warp++) passed |= release_warp(warp);
  return passed;
}

// The threads in the order in which they run, those of a turn side by side.
struct Turn {
  size_t warp, begin, end;
};
static size_t places[MOST_THREADS];
static Turn turns[MOST_THREADS / 32];
static size_t turn_count;

// In order 0 all threads run to their next wait by turns. In others a warp goes on through its own
// shuffles and votes to the next wait for the block before another warp has its turn.
static void take_turns(unsigned order) {
  size_t shuffled[MOST_THREADS];
  for (size_t i = 0; i < fibre_count; i++) shuffled[i] = order == 1 ? fibre_count - 1 - i : i;
  uint64_t dice = order;
  for (size_t i = fibre_count; order > 1 && i > 1; i--) {
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    const size_t other = (dice >> 33) % i, held = shuffled[i - 1];
    shuffled[i - 1] = shuffled[other];
    shuffled[other] = held;
  }
  bool taken[MOST_THREADS / 32] = {};
  size_t end = turn_count = 0;
  for (size_t first = 0; first < fibre_count; first++) {
    const size_t warp = order ? shuffled[first] / 32 : 0;
    if (taken[warp]) continue;
    taken[warp] = true;
    turns[turn_count].warp = warp, turns[turn_count].begin = end;
    for (size_t i = first; i < fibre_count; i++)
      if (!order || shuffled[i] / 32 == warp) places[end++] = shuffled[i];
    turns[turn_count++].end = end;
  }
}

static bool run_block(bool by_warp) {
  for (;;) {
    bool ran = false;
    for (size_t t = 0; t < turn_count; t++) {
      do
        for (size_t i = turns[t].begin; i < turns[t].end; i++)
          if (fibres[places[i]].state == RUNS) {
            resume(fibres[places[i]]);
            ran = true;
          }
      while (by_warp && release_warp(turns[t].warp));
    }
    bool left = false;
    for (size_t i = 0; i < fibre_count; i++) left = left || fibres[i].state != DONE;
    if (!left) return true;
    if (!release() && !ran) return false;
  }
}

template <size_t... I>
struct Places {};
template <size_t N, size_t... I>
struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <size_t... I>
struct UpTo<0, I...> {
  using type = Places<I...>;
};

template <class... A, size_t... I>
void call(void (*function)(A...), Places<I...>) {
  function(*static_cast<A*>(arguments[I])...);
}
template <class... A>
void call_kernel() {
  call(reinterpret_cast<void (*)(A...)>(kernel), typename UpTo<sizeof...(A)>::type());
}

// 0, or 1 where threads wait for threads that never come.
static int run(const unsigned* grid, const unsigned* block, size_t shared_bytes, unsigned order) {
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  fibre_count = size_t(block[0]) * block[1] * block[2];
  if (fibre_count > MOST_THREADS) return 2;
  const size_t floats = shared_bytes / 4 + 4;
  float* shared = static_cast<float*>(malloc(4 * floats));
  dynamic_shared = reinterpret_cast<unsigned char*>(shared);
  take_turns(order);
  bool whole = true;
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0] && whole; x++) {
        blockIdx = {x, y, z};
        for (size_t i = 0; i < floats; i++) shared[i] = NAN;
        for (size_t i = 0; i < fibre_count; i++) {
          Fibre& f = fibres[i];
          if (!f.stack) f.stack = static_cast<char*>(malloc(STACK_BYTES));
          f.state = RUNS;
          f.begun = false;
          f.thread = {unsigned(i % block[0]), unsigned(i / block[0] % block[1]),
                      unsigned(i / (size_t(block[0]) * block[1]))};
          getcontext(&f.context);
          f.context.uc_stack.ss_sp = f.stack;
          f.context.uc_stack.ss_size = STACK_BYTES;
          f.context.uc_link = nullptr;
          makecontext(&f.context, begin, 0);
        }
        whole = run_block(order > 0);
      }
  free(shared);
  return !whole;
}

template <class... A>
int launch(void (*function)(A...), const unsigned* grid, const unsigned* block, size_t shared_bytes,
           void** args, unsigned order) {
  kernel = reinterpret_cast<void (*)()>(function);
  arguments = args;
  body = call_kernel<A...>;
  return run(grid, block, shared_bytes, order);
}

// A type that follows from the other arguments of a call.
template <class T>
struct Same {
  using type = T;
};

template <class To, class From>
To bits_as(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "the same bits");
  memcpy(&to, &from, sizeof to);
  return to;
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
  const size_t me = size_t(running - fibres), first = me - me % 32;
  slots[me / 32][me % 32] = predicate != 0;
  wait(AT_WARP);
  unsigned found = 0;
  for (size_t i = first; i < first + 32 && i < fibre_count; i++)
    if (fibres[i].state != DONE && slots[me / 32][i % 32]) found |= 1u << (i % 32);
  wait(AT_WARP);
  return found;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <class T>
T atomicAdd(T* at, typename host_threads::Same<T>::type value) {
  T old = *at;
  *at = old + value;
  return old;
}
template <class T>
T atomicMax(T* at, typename host_threads::Same<T>::type value) {
  T old = *at;
  *at = old < value ? value : old;
  return old;
}
template <class T>
T atomicMin(T* at, typename host_threads::Same<T>::type value) {
  T old = *at;
  *at = value < old ? value : old;
  return old;
}
template <class T>
T atomicExch(T* at, typename host_threads::Same<T>::type value) {
  T old = *at;
  *at = value;
  return old;
}
template <class T>
T atomicCAS(T* at, typename host_threads::Same<T>::type expected, typename host_threads::Same<T>::type value) {
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
inline int __clz(int bits) { return bits ? __builtin_clz(unsigned(bits)) : 32; }
inline unsigned __float_as_uint(float x) { return host_threads::bits_as<unsigned>(x); }
inline long long __double_as_longlong(double x) { return host_threads::bits_as<long long>(x); }
inline double cospi(double x) { return cos(M_PI * x); }
inline double sinpi(double x) { return sin(M_PI * x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
// NaN compares with nothing: as std::max and std::min, the first stays.
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
