// update.dqn: all gradient steps of a firing, as pearl_devices.primitives.updates.dqn has them.
#include "block_nets.cuh"

using Q = Net<false, Q_0, Q_1, Q_2, Q_3, Q_4, Q_5>;
static_assert(Q::SIZE == Q_SIZE && Q::ACTS == Q_ACTS_SIZE, "the binder places networks as they are");
constexpr int ACTIONS = Q::OUT - DUELLING;

// What the outputs of a row are added to, to be values of actions: 0 where it is not duelling.
__device__ __forceinline__ float beside(const float* row) {
  if (!DUELLING) return 0.0f;
  float mean = 0.0f;
  for (int c = 1; c <= ACTIONS; c++) mean += (1.0f / float(ACTIONS)) * row[c];
  return row[0] - mean;
}

__device__ __forceinline__ int argmax(const float* row, float rest) {
  int best = 0;
  for (int c = 1; c < ACTIONS; c++)
    if (row[DUELLING + c] + rest > row[DUELLING + best] + rest) best = c;
  return best;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) update_dqn(
    const float* obs, const int64* action, const float* reward, const float* next_obs,
    const float* discount, const float* weight, float* td, STORED(q), int64* count,
    const double* adam_hyper, const double* tau, const double* every, const double* clip_norm,
    const double* huber, float* scratch, int64 steps) {
  DYNAMIC_SHARED(bytes);
  __shared__ Pace paces[WINDOW];
  float* const shared = reinterpret_cast<float*>(bytes);
  float* const x = PLACE(X);
  float* const ahead = PLACE(AHEAD);
  float* const acts = PLACE(ACTS);
  const Stored stored = STORED_AS(q);
  const Learner q{PLACE(Q_PARAMS), PLACE(Q_TARGET), PLACE(Q_GRAD), MOMENT(Q_M, q_m),
                  MOMENT(Q_V, q_v)};
  const Rules rules = rules_of(adam_hyper, tau, every, clip_norm, huber);
  const int64 done = q_steps[0], counted = count[0];
  zero(shared, SHARED_FLOATS);
  zero(scratch, SCRATCH_FLOATS);
  __syncthreads();
  fetch<Q>(q, stored);

#pragma unroll 1
  for (int s = 0; s < int(steps); s++) {
    if (s % WINDOW == 0) pace(0, paces, done + s, q_lr[0], adam_hyper);
    float loss = 0.0f;
#pragma unroll 1
    for (int first = 0; first < BATCH; first += ROWS) {
      const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
      const int64 start = int64(s) * BATCH + first;
      stage<Q::IN>(ahead, next_obs + start * Q::IN, rows);
      stage<Q::IN>(x, obs + start * Q::IN, rows);
      __syncthreads();
      float* const row = Q::outputs(acts) + b * pitch(Q::OUT);
      int best = 0;
      if (DOUBLE) {
        Q::forward(q.params, ahead, acts);
        if (b < rows) best = argmax(row, beside(row));
        if constexpr (Q::LAYERS == 1) __syncthreads();  // else a barrier of `forward` is enough
      }
      Q::forward(q.target, ahead, acts);
      float wanted = 0.0f;
      if (b < rows) {
        const float rest = beside(row);
        if (!DOUBLE) best = argmax(row, rest);
        wanted = reward[start + b] + discount[start + b] * (row[DUELLING + best] + rest);
      }
      if constexpr (Q::LAYERS == 1) __syncthreads();
      Q::forward(q.params, x, acts);
      if (b < rows) {
        const int taken = DUELLING + int(action[start + b]);
        const float error = row[taken] + beside(row) - wanted;
        const Slope slope = td_gradient(error, weight[start + b], rules.huber);
        td[start + b] = fabsf(error);
        loss += slope.loss;
        for (int c = 0; c < Q::OUT; c++) row[c] = DUELLING ? -slope.d / float(ACTIONS) : 0.0f;
        row[taken] += slope.d;
        if (DUELLING) row[0] = slope.d;
      }
      __syncthreads();
      Q::backward<true, 0>(q.params, x, acts, q.grad, nullptr, rows, first > 0);
    }
    descend<Q>(q, rules, paces[s % WINDOW], target_share(rules, counted + s + 1));
    if (s + 1 == int(steps)) {
      loss = block_sum(loss);
      if (threadIdx.x == 0) q_loss[0] = loss;
    }
  }
  put_back<Q>(q, stored);
  if (threadIdx.x == 0) {
    q_steps[0] = done + steps;
    count[0] = counted + steps;
  }
}
