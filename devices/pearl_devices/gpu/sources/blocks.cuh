// Sums and ranks over the threads of a block, which all call them. Whole warps; the order of the
// additions is fixed, so that the same block gives the same sum each time.
#pragma once
#include "common.cuh"

// The sum of all threads' values, to each of them.
template <class T>
__device__ T block_sum(T value) {
  __shared__ T parts[32];
  for (int by = 16; by; by >>= 1) value += __shfl_xor_sync(0xffffffffu, value, by);
  __syncthreads();  // an earlier sum has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = parts[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; warp++) sum += parts[warp];
  return sum;
}

// Of how many threads before this one the predicate holds.
__device__ __forceinline__ int rank_in_block(bool predicate) {
  __shared__ int parts[32];
  const unsigned lane = threadIdx.x % 32, votes = __ballot_sync(0xffffffffu, predicate);
  __syncthreads();
  if (lane == 0) parts[threadIdx.x / 32] = __popc(votes);
  __syncthreads();
  int rank = __popc(votes & ((1u << lane) - 1u));
  for (unsigned warp = 0; warp < threadIdx.x / 32; warp++) rank += parts[warp];
  return rank;
}

// True in one thread of the grid, when all threads of all blocks have called it. ended: 0 before, and
// again after.
__device__ __forceinline__ bool last_block(int* ended) {
  __syncthreads();
  if (threadIdx.x) return false;
  __threadfence();
  if (atomicAdd(ended, 1) != int(gridDim.x) - 1) return false;
  *ended = 0;
  return true;
}
