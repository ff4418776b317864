// update.sac: all gradient steps of a firing, as pearl_devices.primitives.updates.sac has them.
#include "critics.cuh"

constexpr float LOG_2 = 0.69314718055994531f, HALF_LOG_2_PI = 0.91893853320467274f;
static_assert(Actor::OUT == 2 * ACT, "means and deviations");

// Limits of the logarithm of a deviation.
struct Limits {
  float lowest, highest;
};

// The actions of a row of the actor's outputs and of standard normal noise, into pass.joined;
// tanh(u) takes the place of the means. The log density.
__device__ __forceinline__ float sample(const Batch& batch, const Pass& pass, int row,
                                        const float* noise, const Limits& limits) {
  float* const z = actor_row(pass, row);
  float log_prob = 0.0f;
#pragma unroll 1
  for (int c = 0; c < ACT; c++) {
    const float log_std = min(max(z[ACT + c], limits.lowest), limits.highest);
    const float u = z[c] + expf(log_std) * noise[c], size = fabsf(u);
    const float less = expm1f(-2.0f * size), t = -less / (2.0f + less);
    const float squashed = u > 0.0f ? t : -t, half = half_range(batch, c);
    z[c] = squashed;
    pass.joined[row * pitch(OBS + ACT) + OBS + c] = batch.low[c] + half + half * squashed;
    log_prob -= 0.5f * noise[c] * noise[c] + log_std + HALF_LOG_2_PI;
    log_prob -= 2.0f * (LOG_2 - size - log1pf(1.0f + less));
  }
  return log_prob;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) update_sac(
    GIVEN, STORED_ALONE(actor), STORED(critic1), STORED(critic2), STORED_ALONE(alpha),
    int64* count, const double* adam_hyper, const double* tau, const double* every,
    const double* clip_norm, const double* huber, const double* target_entropy, uint64* rng,
    float* noise, float* scratch, int64 steps, double lowest, double highest) {
  DYNAMIC_SHARED(bytes);
  __shared__ Pace paces[4][WINDOW];
  float* const shared = reinterpret_cast<float*>(bytes);
  const Batch batch = GIVEN_AS;
  const Pass pass = PASS;
  float* const slopes[2] = {PLACE(SLOPE), PLACE(SLOPE) + ROWS * pitch(ACT)};
  const Stored stored_actor = STORED_ALONE_AS(actor);
  const Stored stored1 = STORED_AS(critic1), stored2 = STORED_AS(critic2);
  const Learner actor{PLACE(ACTOR_PARAMS), nullptr, PLACE(ACTOR_GRAD), MOMENT(ACTOR_M, actor_m),
                      MOMENT(ACTOR_V, actor_v)};
  const Learner critic1 = TWIN(0, critic1), critic2 = TWIN(1, critic2);
  const Rules rules = rules_of(adam_hyper, tau, every, clip_norm, huber);
  const Limits limits{float(lowest), float(highest)};
  const float wanted_entropy = float(target_entropy[0]);
  const int64 done = actor_steps[0], counted = count[0], alpha_done = alpha_steps[0];
  const int64 done1 = critic1_steps[0], done2 = critic2_steps[0];
  float alpha = alpha_params[0], m = alpha_m[0], v = alpha_v[0];  // every thread has them
  draw_noise<2>(rng, noise, int(steps));
  zero(shared, SHARED_FLOATS);
  zero(scratch, SCRATCH_FLOATS);
  __syncthreads();
  fetch<Actor>(actor, stored_actor);
  fetch<Critic>(critic1, stored1);
  fetch<Critic>(critic2, stored2);

#pragma unroll 1
  for (int s = 0; s < int(steps); s++) {
    if (s % WINDOW == 0) {
      pace(0, paces[0], done + s, actor_lr[0], adam_hyper);
      pace(1, paces[1], done1 + s, critic1_lr[0], adam_hyper);
      pace(2, paces[2], done2 + s, critic2_lr[0], adam_hyper);
      pace(3, paces[3], alpha_done + s, alpha_lr[0], adam_hyper);
    }
    const float temperature = expf(alpha), part = 1.0f / float(BATCH);
    float loss[2] = {}, actor_part = 0.0f, density = 0.0f;
#pragma unroll 1
    for (int first = 0; first < BATCH; first += ROWS) {
      const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
      const int64 start = int64(s) * BATCH + first;
      look(pass, next_obs + start * OBS, rows);
      __syncthreads();
      Actor::forward(actor.params, pass.x, pass.actor_acts);
      float log_prob = 0.0f;
      if (b < rows)
        log_prob = sample(batch, pass, b, noise + (int64(2 * s) * BATCH + first + b) * ACT, limits);
      __syncthreads();
      float wanted = least_value(critic1.target, critic2.target, pass);
      if (b < rows)
        wanted = reward[start + b] + discount[start + b] * (wanted - temperature * log_prob);
      look_back(pass, batch, start, rows);
      const float error = regress_both(critic1, critic2, pass, wanted,
                                       b < rows ? weight[start + b] : 0.0f, rules.huber, rows,
                                       first > 0, loss);
      if (b < rows) td[start + b] = error;
    }
    descend_both(critic1, critic2, rules, paces[1][s % WINDOW], paces[2][s % WINDOW],
                 target_share(rules, counted + s + 1));

#pragma unroll 1
    for (int first = 0; first < BATCH; first += ROWS) {
      const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
      const float* const own = noise + (int64(2 * s + 1) * BATCH + first + b) * ACT;
      look(pass, obs + (int64(s) * BATCH + first) * OBS, rows);
      __syncthreads();
      Actor::forward(actor.params, pass.x, pass.actor_acts);
      float log_prob = 0.0f;
      if (b < rows) log_prob = sample(batch, pass, b, own, limits);
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < 2; i++)
        Critic::forward(i ? critic2.params : critic1.params, pass.joined,
                        pass.critic_acts + i * Critic::ACTS);
      if (b < rows) {
        float& one = value_of(pass.critic_acts, b);
        float& other = value_of(pass.critic_acts + Critic::ACTS, b);
        const bool least = one <= other;
        actor_part += part * (temperature * log_prob - (least ? one : other));
        density += log_prob;
        one = least ? -part : 0.0f;
        other = least ? 0.0f : -part;
      }
      __syncthreads();
#pragma unroll 1
      for (int i = 0; i < 2; i++)
        Critic::backward<false, ACT>(i ? critic2.params : critic1.params, pass.joined,
                                     pass.critic_acts + i * Critic::ACTS, nullptr,
                                     i ? slopes[1] : slopes[0], rows, false);
      if (b < rows) {
        float* const z = actor_row(pass, b);
        for (int c = 0; c < ACT; c++) {
          const float t = z[c], raw = z[ACT + c], both = slopes[0][b * pitch(ACT) + c] +
                                                         slopes[1][b * pitch(ACT) + c];
          float slope = both * half_range(batch, c) * (1.0f - t * t);
          slope += part * temperature * 2.0f * t;
          z[c] = slope;
          z[ACT + c] = raw >= limits.lowest && raw <= limits.highest
                           ? slope * (expf(raw) * own[c]) - part * temperature
                           : 0.0f;
        }
      }
      __syncthreads();
      Actor::backward<true, 0>(actor.params, pass.x, pass.actor_acts, actor.grad, nullptr, rows,
                               first > 0);
    }
    descend<Actor>(actor, rules, paces[0][s % WINDOW], 0.0f);

    const float excess = block_sum(density) / float(BATCH) + wanted_entropy;
    const float alpha_before = alpha;
    float g = -excess;
    if (rules.clip_norm > 0.0) g *= clip_factor(rules.clip_norm, g * g);
    alpha -= adam(rules, paces[3][s % WINDOW], g, m, v);
    if (s + 1 == int(steps)) {
      const float sum = block_sum(actor_part), sum1 = block_sum(loss[0]);
      const float sum2 = block_sum(loss[1]);
      if (threadIdx.x == 0) {
        actor_loss[0] = sum, critic1_loss[0] = sum1, critic2_loss[0] = sum2;
        alpha_loss[0] = -alpha_before * excess;
      }
    }
    if (s % WINDOW == WINDOW - 1) __syncthreads();  // before the constants are computed anew
  }
  put_back<Actor>(actor, stored_actor);
  put_back<Critic>(critic1, stored1);
  put_back<Critic>(critic2, stored2);
  if (threadIdx.x == 0) {
    alpha_params[0] = alpha, alpha_m[0] = m, alpha_v[0] = v;
    actor_steps[0] = done + steps, alpha_steps[0] = alpha_done + steps;
    critic1_steps[0] = done1 + steps, critic2_steps[0] = done2 + steps;
    count[0] = counted + steps;
    rng[1] += uint64(steps);
  }
}
