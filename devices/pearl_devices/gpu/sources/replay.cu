// The replay: a ring of transitions. Rows are copied as words of 32 bits, whatever they are.
#include "replay.cuh"

__device__ __forceinline__ void copy(unsigned* to, const unsigned* from, int64 words) {
  const int64 step = int64(gridDim.x) * blockDim.x;
  for (int64 i = int64(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step) to[i] = from[i];
}

// Stores the n transitions of one step at the cursor. Any number of blocks; the last counts them in.
extern "C" __global__ void __launch_bounds__(256)
    replay_insert(const unsigned* s_obs, const unsigned* s_action, const unsigned* s_reward,
                  const unsigned* s_next, const unsigned char* s_terminated,
                  const unsigned char* s_truncated, unsigned* obs, unsigned* action,
                  unsigned* reward, unsigned* next, unsigned char* terminated,
                  unsigned char* truncated, int64* cursor, float* nodes, const int64* levels,
                  int64 depth, int64 fanout, double* priority, unsigned* ticket, int64 n,
                  int64 capacity, int64 obs_words, int64 action_words) {
  const int64 row = cursor[0];
  copy(obs + row * obs_words, s_obs, n * obs_words);
  copy(next + row * obs_words, s_next, n * obs_words);
  copy(action + row * action_words, s_action, n * action_words);
  copy(reward + row, s_reward, n);
  const int64 step = int64(gridDim.x) * blockDim.x;
  for (int64 e = int64(blockIdx.x) * blockDim.x + threadIdx.x; e < n; e += step) {
    terminated[row + e] = s_terminated[e];
    truncated[row + e] = s_truncated[e];
  }
  if (is_last_block(ticket)) take_in(n, capacity, cursor, {nodes, levels, depth, fanout}, priority);
}

template <int LANES>
__device__ void draw_rows(const SumTree& tree, const uint64* rng, int64* index, float* weight,
                          unsigned* least, int64 steps, int64 batch) {
  const float* leaves = tree.nodes + tree.first_of(tree.depth - 1);
  const int64 all = steps * batch;
  const int64 item = (int64(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  const unsigned mine = unsigned(min(item, all - 1)), s = mine / unsigned(batch);
  const uint64 base = stream(rng[0], rng[1] + s);
  const int64 row = draw_leaf<LANES>(tree, base, mine % unsigned(batch), batch);
  if (item < all && threadIdx.x % LANES == 0) {
    const float own = leaves[row];
    index[item] = row;
    weight[item] = own;
    atomicMin(least + s, __float_as_uint(own));  // the bits of what is not negative order as it does
  }
}

// Draws all batches from the tree: rows, their priorities, and the least of each batch. As many
// lanes a row as a node has.
extern "C" __global__ void __launch_bounds__(256)
    replay_draw(float* nodes, const int64* levels, int64 depth, int64 fanout, const uint64* rng,
                int64* index, float* weight, unsigned* least, int64 steps, int64 batch) {
  const SumTree tree = {nodes, levels, depth, fanout};
  if (fanout == 16)
    draw_rows<16>(tree, rng, index, weight, least, steps, batch);
  else if (fanout == 8)
    draw_rows<8>(tree, rng, index, weight, least, steps, batch);
  else
    draw_rows<1>(tree, rng, index, weight, least, steps, batch);
}

// Fills the batches: a warp a row.
extern "C" __global__ void __launch_bounds__(256)
    replay_gather(uint64* rng, const unsigned* obs, const unsigned* action, const float* reward,
                  const unsigned* next, const unsigned char* terminated,
                  const unsigned char* truncated, const int64* cursor, const double* beta,
                  const double* discount, int64* index, float* weight, unsigned* least,
                  unsigned* b_obs, unsigned* b_action, float* b_reward, unsigned* b_next,
                  float* b_discount, unsigned* ticket, int64 steps, int64 batch,
                  int64 prioritised, int64 envs, int64 n_step, int64 capacity, int64 obs_words,
                  int64 action_words) {
  const Draw draw = {rng, cursor, beta, index, weight, least, steps, batch, prioritised};
  const Rows rows = {reward, terminated, truncated, cursor[0] - 1, capacity, envs, n_step,
                     discount[0]};
  const int64 item = (int64(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (item < steps * batch) {
    const int64 row = drawn_row(draw, item, lane == 0);
    const Return found = follow_return(rows, row);
    for (int64 c = lane; c < obs_words; c += 32) {
      b_obs[item * obs_words + c] = obs[row * obs_words + c];
      b_next[item * obs_words + c] = next[found.row * obs_words + c];
    }
    for (int64 c = lane; c < action_words; c += 32)
      b_action[item * action_words + c] = action[row * action_words + c];
    if (lane == 0) {
      b_reward[item] = float(found.total);
      b_discount[item] = float(found.discount);
    }
  }
  if (is_last_block(ticket)) end_draw(draw);
}

// Sample i claims a word that it and others are about to write: the last sample has it.
__device__ __forceinline__ void claim(float* at, int64 i) {
  atomicMax(reinterpret_cast<unsigned*>(at), CLAIMED | unsigned(i));
}

__device__ __forceinline__ bool has_claimed(const float* at, int64 i) {
  return __float_as_uint(*at) == (CLAIMED | unsigned(i));
}

// The nodes of one level above the leaves of `index`: each is recomputed once, by the sample that
// has claimed it, which claims its parent if that is to be recomputed in this way too.
template <int LANES>
__device__ void raise_claimed(const SumTree& tree, const int64* index, int64 n, int64 level,
                              bool claims) {
  const int64 groups = int64(gridDim.x) * blockDim.x / LANES;
  const int64 group = (int64(blockIdx.x) * blockDim.x + threadIdx.x) / LANES;
  const int64 above = tree.first_of(level), below = above + tree.levels[level];
  int64 span = 1;
  for (int64 l = level; l < tree.depth - 1; l++) span *= tree.fanout;
  for (int64 begin = 0; begin < n; begin += groups) {
    const int64 i = min(begin + group, n - 1), node = index[i] / span;
    const bool mine = begin + group < n && has_claimed(tree.nodes + above + node, i);
    if (!__any_sync(WARP, mine)) continue;
    const float sum = sum_children<LANES>(tree.nodes + below + node * tree.fanout, tree.fanout);
    if (mine && threadIdx.x % LANES == 0) {
      tree.nodes[above + node] = sum;
      if (claims) claim(tree.nodes + above - tree.levels[level - 1] + node / tree.fanout, i);
    }
  }
}

// Leaf ← (|td| + constant)^alpha of n samples; of a row drawn twice the last counts. In phases,
// `first` … `last` - 1 of them in this launch, which has one block if it has several:
// 0 every sample claims its leaf; 1 the one that has it writes it; 2, 3, … the levels above, from
// the leaves' parents to level `whole`; then, in one block, the levels above that one, whole.
extern "C" __global__ void __launch_bounds__(1024)
    replay_update(float* nodes, const int64* levels, int64 depth, int64 fanout, double* priority,
                  const int64* index, const float* td, int64 n, int64 whole, int64 first,
                  int64 last) {
  const SumTree tree = {nodes, levels, depth, fanout};
  float* leaves = nodes + tree.first_of(depth - 1);
  const int64 step = int64(gridDim.x) * blockDim.x;
  const int64 begin = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64 phase = first; phase < last; phase++) {
    const int64 level = depth - phase;
    if (phase > first) __syncthreads();
    if (phase == 0) {
      for (int64 i = begin; i < n; i += step) claim(leaves + index[i], i);
      if (begin == 0) priority[2] = double(float(priority[2]));
    } else if (phase == 1) {
      const float alpha = float(priority[0]), constant = float(priority[1]);
      float top = 0.0f;
      for (int64 i = begin; i < n; i += step) {
        const float value = powf(fabsf(td[i]) + constant, alpha);
        if (value > top) top = value;
        if (!has_claimed(leaves + index[i], i)) continue;
        leaves[index[i]] = value;
        if (depth - 2 >= whole) claim(leaves - levels[depth - 2] + index[i] / fanout, i);
      }
      for (int k = 16; k > 0; k /= 2) top = max(top, __shfl_xor_sync(WARP, top, k));
      const double most = double(top);  // the bits of what is not negative order as it does
      if (threadIdx.x % 32 == 0)
        atomicMax(reinterpret_cast<uint64*>(priority + 2), uint64(__double_as_longlong(most)));
    } else if (level >= whole) {
      if (fanout == 16)
        raise_claimed<16>(tree, index, n, level, level > whole);
      else if (fanout == 8)
        raise_claimed<8>(tree, index, n, level, level > whole);
      else
        raise_claimed<1>(tree, index, n, level, level > whole);
    } else {
      raise_range(tree, level, 0, levels[depth - 1] - 1);
    }
  }
}
