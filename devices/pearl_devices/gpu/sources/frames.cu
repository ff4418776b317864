// The replay of stacked uint8 frames, as pearl_devices.primitives.replay.frames has it: each frame is
// stored once, and a batch's stacks are built anew.
#include "replay.cuh"

// x modulo m, never negative: in an empty replay the newest row has the number -1.
__device__ __forceinline__ int64 modulo(int64 x, int64 m) {
  const int64 rest = x % m;
  return rest < 0 ? rest + m : rest;
}

// The parts of the replay that know of frames; `places` frames of `size` bytes.
struct Frames {
  unsigned char *frame, *depth, *ahead, *last;
  int64* last_row;
  int64* clock;
  int64 places, size, ends, envs, most;  // most: frames before the newest in a stack

  __device__ __forceinline__ unsigned char* at(int64 place) const { return frame + place * size; }
};

// Of the n rows at the cursor: how many frames of their stacks belong to their episodes, and the slot
// (or -1) to which the successor of the row before moves, which is no frame of this row. Slots go by
// rising rows. One block. overflow[0] ← 1 where a slot's row is still in the ring: more episodes were
// cut than it keeps last frames of.
extern "C" __global__ void __launch_bounds__(1024)
    frames_mark(const unsigned char* s_truncated, const unsigned char* terminated,
                const unsigned char* truncated, unsigned char* depth, int64* last_row,
                int64* clock, const int64* cursor, int64* slot, int64* overflow, int64 n,
                int64 capacity, int64 envs, int64 places, int64 ends, int64 most) {
  __shared__ int of_warp[32];
  const int64 row = cursor[0], now = clock[0];
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int64 count = clock[1], moved = 0;
  for (int64 begin = 0; begin < n; begin += blockDim.x) {
    const int64 e = begin + threadIdx.x, number = now + e, before = number - envs;
    bool cut = false, goes_on = false;
    if (e < n && before >= 0) {
      const int64 at = wrap(row + e - envs, capacity);
      const bool ended = terminated[at] != 0;
      cut = !ended && ((s_truncated[e] & ANEW) || (truncated[at] & CUT));
      goes_on = !ended && !cut;
    }
    if (e < n)
      depth[number % places] =
          goes_on ? (unsigned char)min(int64(depth[before % places]) + 1, most) : 0;
    const unsigned cuts = __ballot_sync(WARP, cut);
    if (threadIdx.x % 32 == 0) of_warp[warp] = __popc(cuts);
    __syncthreads();
    int64 rank = __popc(cuts & ((1u << threadIdx.x % 32) - 1)), all = 0;
    for (int w = 0; w < warps; w++) {
      if (w < warp) rank += of_warp[w];
      all += of_warp[w];
    }
    __syncthreads();
    if (e < n) {
      slot[e] = -1;
      if (cut) {
        const int64 mine = count + rank, place = mine % ends;
        if (moved + rank >= ends || (mine >= ends && last_row[place] > number - capacity)) {
          overflow[0] = 1;
        } else {
          slot[e] = place;
          last_row[place] = before;
        }
      }
    }
    count += all;
    moved += all;
  }
  if (threadIdx.x == 0) clock[1] = count;
}

// Stores the n rows at the cursor: a block a row; the last one counts them in.
extern "C" __global__ void __launch_bounds__(256)
    frames_insert(const float* s_obs, const unsigned* s_action, const float* s_reward,
                  const float* s_next, const unsigned char* s_terminated,
                  const unsigned char* s_truncated, unsigned* action, float* reward,
                  unsigned char* terminated, unsigned char* truncated, unsigned char* frame,
                  unsigned char* ahead, unsigned char* last, int64* clock, const int64* slot,
                  int64* cursor, float* nodes, const int64* levels, int64 depth, int64 fanout,
                  double* priority, unsigned* ticket, int64 n, int64 capacity, int64 envs,
                  int64 places, int64 size, int64 obs_words, int64 action_words) {
  const int64 e = blockIdx.x, number = clock[0] + e, row = cursor[0] + e;
  const int64 env = number % envs, place = number % places, to = slot[e];
  const int64 newest = e * obs_words + obs_words - size;
  for (int64 c = threadIdx.x; c < size; c += blockDim.x) {
    if (to >= 0) last[to * size + c] = ahead[env * size + c];
    frame[place * size + c] = (unsigned char)s_obs[newest + c];
    ahead[env * size + c] = (unsigned char)s_next[newest + c];
  }
  for (int64 c = threadIdx.x; c < action_words; c += blockDim.x)
    action[row * action_words + c] = s_action[e * action_words + c];
  if (threadIdx.x == 0) {
    reward[row] = s_reward[e];
    terminated[row] = s_terminated[e];
    truncated[row] = s_truncated[e];
  }
  if (!is_last_block(ticket)) return;
  take_in(n, capacity, cursor, {nodes, levels, depth, fanout}, priority);
  if (threadIdx.x == 0) clock[0] += n;
}

