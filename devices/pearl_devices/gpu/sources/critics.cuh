// What gradient steps with an actor and critics share, as pearl_devices.primitives.updates.critics
// and .ddpg have it. A critic's input is the observation followed by the action.
#pragma once
#include "block_nets.cuh"

using Actor = Net<false, ACTOR_0, ACTOR_1, ACTOR_2, ACTOR_3, ACTOR_4, ACTOR_5>;
using Critic = Net<false, CRITIC_0, CRITIC_1, CRITIC_2, CRITIC_3, CRITIC_4, CRITIC_5>;
static_assert(Actor::SIZE == ACTOR_SIZE && Actor::ACTS == ACTOR_ACTS_SIZE &&
                  Critic::SIZE == CRITIC_SIZE && Critic::ACTS == CRITIC_ACTS_SIZE,
              "the binder places networks as they are");
constexpr int OBS = Actor::IN, ACT = Critic::IN - Actor::IN;

// k batches, and the bounds of actions.
struct Batch {
  const float *obs, *action, *reward, *next_obs, *discount, *weight;
  float* td;
  const float *low, *high;
};
#define GIVEN                                                                                 \
  const float *obs, const float *action, const float *reward, const float *next_obs,         \
      const float *discount, const float *weight, float *td, const float *low, const float *high
#define GIVEN_AS \
  Batch { obs, action, reward, next_obs, discount, weight, td, low, high }

// Memory of a pass: x (ROWS, OBS), joined (ROWS, OBS + ACT), outputs of layers, slope (ROWS, ACT).
struct Pass {
  float *x, *joined, *actor_acts, *critic_acts, *slope;
};
#define PASS \
  Pass { PLACE(X), PLACE(JOINED), PLACE(ACTOR_ACTS), PLACE(CRITIC_ACTS), PLACE(SLOPE) }

// The first where i is 0, else the second.
__device__ __forceinline__ Learner either(int i, const Learner& first, const Learner& second) {
  return {i ? second.params : first.params, i ? second.target : first.target,
          i ? second.grad : first.grad, i ? second.m : first.m, i ? second.v : first.v};
}

__device__ __forceinline__ float half_range(const Batch& batch, int c) {
  return 0.5f * (batch.high[c] - batch.low[c]);
}

// x ← rows of observations; joined ← the same. A barrier must follow.
__device__ __forceinline__ void look(const Pass& pass, const float* from, int rows) {
  stage<OBS>(pass.x, from, rows);
  stage<OBS, OBS + ACT>(pass.joined, from, rows);
}

// joined ← rows of observations and actions. Ends with a barrier.
__device__ __forceinline__ void look_back(const Pass& pass, const Batch& batch, int64 start,
                                          int rows) {
  stage<OBS, OBS + ACT>(pass.joined, batch.obs + start * OBS, rows);
  stage<ACT, OBS + ACT, OBS>(pass.joined, batch.action + start * ACT, rows);
  __syncthreads();
}

// Calls f(row, component) for each component of the actions of `rows` rows.
template <class F>
__device__ __forceinline__ void each_action(int rows, F f) {
#pragma unroll 1
  for (int j = threadIdx.x; j < rows * ACT; j += THREADS) f(j / ACT, j % ACT);
}

__device__ __forceinline__ float* actor_row(const Pass& pass, int row) {
  return Actor::outputs(pass.actor_acts) + row * pitch(Actor::OUT);
}

// The value that a critic gave to a row.
__device__ __forceinline__ float& value_of(float* acts, int row) {
  return Critic::outputs(acts)[row * pitch(1)];
}

// Gradient of a critic towards `wanted`, which the thread of each row has, for the rows in
// pass.joined; the row's |error|. Ends with a barrier.
__device__ __forceinline__ float regress(const Learner& net, const Pass& pass, float wanted,
                                         float weight, float huber, int rows, bool more,
                                         float& loss) {
  const int b = threadIdx.x;
  float error = 0.0f;
  Critic::forward(net.params, pass.joined, pass.critic_acts);
  if (b < rows) {
    float& value = value_of(pass.critic_acts, b);
    error = value - wanted;
    const Slope slope = td_gradient(error, weight, huber);
    loss += slope.loss;
    value = slope.d;
  }
  __syncthreads();
  Critic::backward<true, 0>(net.params, pass.joined, pass.critic_acts, net.grad, nullptr, rows,
                            more);
  return fabsf(error);
}

