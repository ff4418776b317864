// update.ppo, update.a2c: all gradient steps on a rollout, as pearl_devices.primitives.updates.ppo
// has them.
#include "block_nets.cuh"

using Actor = Net<BENT, ACTOR_0, ACTOR_1, ACTOR_2, ACTOR_3, ACTOR_4, ACTOR_5>;
using Critic = Net<BENT, CRITIC_0, CRITIC_1, CRITIC_2, CRITIC_3, CRITIC_4, CRITIC_5>;
static_assert(Actor::SIZE == ACTOR_SIZE && Actor::ACTS == ACTOR_ACTS_SIZE &&
                  Critic::SIZE == CRITIC_SIZE && Critic::ACTS == CRITIC_ACTS_SIZE,
              "the binder places networks as they are");
static_assert(ROLLOUT % BATCH == 0 && ACT <= THREADS, "whole minibatches, a thread a deviation");
constexpr float HALF_LOG_2_PI = 0.91893853320467274f, NORMAL_EPS = 1e-8f;
constexpr int SPREADS = ACT ? ACT : 1;

// Permutes `order` (ROLLOUT) with the numbers of one epoch, as swaps of each cell from the last with
// one before it do. Swaps that touch no cell of an earlier one are done together (Shun et al.,
// "Sequential random permutation, list contraction and tree contraction are highly parallel", SODA
// 2015): `claims` has the earliest that touches a cell, a maximum whatever the threads' order.
__device__ __forceinline__ void shuffle(uint64 base, int64 epoch, int* order, int* others,
                                        int* claims) {
  for (int left = threadIdx.x; left < ROLLOUT; left += THREADS) {
    others[left] = int(uniform(base, uint64(epoch * ROLLOUT + left)) * double(left + 1));
    claims[left] = 0;
  }
  __syncthreads();
  for (float pending = 1.0f; pending > 0.0f;) {
#pragma unroll 1
    for (int left = threadIdx.x; left < ROLLOUT; left += THREADS)
      if (left && others[left] >= 0) {
        atomicMax(&claims[left], left);
        atomicMax(&claims[others[left]], left);
      }
    __syncthreads();
    float mine = 0.0f;
#pragma unroll 1
    for (int left = threadIdx.x; left < ROLLOUT; left += THREADS) {
      const int other = others[left];
      if (!left || other < 0) continue;
      if (claims[left] == left && claims[other] == left) {
        const int held = order[left];
        order[left] = order[other];
        order[other] = held;
        others[left] = -1;
      } else {
        mine++;
      }
    }
    pending = block_sum(mine);
    for (int left = threadIdx.x; left < ROLLOUT; left += THREADS) claims[left] = 0;
    __syncthreads();
  }
}

// x (ROWS, WIDTH) ← the rows of `from` that `order` names.
template <int WIDTH>
__device__ __forceinline__ void gather(float* x, const float* from, const int* order, int rows) {
#pragma unroll 2
  for (unsigned j = threadIdx.x; j < unsigned(rows * WIDTH); j += THREADS)
    x[j / WIDTH * pitch(WIDTH) + j % WIDTH] = from[int64(order[j / WIDTH]) * WIDTH + j % WIDTH];
}

// Loss of the surrogate, and its derivative by the log probability.
__device__ __forceinline__ Slope surrogate(float log_prob, float old, float advantage,
                                           float clip) {
  const float ratio = expf(log_prob - old), free = ratio * advantage;
  if (clip > 0.0f) {
    const float held = min(max(ratio, 1.0f - clip), 1.0f + clip) * advantage;
    if (held < free) return {-held, 0.0f};
  }
  return {-free, -free};
}

// Loss of a row of logits; the derivative of the mean loss takes their place.
__device__ __forceinline__ float softmax_loss(float* z, int64 taken, float old, float advantage,
                                              float clip, float weight) {
  float most = z[0], sum = 0.0f, entropy = 0.0f;
  for (int j = 1; j < Actor::OUT; j++) most = max(most, z[j]);
  for (int j = 0; j < Actor::OUT; j++) sum += expf(z[j] - most);
  const float norm = most + logf(sum);
  for (int j = 0; j < Actor::OUT; j++) entropy -= expf(z[j] - norm) * (z[j] - norm);
  const Slope found = surrogate(z[taken] - norm, old, advantage, clip);
  for (int j = 0; j < Actor::OUT; j++) {
    const float log_p = z[j] - norm, p = expf(log_p);
    z[j] = (p * (weight * (log_p + entropy) - found.d) + (j == taken ? found.d : 0.0f)) /
           float(BATCH);
  }
  return found.loss - weight * entropy;
}

