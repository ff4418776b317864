// Forward passes of dense networks, as pearl_devices.primitives.math.nets computes them: hidden
// layers of ReLU or of its tanh, a linear output; sums in rising order, from the bias.
//
// A block takes ROWS rows at once. Their activations lie column by column: row r of column c at
// c · STRIDE + r, so that a thread finds PER rows of one column side by side. Each thread has one
// column of PER rows at a time and reads each weight of it once; so a row's numbers do not depend on
// the rows beside it.
//
// ROWS, PER: see above; both divided by 4, PER divides ROWS. CURVED: 1 for hidden layers of tanh.
// HELD: 1 where the weights lie in shared memory. WIDE: 1 where the activations do not, for they are
// too many.
#pragma once
#include "common.cuh"

constexpr int STRIDE = ROWS + 4;  // columns that threads write side by side lie in several banks

struct alignas(16) Four {
  float at[4];
};

// out ← a layer's outputs for the rows below. weights: (inputs, outputs), then the biases.
__device__ __forceinline__ void run_layer(const float* weights, const float* below, float* out,
                                          int inputs, int outputs, bool hidden) {
  const float* bias = weights + int64(inputs) * outputs;
  for (int item = threadIdx.x; item < outputs * (ROWS / PER); item += blockDim.x) {
    const int c = item % outputs, first = item / outputs * PER;
    float sums[PER];
#pragma unroll
    for (int j = 0; j < PER; j++) sums[j] = bias[c];
#pragma unroll 4
    for (int k = 0; k < inputs; k++) {
      const float weight = weights[int64(k) * outputs + c];
      const Four* rows = reinterpret_cast<const Four*>(below + int64(k) * STRIDE + first);
#pragma unroll
      for (int f = 0; f < PER / 4; f++) {
        const Four a = rows[f];
#pragma unroll
        for (int j = 0; j < 4; j++) sums[4 * f + j] += weight * a.at[j];
      }
    }
    Four* put = reinterpret_cast<Four*>(out + int64(c) * STRIDE + first);
#pragma unroll
    for (int f = 0; f < PER / 4; f++) {
      Four a;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float sum = sums[4 * f + j];
        a.at[j] = !hidden ? sum : CURVED ? bend(sum) : sum < 0.0f ? 0.0f : sum;
      }
      put[f] = a;
    }
  }
}

// The memory of a pass: weights where they are held, and two blocks of activations, `widest` columns
// each.
struct Pass {
  const float* params;
  float *one, *two;
};

// Copies the weights where they are held. size: weights and biases. scratch: of WIDE, for each block
// of the grid two blocks of activations.
__device__ __forceinline__ Pass prepare(unsigned char* shared, const float* params, int64 size,
                                        int64 widest, float* scratch) {
  float* held = reinterpret_cast<float*>(shared);
  float* room = WIDE ? scratch + int64(blockIdx.x) * 2 * widest * STRIDE : held;
  if (HELD) {
    for (int64 j = threadIdx.x; j < size; j += blockDim.x) held[j] = params[j];
    if (!WIDE) room = held + (size + 3) / 4 * 4;
    params = held;
  }
  return {params, room, room + widest * STRIDE};
}

// The outputs of rows first … first + ROWS - 1 of obs (rows, widths[0]); those beyond `rows` are the
// outputs for zeros. All threads of the block call it, and may read the result when it returns.
__device__ __forceinline__ const float* outputs_of(const Pass& pass, const float* obs, int64 first,
                                                   int64 rows, const int64* widths, int64 layers) {
  float *below = pass.one, *out = pass.two;
  const int inputs = int(widths[0]);
  __syncthreads();  // the result of an earlier call has been read
  for (int j = threadIdx.x; j < ROWS * inputs; j += blockDim.x) {
    const int r = j / inputs, c = j % inputs;
    below[int64(c) * STRIDE + r] = first + r < rows ? obs[(first + r) * inputs + c] : 0.0f;
  }
  __syncthreads();
  const float* weights = pass.params;
  for (int64 layer = 0; layer < layers; layer++) {
    const int in = int(widths[layer]), o = int(widths[layer + 1]);
    run_layer(weights, below, out, in, o, layer + 1 < layers);
    __syncthreads();
    weights += int64(in) * o + o;
    float* done = below;
    below = out;
    out = done;
  }
  return below;
}
