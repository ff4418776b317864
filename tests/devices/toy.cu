#include "common.cuh"
extern "C" __global__ void __launch_bounds__(256) total(const float* x, float* out, int64 n) {
  __shared__ float part[256];
  float s = 0;
  for (int64 i = threadIdx.x; i < n; i += blockDim.x) s += x[i];
  for (int k = 16; k; k >>= 1) s += __shfl_down_sync(0xffffffffu, s, k);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) { float t = 0; for (int w = 0; w < blockDim.x / 32; w++) t += part[w]; out[blockIdx.x] = t; }
  if (__ballot_sync(0xffffffffu, threadIdx.x % 2) != 0xaaaaaaaau) out[0] = -1;
}