// The same of a row of means; spread (ACT) ← the derivative by the deviations' logarithms.
__device__ __forceinline__ float gaussian_loss(float* z, const float* action,
                                               const float* log_std, float old, float advantage,
                                               float clip, float weight, float* spread) {
  float log_prob = 0.0f, entropy = 0.0f;
  for (int c = 0; c < ACT; c++) {
    const float away = (action[c] - z[c]) * expf(-log_std[c]);
    log_prob -= 0.5f * away * away + log_std[c] + HALF_LOG_2_PI;
    entropy += log_std[c] + 0.5f + HALF_LOG_2_PI;
  }
  const Slope found = surrogate(log_prob, old, advantage, clip);
  const float slope = found.d / float(BATCH);
  for (int c = 0; c < ACT; c++) {
    const float narrow = expf(-log_std[c]), away = (action[c] - z[c]) * narrow;
    z[c] = slope * away * narrow;
    spread[c] = slope * (away * away - 1.0f);
  }
  return found.loss - weight * entropy;
}

// Loss of a value, and the derivative of the mean loss.
__device__ __forceinline__ Slope value_loss(float value, float old, float wanted, float clip,
                                            float weight) {
  const float error = value - wanted;
  float squared = error * error, slope = 2.0f * error;
  if (clip > 0.0f) {
    const float moved = value - old, held = old + min(max(moved, -clip), clip) - wanted;
    if (held * held > squared) {
      squared = held * held;
      slope = fabsf(moved) < clip ? 2.0f * held : 0.0f;
    }
  }
  return {weight * squared, weight / float(BATCH) * slope};
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) update_ppo(
    const float* obs, const float* action, const int64* choice, const float* log_prob,
    const float* value, const float* advantage, const float* returns, STORED_ALONE(actor),
    STORED_ALONE(critic), int64* count, uint64* rng, const double* adam_hyper,
    const double* rmsprop, const double* anneal, const double* clip_norm, const double* clip,
    const double* value_clip, const double* entropy, const double* value_weight,
    const double* normalise, float* scratch) {
  DYNAMIC_SHARED(bytes);
  __shared__ Pace paces[2][WINDOW];
  __shared__ float log_std[SPREADS], log_std_grad[SPREADS];
  float* const shared = reinterpret_cast<float*>(bytes);
  float* const x = PLACE(X);
  float* const acts = PLACE(ACTS);
  float* const spreads = PLACE(SPREAD);
  int* const order = reinterpret_cast<int*>(PLACE(ORDER));
  int* const others = reinterpret_cast<int*>(PLACE(OTHERS));
  int* const claims = reinterpret_cast<int*>(PLACE(CLAIMS));
  const Stored stored_actor = STORED_ALONE_AS(actor), stored_critic = STORED_ALONE_AS(critic);
  const Learner actor{PLACE(ACTOR_PARAMS), nullptr, PLACE(ACTOR_GRAD), MOMENT(ACTOR_M, actor_m),
                      MOMENT(ACTOR_V, actor_v)};
  const Learner critic{PLACE(CRITIC_PARAMS), nullptr, PLACE(CRITIC_GRAD),
                       MOMENT(CRITIC_M, critic_m), MOMENT(CRITIC_V, critic_v)};
  const double none = 0.0;
  const Rules rules = rules_of(adam_hyper, &none, &none, &none, &none);
  const int64 done = actor_steps[0], critic_done = critic_steps[0], counted = count[0];
  const uint64 base = stream(rng[0], rng[1]);
  const double share = anneal[0] > 0.0 ? max(1.0 - double(counted) / anneal[0], 0.0) : 1.0;
  const float actor_size = float(share * actor_lr[0]), critic_size = float(share * critic_lr[0]);
  const float decay = float(rmsprop[0]), fresh = float(1.0 - rmsprop[0]);
  const float inside = float(rmsprop[1]), limit = float(clip[0]), weight = float(entropy[0]);
  const bool own = ACT && threadIdx.x < ACT;  // this thread has a deviation
  float m = own ? actor_m[Actor::FLAT + threadIdx.x] : 0.0f;
  float v = own ? actor_v[Actor::FLAT + threadIdx.x] : 0.0f;
  zero(shared, SHARED_FLOATS);
  zero(scratch, SCRATCH_FLOATS);
  if (own) log_std[threadIdx.x] = actor_params[Actor::FLAT + threadIdx.x];
  __syncthreads();
  fetch<Actor>(actor, stored_actor);
  fetch<Critic>(critic, stored_critic);
  for (int r = threadIdx.x; r < ROLLOUT; r += THREADS) order[r] = r;
  __syncthreads();

  float actor_part = 0.0f, critic_part = 0.0f;
#pragma unroll 1
  for (int s = 0; s < STEPS; s++) {
    constexpr int MINIBATCHES = ROLLOUT / BATCH;
    if (MINIBATCHES > 1 && s % MINIBATCHES == 0)
      shuffle(base, s / MINIBATCHES, order, others, claims);
    if (s % WINDOW == 0) {
      pace(0, paces[0], done + s, share * actor_lr[0], adam_hyper);
      pace(1, paces[1], critic_done + s, share * critic_lr[0], adam_hyper);
    }
    const int* const chosen = order + s % MINIBATCHES * BATCH;
    float mean = 0.0f, scale = 1.0f;
    if (normalise[0] > 0.0 && BATCH > 1) {
      float sum = 0.0f, squared = 0.0f;
      for (int b = threadIdx.x; b < BATCH; b += THREADS) sum += advantage[chosen[b]];
      mean = block_sum(sum) / float(BATCH);
      for (int b = threadIdx.x; b < BATCH; b += THREADS) {
        const float off = advantage[chosen[b]] - mean;
        squared += off * off;
      }
      scale = 1.0f / (sqrtf(block_sum(squared) / float(BATCH - 1)) + NORMAL_EPS);
    }
    if (own) log_std_grad[threadIdx.x] = -weight;
    actor_part = critic_part = 0.0f;
#pragma unroll 1
    for (int first = 0; first < BATCH; first += ROWS) {
      const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
      const int row = b < rows ? chosen[first + b] : 0;
      gather<Actor::IN>(x, obs, chosen + first, rows);
      __syncthreads();
      Actor::forward(actor.params, x, acts);
      if (b < rows) {
        float* const z = Actor::outputs(acts) + b * pitch(Actor::OUT);
        const float gain = (advantage[row] - mean) * scale, old = log_prob[row];
        if constexpr (ACT > 0)
          actor_part += gaussian_loss(z, action + int64(row) * ACT, log_std, old, gain, limit,
                                      weight, spreads + b * ACT);
        else
          actor_part += softmax_loss(z, choice[row], old, gain, limit, weight);
      }
      __syncthreads();
      if constexpr (ACT > 0) {
#pragma unroll 1
        for (int c = threadIdx.x / 32; c < ACT; c += THREADS / 32) {
          float sum[1][1] = {};
          for (int r = threadIdx.x % 32; r < rows; r += 32) sum[0][0] += spreads[r * ACT + c];
          fold<32>(sum);
          if (threadIdx.x % 32 == 0) log_std_grad[c] += sum[0][0];
        }
      }
      Actor::backward<true, 0>(actor.params, x, acts, actor.grad, nullptr, rows, first > 0);
      Critic::forward(critic.params, x, acts);
      if (b < rows) {
        float& at = Critic::outputs(acts)[b * pitch(1)];
        const Slope found = value_loss(at, value[row], returns[row], float(value_clip[0]),
                                       float(value_weight[0]));
        critic_part += found.loss;
        at = found.d;
      }
      __syncthreads();
      Critic::backward<true, 0>(critic.params, x, acts, critic.grad, nullptr, rows, first > 0);
    }
    float factor = 1.0f;
    if (clip_norm[0] > 0.0) {
      float sum = squares<Actor>(actor.grad) + squares<Critic>(critic.grad);
      if (own) sum += log_std_grad[threadIdx.x] * log_std_grad[threadIdx.x];
      factor = clip_factor(clip_norm[0], block_sum(sum));
    }
    const Pace now = paces[0][s % WINDOW], critic_now = paces[1][s % WINDOW];
    const auto step = [&](const Pace& pace, float size, float g, float& m, float& v) {
      if (decay <= 0.0f) return adam(rules, pace, g, m, v);
      v = decay * v + fresh * g * g;
      return size * g / sqrtf(v + inside);
    };
    move<Actor>(actor, factor, 0.0f,
                [&](float g, float& m, float& v) { return step(now, actor_size, g, m, v); });
    move<Critic>(critic, factor, 0.0f, [&](float g, float& m, float& v) {
      return step(critic_now, critic_size, g, m, v);
    });
    if (own)
      log_std[threadIdx.x] -=
          step(now, actor_size, log_std_grad[threadIdx.x] * factor, m, v);
    __syncthreads();
  }
  const float actor_sum = block_sum(actor_part), critic_sum = block_sum(critic_part);
  put_back<Actor>(actor, stored_actor);
  put_back<Critic>(critic, stored_critic);
  if (own) {
    actor_params[Actor::FLAT + threadIdx.x] = log_std[threadIdx.x];
    actor_m[Actor::FLAT + threadIdx.x] = m;
    actor_v[Actor::FLAT + threadIdx.x] = v;
  }
  if (threadIdx.x == 0) {
    actor_loss[0] = actor_sum / float(BATCH), critic_loss[0] = critic_sum / float(BATCH);
    actor_steps[0] = done + STEPS;
    critic_steps[0] = critic_done + STEPS;
    count[0] = counted + STEPS;
    rng[1] += 1;
  }
}
