// What the rings of transitions and of frames share, as pearl_devices.primitives.replay.ring has it.
#pragma once
#include "sum_tree.cuh"

const unsigned char CUT = 1;   // bits of truncated: the episode was cut off with this row
const unsigned char ANEW = 2;  // the environment was started anew just before it

// x modulo m of -m < x < 2·m, without a division.
__device__ __forceinline__ int64 wrap(int64 x, int64 m) {
  return x < 0 ? x + m : x >= m ? x - m : x;
}

// Whether this block is the last of its launch to come here; the others have read and written. All
// threads call it. `ticket` is 0 before and after.
__device__ bool is_last_block(unsigned* ticket) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(ticket, 1u) == gridDim.x - 1;
    if (last) *ticket = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// Counts the n rows at the cursor in, with the largest priority so far. One block.
__device__ void take_in(int64 n, int64 capacity, int64* cursor, const SumTree& tree,
                        double* priority) {
  const int64 row = cursor[0];
  if (tree.depth > 0) {
    const float top = priority[2] <= 0.0 ? 1.0f : float(priority[2]);
    float* leaves = tree.nodes + tree.first_of(tree.depth - 1);
    for (int64 e = threadIdx.x; e < n; e += blockDim.x) leaves[row + e] = top;
    raise_range(tree, tree.depth - 2, row, row + n - 1);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    if (tree.depth > 0 && priority[2] <= 0.0) priority[2] = 1.0;
    cursor[0] = wrap(row + n, capacity);
    cursor[1] = min(cursor[1] + n, capacity);
  }
}

// What is stored of every row, whatever its observations, and how rows follow one another.
struct Rows {
  const float* reward;
  const unsigned char *terminated, *truncated;
  int64 newest;  // the row that was written last, or -1
  int64 capacity, envs, n_step;
  double gamma;
};

// A row's n-step return, its discount, and the row that is bootstrapped from.
struct Return {
  int64 row;
  double total, discount;
};

__device__ Return follow_return(const Rows& rows, int64 row) {
  double total = double(rows.reward[row]), factor = rows.gamma;
  for (int64 m = 1; m < rows.n_step; m++) {
    if (rows.terminated[row] != 0 || rows.truncated[row] != 0) break;
    const int64 after = wrap(row + rows.envs, rows.capacity);
    const bool last = wrap(rows.newest - row, rows.capacity) < rows.envs;  // of its environment
    if (last || rows.truncated[after] & ANEW) break;
    row = after;
    total = __dadd_rn(total, __dmul_rn(factor, double(rows.reward[row])));
    factor = __dmul_rn(factor, rows.gamma);
  }
  return {row, total, rows.terminated[row] == 0 ? factor : 0.0};
}

// A batch that is drawn: firing `rng[1]` + s of the stream draws batch s.
struct Draw {
  uint64* rng;
  const int64* cursor;
  const double* beta;
  int64* index;
  float* weight;    // prioritised: at first the priority of the row
  unsigned* least;  // of each batch, the bits of its least priority
  int64 steps, batch, prioritised;
};

// The row of draw `item`, whose weight thread `leader` of each item writes. The tree's draws are
// there already, uniform ones are made here.
__device__ __forceinline__ int64 drawn_row(const Draw& draw, int64 item, bool leader) {
  const unsigned s = unsigned(item) / unsigned(draw.batch), b = unsigned(item) % unsigned(draw.batch);
  const uint64 firing = draw.rng[1] + s;
  if (!draw.prioritised) {
    const double filled = double(max(draw.cursor[1], int64(1)));
    const int64 row = int64(uniform(stream(draw.rng[0], firing), b) * filled);
    if (leader) {
      draw.index[item] = row;
      draw.weight[item] = 1.0f;
    }
    return row;
  }
  if (leader) {
    const double* beta = draw.beta;
    const double share = beta[2] > 0.0 ? min(double(firing) / beta[2], 1.0) : 1.0;
    const float exponent = float(__dadd_rn(beta[0], __dmul_rn(beta[1] - beta[0], share)));
    const float least = reinterpret_cast<const float*>(draw.least)[s];
    const float own = draw.weight[item];
    draw.weight[item] = own > least ? powf(least / own, exponent) : 1.0f;
  }
  return draw.index[item];
}

const unsigned INFINITE = 0x7f800000u;  // the bits of infinity

// After all batches: the next firing begins anew. One block.
__device__ __forceinline__ void end_draw(const Draw& draw) {
  for (int64 s = threadIdx.x; s < draw.steps; s += blockDim.x) draw.least[s] = INFINITE;
  if (threadIdx.x == 0) draw.rng[1] += uint64(draw.steps);
}
