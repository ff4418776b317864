// Generalised advantages of a rollout, as pearl_devices.primitives.replay.rollouts has them: `judge`
// computes values, a tile of rows a block; `trace` goes back in time, one thread an environment.
#include "blocks.cuh"
#include "nets.cuh"

// Whether the value of a row's successor is asked for: its episode goes on, but not in the rollout.
__device__ __forceinline__ bool bootstraps(const unsigned char* terminated,
                                           const unsigned char* truncated, int64 row, int64 last) {
  return !terminated[row] && (truncated[row] || row >= last);
}

// value ← of obs (rows, widths[0]); ahead ← of next_obs, where asked for. last: the first row of the
// last vector step.
extern "C" __global__ void __launch_bounds__(256, 4)
    judge(const float* obs, const float* next_obs, const unsigned char* terminated,
          const unsigned char* truncated, const float* params, float* value, float* ahead,
          const int64* widths, float* scratch, int64 rows, int64 last, int64 layers, int64 size,
          int64 widest) {
  DYNAMIC_SHARED(shared);
  const Pass pass = prepare(shared, params, size, widest, scratch);
  const int64 tiles = (rows + ROWS - 1) / ROWS;
  for (int64 tile = blockIdx.x; tile < 2 * tiles; tile += gridDim.x) {
    const bool next = tile >= tiles;
    const int64 first = (next ? tile - tiles : tile) * ROWS, row = first + threadIdx.x;
    const bool mine = threadIdx.x < ROWS && row < rows;
    const bool asked = mine && (!next || bootstraps(terminated, truncated, row, last));
    if (!block_sum(int(asked))) continue;
    const float* out = outputs_of(pass, next ? next_obs : obs, first, rows, widths, layers);
    if (asked) (next ? ahead : value)[row] = out[threadIdx.x];
  }
}

constexpr int SPAN = 32;  // vector steps and environments that a block has at a time

// From the last vector step to the first. What does not wait for the step after is computed for
// SPAN steps at once.
extern "C" __global__ void __launch_bounds__(256)
    trace(const float* reward, const unsigned char* terminated, const unsigned char* truncated,
          const float* value, const float* ahead, float* advantage, float* returns,
          const double* gamma, const double* lambda, int64 steps, int64 envs) {
  __shared__ float sums[SPAN][SPAN], shares[SPAN][SPAN];  // delta, then advantage; what follows
  const float discount = float(gamma[0]), decay = float(gamma[0] * lambda[0]);
  const int64 last = (steps - 1) * envs, n = int64(blockIdx.x) * SPAN + threadIdx.x % SPAN;
  const int column = threadIdx.x % SPAN, rounds = blockDim.x / SPAN;
  float carry = 0.0f;
  for (int64 end = steps; end > 0; end -= SPAN) {
    const int64 start = end > SPAN ? end - SPAN : 0;
    for (int64 t = start + threadIdx.x / SPAN; t < end && n < envs; t += rounds) {
      const int64 row = t * envs + n;
      float after = 0.0f;
      if (!terminated[row])
        after = bootstraps(terminated, truncated, row, last) ? ahead[row] : value[row + envs];
      sums[t - start][column] = reward[row] + discount * after - value[row];
      shares[t - start][column] = terminated[row] || truncated[row] ? 0.0f : decay;
    }
    __syncthreads();
    if (threadIdx.x < SPAN && n < envs)
      for (int64 t = end - start - 1; t >= 0; t--) {
        carry = sums[t][column] + shares[t][column] * carry;
        sums[t][column] = carry;
      }
    __syncthreads();
    for (int64 t = start + threadIdx.x / SPAN; t < end && n < envs; t += rounds) {
      const int64 row = t * envs + n;
      advantage[row] = sums[t - start][column];
      returns[row] = sums[t - start][column] + value[row];
    }  // the next steps take the places of those that the same thread has read
  }
}
