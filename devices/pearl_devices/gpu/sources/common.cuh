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

// tanh of hidden layers, as pearl_devices.primitives.math.tanh has it.
__device__ __forceinline__ float bend(float x) {
  float a = x > 8.0f ? 8.0f : x;
  a = a < -8.0f ? -8.0f : a;
  const float y = a * a;
  const float above = a * ((((1.523096212554455e-08f * y + 2.189505966203108e-05f) * y +
                             0.003571622448310118f) * y + 0.13444518646139175f) * y +
                           0.9999999935852438f);
  const float below = (((8.522670789281188e-07f * y + 0.00034113317703925156f) * y +
                        0.02616453615983218f) * y + 0.46777845976999116f) * y + 1.0f;
  float t = above / below;
  t = t > 1.0f ? 1.0f : t;
  return t < -1.0f ? -1.0f : t;
}
