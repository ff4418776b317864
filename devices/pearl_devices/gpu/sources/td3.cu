// update.td3: all gradient steps of a firing, as pearl_devices.primitives.updates.td3 has them.
#include "critics.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) update_td3(
    GIVEN, STORED(actor), STORED(critic1), STORED(critic2), int64* count,
    const double* adam_hyper, const double* tau, const double* every, const double* clip_norm,
    const double* huber, const double* smoothing, uint64* rng, float* noise, float* scratch,
    int64 steps) {
  DYNAMIC_SHARED(bytes);
  __shared__ Pace paces[3][WINDOW];
  float* const shared = reinterpret_cast<float*>(bytes);
  const Batch batch = GIVEN_AS;
  const Pass pass = PASS;
  const Stored stored_actor = STORED_AS(actor);
  const Stored stored1 = STORED_AS(critic1), stored2 = STORED_AS(critic2);
  const Learner actor{PLACE(ACTOR_PARAMS), PLACE(ACTOR_TARGET), PLACE(ACTOR_GRAD),
                      MOMENT(ACTOR_M, actor_m), MOMENT(ACTOR_V, actor_v)};
  const Learner first_critic = TWIN(0, critic1), second_critic = TWIN(1, critic2);
  const Rules rules = rules_of(adam_hyper, tau, every, clip_norm, huber);
  const float deviation = float(smoothing[0]), limit = float(smoothing[1]);
  const int64 done = actor_steps[0], counted = count[0];
  const int64 done1 = critic1_steps[0], done2 = critic2_steps[0];
  draw_noise<1>(rng, noise, int(steps));
  zero(shared, SHARED_FLOATS);
  zero(scratch, SCRATCH_FLOATS);
  __syncthreads();
  fetch<Actor>(actor, stored_actor);
  fetch<Critic>(first_critic, stored1);
  fetch<Critic>(second_critic, stored2);

  int moved = 0, paced = 0;  // steps of the actor in this launch, and how many when last paced
#pragma unroll 1
  for (int s = 0; s < int(steps); s++) {
    if (s % WINDOW == 0) {
      paced = moved;
      pace(0, paces[0], done + moved, actor_lr[0], adam_hyper);
      pace(1, paces[1], done1 + s, critic1_lr[0], adam_hyper);
      pace(2, paces[2], done2 + s, critic2_lr[0], adam_hyper);
    }
    float loss[2] = {};
#pragma unroll 1
    for (int first = 0; first < BATCH; first += ROWS) {
      const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
      const int64 start = int64(s) * BATCH + first;
      look(pass, next_obs + start * OBS, rows);
      __syncthreads();
      Actor::forward(actor.target, pass.x, pass.actor_acts);
      each_action(rows, [&](int row, int c) {
        const float half = half_range(batch, c);
        const float a = low[c] + half + half * tanhf(actor_row(pass, row)[c]);
        const float drawn = deviation * noise[start * ACT + row * ACT + c];
        const float moved_by = half * min(max(drawn, -limit), limit);
        pass.joined[row * pitch(OBS + ACT) + OBS + c] = min(max(a + moved_by, low[c]), high[c]);
      });
      __syncthreads();
      float wanted = least_value(first_critic.target, second_critic.target, pass);
      if (b < rows) wanted = reward[start + b] + discount[start + b] * wanted;
      look_back(pass, batch, start, rows);
      const float error = regress_both(first_critic, second_critic, pass, wanted,
                                       b < rows ? weight[start + b] : 0.0f, rules.huber, rows,
                                       first > 0, loss);
      if (b < rows) td[start + b] = error;
    }
    const int64 now = counted + s + 1;
    const bool late = now % POLICY_DELAY == 0;
    const float share = rules.every > 0.0 || late ? target_share(rules, now) : 0.0f;
    descend_both(first_critic, second_critic, rules, paces[1][s % WINDOW], paces[2][s % WINDOW],
                 share);
    if (late) {
      const float part = ascend(actor, first_critic.params, batch, pass, s);
      descend<Actor>(actor, rules, paces[0][moved - paced], share);
      moved++;
      const float sum = block_sum(part);
      if (threadIdx.x == 0) actor_loss[0] = sum;
    } else if (share > 0.0f) {
      follow<Actor>(actor, share);
    }
    if (s + 1 == int(steps)) {
      const float sum1 = block_sum(loss[0]), sum2 = block_sum(loss[1]);
      if (threadIdx.x == 0) critic1_loss[0] = sum1, critic2_loss[0] = sum2;
    }
  }
  put_back<Actor>(actor, stored_actor);
  put_back<Critic>(first_critic, stored1);
  put_back<Critic>(second_critic, stored2);
  if (threadIdx.x == 0) {
    actor_steps[0] = done + moved;
    critic1_steps[0] = done1 + steps;
    critic2_steps[0] = done2 + steps;
    count[0] = counted + steps;
    rng[1] += uint64(steps);
  }
}