// out ← at its beginning `frames` frames up to that of row `number`, oldest first; the first of an
// episode stands in for those before it.
__device__ void stack(const Frames& f, int64 number, int64 frames, float* out) {
  const int64 place = modulo(number, f.places), held = f.depth[place];
  for (int64 j = 0; j < frames; j++) {
    const int64 back = min(frames - 1 - j, held) * f.envs;
    const unsigned char* from = f.at(wrap(place - back, f.places));
    for (int64 c = threadIdx.x; c < f.size; c += blockDim.x) out[j * f.size + c] = float(from[c]);
  }
}

// The slot of row `number`; the rows of the newest slots rise.
__device__ int64 find(const Frames& f, int64 number) {
  int64 low = max(f.clock[1] - f.ends, int64(0)), high = f.clock[1] - 1;
  while (low < high) {
    const int64 middle = (low + high) / 2;
    if (f.last_row[middle % f.ends] < number)
      low = middle + 1;
    else
      high = middle;
  }
  return modulo(low, f.ends);
}

// Fills the batches: a block a row.
extern "C" __global__ void __launch_bounds__(256)
    frames_gather(uint64* rng, const unsigned* action, const float* reward,
                  const unsigned char* terminated, const unsigned char* truncated,
                  unsigned char* frame, unsigned char* held, unsigned char* ahead,
                  unsigned char* last, int64* last_row, int64* clock, const int64* cursor,
                  const double* beta, const double* discount, int64* index, float* weight,
                  unsigned* least, float* b_obs, unsigned* b_action, float* b_reward,
                  float* b_next, float* b_discount, unsigned* ticket, int64 steps, int64 batch,
                  int64 prioritised, int64 envs, int64 n_step, int64 capacity, int64 places,
                  int64 size, int64 ends, int64 most, int64 action_words) {
  const Draw draw = {rng, cursor, beta, index, weight, least, steps, batch, prioritised};
  const Rows rows = {reward, terminated, truncated, cursor[0] - 1, capacity, envs, n_step,
                     discount[0]};
  const Frames f = {frame, held, ahead, last, last_row, clock, places, size, ends, envs, most};
  const int64 item = blockIdx.x, words = (most + 1) * size, newest = clock[0] - 1;
  const int64 row = drawn_row(draw, item, threadIdx.x == 0);
  const Return found = follow_return(rows, row);
  stack(f, newest - wrap(rows.newest - row, capacity), most + 1, b_obs + item * words);
  const int64 number = newest - wrap(rows.newest - found.row, capacity);
  float* next = b_next + item * words;
  if (terminated[found.row] != 0) {
    stack(f, number, most + 1, next);
  } else {
    stack(f, number, most, next);
    const unsigned char* from;
    if (number > newest - envs)
      from = ahead + modulo(number, envs) * size;
    else if ((truncated[found.row] & CUT) || (truncated[wrap(found.row + envs, capacity)] & ANEW))
      from = last + find(f, number) * size;
    else
      from = f.at(modulo(number + envs, places));
    for (int64 c = threadIdx.x; c < size; c += blockDim.x) next[most * size + c] = float(from[c]);
  }
  for (int64 c = threadIdx.x; c < action_words; c += blockDim.x)
    b_action[item * action_words + c] = action[row * action_words + c];
  if (threadIdx.x == 0) {
    b_reward[item] = float(found.total);
    b_discount[item] = float(found.discount);
  }
  if (is_last_block(ticket)) end_draw(draw);
}
