// The K-ary sum tree over priorities, as pearl_devices.primitives.replay.sum_tree has it: the same
// sums in the same order, so that CPU and GPU make and read equal trees, bit for bit.
//
// A node with a fanout of 8 or 16 has as many lanes of a warp as children: each lane loads one
// child, and shuffles add what vectors add on the CPU. Of other fanouts one lane goes child by child.
#pragma once
#include "common.cuh"

// nodes: level by level, root first. levels: their widths, `depth` of them; 0: there is no tree.
struct SumTree {
  float* nodes;
  const int64* levels;
  int64 depth, fanout;

  __device__ __forceinline__ int64 first_of(int64 level) const {
    int64 start = 0;
    for (int64 above = 0; above < level; above++) start += levels[above];
    return start;
  }
};

const unsigned WARP = 0xffffffffu;
const unsigned CLAIMED = 0x80000000u;  // the sign: no priority and no sum has it

__device__ __forceinline__ int lanes_of(int64 fanout) {
  return fanout == 16 || fanout == 8 ? int(fanout) : 1;
}

// Sum of the children from `at`, in the first of the LANES lanes that share the node.
template <int LANES>
__device__ __forceinline__ float sum_children(const float* at, int64 fanout) {
  if constexpr (LANES == 1) {
    float total = 0.0f;
    for (int64 j = 0; j < fanout; j++) total += at[j];
    return total;
  } else {
    float sum = at[threadIdx.x % LANES];
#pragma unroll
    for (int width = LANES / 2; width > 0; width /= 2) sum += __shfl_down_sync(WARP, sum, width);
    return sum;
  }
}

// Recomputes the nodes above the leaves first … last that lie in the levels from `level` up. One
// block; it waits before each level.
template <int LANES>
__device__ void raise_range(const SumTree& tree, int64 level, int64 first, int64 last) {
  const int64 groups = blockDim.x / LANES, group = threadIdx.x / LANES;
  for (int64 l = tree.depth - 2; l > level; l--) first /= tree.fanout, last /= tree.fanout;
  int64 above = tree.first_of(level);
  for (; level >= 0; level--) {
    const int64 below = above + tree.levels[level];
    first /= tree.fanout, last /= tree.fanout;
    __syncthreads();
    for (int64 begin = first; begin <= last; begin += groups) {
      const int64 node = min(begin + group, last);
      const float sum = sum_children<LANES>(tree.nodes + below + node * tree.fanout, tree.fanout);
      if (begin + group <= last && threadIdx.x % LANES == 0) tree.nodes[above + node] = sum;
    }
    if (level > 0) above -= tree.levels[level - 1];
  }
}

__device__ void raise_range(const SumTree& tree, int64 level, int64 first, int64 last) {
  if (tree.fanout == 16)
    raise_range<16>(tree, level, first, last);
  else if (tree.fanout == 8)
    raise_range<8>(tree, level, first, last);
  else
    raise_range<1>(tree, level, first, last);
}

// The first child above 0 whose running sum is above `prefix`, else the last one above 0, else
// child 0. The sum of the children before it is taken off `prefix`.
template <int LANES>
__device__ __forceinline__ int64 choose_child(const float* at, int64 fanout, double& prefix) {
  if constexpr (LANES == 1) {
    int64 chosen = 0;
    double rest = prefix, sums = 0.0;
    for (int64 j = 0; j < fanout; j++) {
      const double share = double(at[j]);
      if (share > 0.0) {
        chosen = j;
        rest = prefix - sums;
        sums += share;
        if (prefix < sums) break;
      }
    }
    prefix = rest;
    return chosen;
  } else {
    const int lane = threadIdx.x % LANES, first = threadIdx.x % 32 - lane;
    const float share = at[lane], wanted = float(prefix);
    float sum = share;
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) {
      const float before = __shfl_up_sync(WARP, sum, step);
      if (lane >= step) sum += before;
    }
    const unsigned mine = (1u << LANES) - 1;
    const unsigned above = __ballot_sync(WARP, share > 0.0f) >> first & mine;
    const unsigned ahead = __ballot_sync(WARP, share > 0.0f && wanted < sum) >> first & mine;
    const int chosen = ahead ? __ffs(ahead) - 1 : above ? 31 - __clz(above) : 0;
    const float before = __shfl_sync(WARP, sum, first + max(chosen - 1, 0));
    if (chosen > 0) prefix -= double(before);
    return chosen;
  }
}

// The leaf in whose share of the total `prefix` falls. All lanes of the warp call it, LANES
// neighbours with the same prefix.
template <int LANES>
__device__ __forceinline__ int64 find_leaf(const SumTree& tree, double prefix) {
  int64 node = 0, start = 0;
  for (int64 level = 1; level < tree.depth; level++) {
    start += tree.levels[level - 1];
    const float* children = tree.nodes + start + node * tree.fanout;
    node = node * tree.fanout + choose_child<LANES>(children, tree.fanout, prefix);
  }
  return node;
}

// Draws by the uniforms of `base` from share b of `rows` equal shares of the total. No product may
// fuse with the sum that takes it.
template <int LANES>
__device__ __forceinline__ int64 draw_leaf(const SumTree& tree, uint64 base, int64 b, int64 rows) {
  const double share = __dadd_rn(double(b), uniform(base, uint64(b))) / double(rows);
  return find_leaf<LANES>(tree, __dmul_rn(share, double(tree.nodes[0])));
}