// Gradient of a deterministic actor, whose loss is minus the mean value of its actions; the part of
// the loss of this thread's rows. Ends with a barrier.
__device__ __forceinline__ float ascend(const Learner& actor, const float* critic,
                                        const Batch& batch, const Pass& pass, int step) {
  float loss = 0.0f;
#pragma unroll 1
  for (int first = 0; first < BATCH; first += ROWS) {
    const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
    look(pass, batch.obs + (int64(step) * BATCH + first) * OBS, rows);
    __syncthreads();
    Actor::forward(actor.params, pass.x, pass.actor_acts);
    each_action(rows, [&](int row, int c) {
      float& z = actor_row(pass, row)[c];
      const float half = half_range(batch, c), t = tanhf(z);
      z = t;
      pass.joined[row * pitch(OBS + ACT) + OBS + c] = batch.low[c] + half + half * t;
    });
    __syncthreads();
    Critic::forward(critic, pass.joined, pass.critic_acts);
    if (b < rows) {
      float& value = value_of(pass.critic_acts, b);
      loss -= value / float(BATCH);
      value = -1.0f / float(BATCH);
    }
    __syncthreads();
    Critic::backward<false, ACT>(critic, pass.joined, pass.critic_acts, nullptr, pass.slope, rows,
                                 false);
    each_action(rows, [&](int row, int c) {
      float& t = actor_row(pass, row)[c];
      t = pass.slope[row * pitch(ACT) + c] * half_range(batch, c) * (1.0f - t * t);
    });
    __syncthreads();
    Actor::backward<true, 0>(actor.params, pass.x, pass.actor_acts, actor.grad, nullptr, rows,
                             first > 0);
  }
  return loss;
}

// Moves a target by `share`, where no step of Adam does. Ends with a barrier.
template <class N>
__device__ __forceinline__ void follow(const Learner& net, float share) {
  N::template each<1>([&](int, int (&)[1], int (&padded)[1]) {
    float& target = net.target[padded[0]];
    const float now = net.params[padded[0]];
    target = share >= 1.0f ? now : target + share * (now - target);
  });
  __syncthreads();
}

// noise (steps, DRAWS, BATCH, ACT) ← the standard normals of all gradient steps of this launch; one
// firing of the random stream each. A barrier must follow.
template <int DRAWS>
__device__ __forceinline__ void draw_noise(const uint64* rng, float* noise, int steps) {
  constexpr int COUNT = BATCH * ACT, PAIRS = over(COUNT, 2);
#pragma unroll 1
  for (int n = threadIdx.x; n < steps * DRAWS * PAIRS; n += THREADS) {
    const int draw = n / PAIRS, j = n % PAIRS * 2;
    const uint64 base = stream(rng[0], rng[1] + uint64(draw / DRAWS));
    const uint64 index = uint64(draw % DRAWS * PAIRS * 2 + j);
    const double radius = sqrt(-2.0 * log(1.0 - uniform(base, index)));
    const double angle = 2.0 * uniform(base, index + 1);
    float* const at = noise + int64(draw) * COUNT + j;
    at[0] = float(radius * cospi(angle));
    if (j + 1 < COUNT) at[1] = float(radius * sinpi(angle));
  }
}

// Twin critics lie one after the other, their moments only where these lie in shared memory.
#define TWIN(I, X)                                                          \
  Learner {                                                                 \
    PLACE(CRITIC_PARAMS) + I * Critic::SIZE, PLACE(CRITIC_TARGET) + I * Critic::SIZE, \
        PLACE(CRITIC_GRAD) + I * Critic::SIZE,                              \
        CRITIC_M_SHARED ? shared + CRITIC_M_AT + I * Critic::FLAT : X##_m,  \
        CRITIC_V_SHARED ? shared + CRITIC_V_AT + I * Critic::FLAT : X##_v   \
  }

// The smaller value of two critics' parameters for this thread's row of pass.joined.
__device__ __forceinline__ float least_value(const float* first, const float* second,
                                             const Pass& pass) {
  float least = 0.0f;
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    Critic::forward(i ? second : first, pass.joined, pass.critic_acts);
    if (threadIdx.x < ROWS) {
      const float value = value_of(pass.critic_acts, threadIdx.x);
      least = i && least < value ? least : value;
    }
    if constexpr (Critic::LAYERS == 1) __syncthreads();  // else a barrier of `forward` is enough
  }
  return least;
}

// `regress` of both critics; the mean |error|.
__device__ __forceinline__ float regress_both(const Learner& first, const Learner& second,
                                              const Pass& pass, float wanted, float weight,
                                              float huber, int rows, bool more, float (&loss)[2]) {
  float error = 0.0f;
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    float part = 0.0f;
    error += 0.5f * regress(either(i, first, second), pass, wanted, weight, huber, rows, more, part);
    if (i) loss[1] += part;
    else loss[0] += part;
  }
  return error;
}

// `descend` of both critics.
__device__ __forceinline__ void descend_both(const Learner& first, const Learner& second,
                                             const Rules& rules, const Pace& pace1,
                                             const Pace& pace2, float share) {
#pragma unroll 1
  for (int i = 0; i < 2; i++)
    descend<Critic>(either(i, first, second), rules, i ? pace2 : pace1, share);
}
