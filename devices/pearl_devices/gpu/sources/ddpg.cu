// update.ddpg: all gradient steps of a firing, as pearl_devices.primitives.updates.ddpg has them.
#include "critics.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1) update_ddpg(
    GIVEN, STORED(actor), STORED(critic), int64* count, const double* adam_hyper,
    const double* tau, const double* every, const double* clip_norm, const double* huber,
    float* scratch, int64 steps) {
  DYNAMIC_SHARED(bytes);
  __shared__ Pace paces[2][WINDOW];
  float* const shared = reinterpret_cast<float*>(bytes);
  const Batch batch = GIVEN_AS;
  const Pass pass = PASS;
  const Stored stored_actor = STORED_AS(actor), stored_critic = STORED_AS(critic);
  const Learner actor{PLACE(ACTOR_PARAMS), PLACE(ACTOR_TARGET), PLACE(ACTOR_GRAD),
                      MOMENT(ACTOR_M, actor_m), MOMENT(ACTOR_V, actor_v)};
  const Learner critic{PLACE(CRITIC_PARAMS), PLACE(CRITIC_TARGET), PLACE(CRITIC_GRAD),
                       MOMENT(CRITIC_M, critic_m), MOMENT(CRITIC_V, critic_v)};
  const Rules rules = rules_of(adam_hyper, tau, every, clip_norm, huber);
  const int64 done = actor_steps[0], critic_done = critic_steps[0], counted = count[0];
  zero(shared, SHARED_FLOATS);
  zero(scratch, SCRATCH_FLOATS);
  __syncthreads();
  fetch<Actor>(actor, stored_actor);
  fetch<Critic>(critic, stored_critic);

#pragma unroll 1
  for (int s = 0; s < int(steps); s++) {
    if (s % WINDOW == 0) {
      pace(0, paces[0], done + s, actor_lr[0], adam_hyper);
      pace(1, paces[1], critic_done + s, critic_lr[0], adam_hyper);
    }
    float loss = 0.0f;
#pragma unroll 1
    for (int first = 0; first < BATCH; first += ROWS) {
      const int rows = min(ROWS, BATCH - first), b = threadIdx.x;
      const int64 start = int64(s) * BATCH + first;
      look(pass, next_obs + start * OBS, rows);
      __syncthreads();
      Actor::forward(actor.target, pass.x, pass.actor_acts);
      each_action(rows, [&](int row, int c) {
        const float half = half_range(batch, c);
        pass.joined[row * pitch(OBS + ACT) + OBS + c] =
            low[c] + half + half * tanhf(actor_row(pass, row)[c]);
      });
      __syncthreads();
      Critic::forward(critic.target, pass.joined, pass.critic_acts);
      float wanted = 0.0f;
      if (b < rows)
        wanted = reward[start + b] + discount[start + b] * value_of(pass.critic_acts, b);
      look_back(pass, batch, start, rows);
      const float error = regress(critic, pass, wanted, b < rows ? weight[start + b] : 0.0f,
                                  rules.huber, rows, first > 0, loss);
      if (b < rows) td[start + b] = error;
    }
    const float share = target_share(rules, counted + s + 1);
    descend<Critic>(critic, rules, paces[1][s % WINDOW], share);
    float actor_part = ascend(actor, critic.params, batch, pass, s);
    descend<Actor>(actor, rules, paces[0][s % WINDOW], share);
    if (s + 1 == int(steps)) {
      loss = block_sum(loss);
      actor_part = block_sum(actor_part);
      if (threadIdx.x == 0) critic_loss[0] = loss, actor_loss[0] = actor_part;
    }
  }
  put_back<Actor>(actor, stored_actor);
  put_back<Critic>(critic, stored_critic);
  if (threadIdx.x == 0) {
    actor_steps[0] = done + steps;
    critic_steps[0] = critic_done + steps;
    count[0] = counted + steps;
  }
}
