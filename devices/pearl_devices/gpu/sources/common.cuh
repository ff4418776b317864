// What every source uses: whole numbers by width, and counter-based random numbers equal to those
// of pearl_devices.primitives.math.rng, bit for bit.
#pragma once

#ifdef __CUDACC_RTC__
typedef unsigned long long uint64;
typedef long long int64;
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
typedef uint64_t uint64;
typedef int64_t int64;
#endif

__device__ __forceinline__ uint64 mix(uint64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The base of the numbers that one firing draws.
__device__ __forceinline__ uint64 stream(uint64 key, uint64 firing) {
  return mix(key + mix((firing + 1) * 0x9E3779B97F4A7C15ull));
}

// 64 random bits.
__device__ __forceinline__ uint64 bits(uint64 base, uint64 index) {
  return mix(base + (index + 1) * 0x9E3779B97F4A7C15ull);
}

// A double in [0, 1) with 53 random bits.
__device__ __forceinline__ double uniform(uint64 base, uint64 index) {
  return double(bits(base, index) >> 11) * 0x1p-53;
}

// Python's: where they do not compare, the first stays.
template <class T>
__device__ __forceinline__ T larger(T a, T b) {
  return b > a ? b : a;
}
template <class T>
__device__ __forceinline__ T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
__device__ __forceinline__ T within(T x, T low, T high) {
  return smaller(larger(x, low), high);
}
