// Copies: of a vector step into the rollout, and of parameters to the side that acts.
//
// CONTINUOUS: 1 where actions are float32, else whole numbers.
#include "blocks.cuh"

#if CONTINUOUS
typedef float Action;
#else
typedef int64 Action;
#endif

template <class T>
__device__ __forceinline__ void put(const T* from, T* to, int64 size) {
  for (int64 j = int64(blockIdx.x) * blockDim.x + threadIdx.x; j < size;
       j += int64(gridDim.x) * blockDim.x)
    to[j] = from[j];
}

// Vector step at[0] of the rollout ← step. After the last comes the first. ended: see last_block.
extern "C" __global__ void __launch_bounds__(256)
    insert(const float* obs, const Action* action, const float* reward, const float* next_obs,
           const unsigned char* terminated, const unsigned char* truncated, const float* log_prob,
           float* r_obs, Action* r_action, float* r_reward, float* r_next_obs,
           unsigned char* r_terminated, unsigned char* r_truncated, float* r_log_prob, int64* at,
           int* ended, int64 steps, int64 envs, int64 inputs, int64 components) {
  const int64 t = at[0], row = t * envs;
  put(obs, r_obs + row * inputs, envs * inputs);
  put(next_obs, r_next_obs + row * inputs, envs * inputs);
  put(action, r_action + row * components, envs * components);
  put(reward, r_reward + row, envs);
  put(terminated, r_terminated + row, envs);
  put(truncated, r_truncated + row, envs);
  put(log_prob, r_log_prob + row, envs);
  if (last_block(ended)) at[0] = (t + 1) % steps;
}

// target ← source, and another pair likewise.
extern "C" __global__ void __launch_bounds__(256)
    copy(const float* source, float* target, int64 size, const float* other_source,
         float* other_target, int64 other_size) {
  put(source, target, size);
  put(other_source, other_target, other_size);
}
