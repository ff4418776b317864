// Inference: a policy's outputs for all environments, and the choice of an action for each, with the
// random numbers of pearl_devices.primitives.updates. A block takes ROWS environments at once; one
// thread chooses for one environment. The block that ends last counts the firing.
//
// CHOICE: which, see below. ACT: components of an action, 0 of a discrete one. CHOICES: discrete
// actions. DUELLING: 1 where an output precedes those of the actions. Others: nets.cuh.
#include "blocks.cuh"
#include "nets.cuh"

#define EPSILON_GREEDY 0
#define NOISE_AROUND 1
#define SQUASHED_GAUSSIAN 2
#define SOFTMAX 3
#define GAUSSIAN 4

#if CHOICE == EPSILON_GREEDY || CHOICE == SOFTMAX
typedef int64 Action;
#else
typedef float Action;
#endif

constexpr double TWO_PI = 2.0 * 3.141592653589793;
constexpr float HALF_LOG_2_PI = 0.9189385332046727f;

// z of one row: its outputs.
struct Row {
  const float* z;
  __device__ __forceinline__ float operator[](int c) const { return z[int64(c) * STRIDE]; }
};

// Everything that a choice reads and writes. n: the environment; at_random: the share of random
// actions; noise: see `explore` of pearl_devices.kernels.arrays.
struct Choice {
  uint64 base;
  double at_random, noise;
  const float *low, *high, *deviations;
  Action* action;
  float *sample, *log_prob;
  int64 n;
};

// The share of random actions after `steps` env steps.
__device__ __forceinline__ double share_at_random(const double* explore, double steps) {
  if (steps < explore[3]) return 1.0;
  if (CHOICE != EPSILON_GREEDY) return 0.0;
  const double share = explore[2] > 0.0 ? smaller(steps / explore[2], 1.0) : 1.0;
  return explore[0] + (explore[1] - explore[0]) * share;
}

// Standard normal number `index`, the first of each pair of uniforms.
__device__ __forceinline__ double normal(uint64 base, uint64 index) {
  const double radius = sqrt(-2.0 * log(1.0 - uniform(base, 2 * index)));
  return radius * cos(TWO_PI * uniform(base, 2 * index + 1));
}

// Standard normal number `index`, both of each pair.
__device__ __forceinline__ float normal_of_pair(uint64 base, uint64 index) {
  const uint64 start = index - index % 2;
  const double radius = sqrt(-2.0 * log(1.0 - uniform(base, start)));
  const double angle = TWO_PI * uniform(base, start + 1);
  return float(radius * (index % 2 ? sin(angle) : cos(angle)));
}

#if CHOICE == EPSILON_GREEDY
__device__ __forceinline__ void choose(const Choice& by, Row z) {
  if (uniform(by.base, 2 * by.n) < by.at_random) {
    by.action[by.n] = int64(uniform(by.base, 2 * by.n + 1) * CHOICES);
    return;
  }
  int best = 0;
  for (int j = 1; j < CHOICES; j++)
    if (z[DUELLING + j] > z[DUELLING + best]) best = j;
  by.action[by.n] = best;
}

#elif CHOICE == NOISE_AROUND || CHOICE == SQUASHED_GAUSSIAN
__device__ __forceinline__ void choose(const Choice& by, Row z) {
  for (int c = 0; c < ACT; c++) {
    const float low = by.low[c], high = by.high[c], half = 0.5f * (high - low);
    const int64 at = by.n * ACT + c;
    const double span = double(high) - double(low);
    if (by.at_random > 0.0) {
      by.action[at] = within(float(low + span * uniform(by.base, at)), low, high);
    } else if (CHOICE == NOISE_AROUND) {
      const float mean = low + half + half * tanhf(z[c]);
      const double value = mean + by.noise * (0.5 * span) * normal(by.base, at);
      by.action[at] = within(float(value), low, high);
    } else {
      const float log_std = within(z[ACT + c], -20.0f, 2.0f);
      const float u = z[c] + expf(log_std) * normal_of_pair(by.base, at);
      by.action[at] = low + half + half * tanhf(u);
    }
  }
}

#elif CHOICE == SOFTMAX
__device__ __forceinline__ void choose(const Choice& by, Row z) {
  float most = z[0], total = 0.0f;
  for (int j = 1; j < CHOICES; j++) most = larger(most, z[j]);
  for (int j = 0; j < CHOICES; j++) total += expf(z[j] - most);
  const float norm = most + logf(total);
  float left = float(uniform(by.base, by.n));
  int chosen = CHOICES - 1;
  for (int j = 0; j < CHOICES - 1; j++) {
    left -= expf(z[j] - norm);
    if (left < 0.0f) {
      chosen = j;
      break;
    }
  }
  by.action[by.n] = chosen;
  by.log_prob[by.n] = z[chosen] - norm;
}

#else
__device__ __forceinline__ void choose(const Choice& by, Row z) {
  float total = 0.0f;
  for (int c = 0; c < ACT; c++) {
    const float low = by.low[c], high = by.high[c], half = 0.5f * (high - low);
    const float mean = z[c], log_std = by.deviations[c];
    const int64 at = by.n * ACT + c;
    const float drawn = mean + expf(log_std) * normal_of_pair(by.base, at);
    by.sample[at] = drawn;
    const bool scaled = half < 3.0e38f;  // a component without both bounds is not
    by.action[at] =
        within((scaled ? low + half : 0.0f) + (scaled ? half : 1.0f) * drawn, low, high);
    const float away = (drawn - mean) * expf(-log_std);
    total -= 0.5f * away * away + log_std + HALF_LOG_2_PI;
  }
  by.log_prob[by.n] = total;
}
#endif

// params: weights and biases, then the deviations' logarithms of a Gaussian. ended: blocks so far.
extern "C" __global__ void __launch_bounds__(256, 4)
    act(uint64* rng, const float* obs, const float* params, const double* explore,
        const float* low, const float* high, Action* action, float* sample, float* log_prob,
        const int64* widths, float* scratch, int* ended, int64 envs, int64 layers, int64 size,
        int64 widest) {
  DYNAMIC_SHARED(shared);
  const Pass pass = prepare(shared, params, size, widest, scratch);
  Choice by = {stream(rng[0], rng[1]), 0.0, 0.0, low, high, params + size, action, sample, log_prob,
               0};
  if (CHOICE < SOFTMAX) {
    by.at_random = share_at_random(explore, double(rng[1]) * double(envs));
    by.noise = explore[0];
  }
  for (int64 first = int64(blockIdx.x) * ROWS; first < envs; first += int64(gridDim.x) * ROWS) {
    const float* out = outputs_of(pass, obs, first, envs, widths, layers);
    for (int r = threadIdx.x; r < ROWS; r += blockDim.x) {
      by.n = first + r;
      if (by.n < envs) choose(by, {out + r});
    }
  }
  if (last_block(ended)) rng[1] += 1;
}
