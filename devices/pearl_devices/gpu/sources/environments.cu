// Vector steps of gymnasium's classic control, as pearl_devices.primitives.envs computes them: same
// arithmetic, order of operations and random numbers. One thread moves one environment.
//
// A firing is `move` and then `finish`, or `step`, both in one launch, where one block has all
// environments. What a firing reads and also changes is changed by `finish` alone; `move` notes it
// as it was. Episodes that end are counted by block, so that `finish` knows the place of each in the
// ring: that of its environment among those that end.
//
// ENVIRONMENT: which, see below. OBS: its observation's components. LIMIT: steps of an episode.
// NORMALISE_OBS, NORMALISE_REWARD: 0 or 1. EPISODES: places of the ring. STATE: columns of a state.
#include "blocks.cuh"

#define CARTPOLE 0
#define PENDULUM 1
#define ACROBOT 2
#define MOUNTAIN_CAR 3
#define MOUNTAIN_CAR_CONTINUOUS 4

#if ENVIRONMENT == PENDULUM || ENVIRONMENT == MOUNTAIN_CAR_CONTINUOUS
typedef float Action;
#else
typedef int64 Action;
#endif

constexpr double PI = 3.141592653589793, TWO_PI = 2.0 * PI;

#if ENVIRONMENT == CARTPOLE
constexpr int NUMBERS = 4;
constexpr double GRAVITY = 9.8, CART_KG = 1.0, POLE_KG = 0.1, HALF_POLE_M = 0.5, FORCE_N = 10.0;
constexpr double STEP_S = 0.02, TOTAL_KG = POLE_KG + CART_KG, POLE_KG_M = POLE_KG * HALF_POLE_M;
constexpr double ANGLE_LIMIT = 12 * 2 * PI / 360, TRACK_LIMIT_M = 2.4;

__device__ __forceinline__ void reset(double* s, uint64 base, int64 n) {
  for (int j = 0; j < 4; j++) s[j] = -0.05 + 0.1 * uniform(base, 4 * n + j);
}
__device__ __forceinline__ bool move_on(double* s, Action action, double& reward) {
  const double x_dot = s[1], angle_dot = s[3], force = action == 1 ? FORCE_N : -FORCE_N;
  const double cosine = cos(s[2]), sine = sin(s[2]);
  const double temp = (force + POLE_KG_M * (angle_dot * angle_dot) * sine) / TOTAL_KG;
  const double angle_acc = (GRAVITY * sine - cosine * temp) /
                           (HALF_POLE_M * (4.0 / 3.0 - POLE_KG * (cosine * cosine) / TOTAL_KG));
  const double x_acc = temp - POLE_KG_M * angle_acc * cosine / TOTAL_KG;
  s[0] = s[0] + STEP_S * x_dot;
  s[1] = x_dot + STEP_S * x_acc;
  s[2] = s[2] + STEP_S * angle_dot;
  s[3] = angle_dot + STEP_S * angle_acc;
  reward = 1.0;
  return fabs(s[0]) > TRACK_LIMIT_M || fabs(s[2]) > ANGLE_LIMIT;
}
__device__ __forceinline__ void observe(const double* s, float* out) {
  for (int j = 0; j < 4; j++) out[j] = float(s[j]);
}

#elif ENVIRONMENT == PENDULUM
constexpr int NUMBERS = 2;
constexpr double GRAVITY = 10.0, STEP_S = 0.05, SPEED_LIMIT = 8.0;
constexpr float TORQUE_LIMIT = 2.0f;

__device__ __forceinline__ void reset(double* s, uint64 base, int64 n) {
  s[0] = -PI + TWO_PI * uniform(base, 2 * n);
  s[1] = -1.0 + 2.0 * uniform(base, 2 * n + 1);
}
// Python's remainder: of the divisor's sign.
__device__ __forceinline__ double remainder_of(double x, double by) {
  const double rest = fmod(x, by);
  return rest < 0.0 ? rest + by : rest;
}
__device__ __forceinline__ bool move_on(double* s, Action torque, double& reward) {
  const float u = within(torque, -TORQUE_LIMIT, TORQUE_LIMIT);
  const double upright = remainder_of(s[0] + PI, TWO_PI) - PI;
  const double cost = upright * upright + 0.1 * (s[1] * s[1]) + double(0.001f * (u * u));
  const double push = double(3.0f * u);
  const double speed = s[1] + (3 * GRAVITY / 2.0 * sin(s[0]) + push) * STEP_S;
  s[1] = within(speed, -SPEED_LIMIT, SPEED_LIMIT);
  s[0] = s[0] + s[1] * STEP_S;
  reward = -cost;
  return false;
}
__device__ __forceinline__ void observe(const double* s, float* out) {
  out[0] = float(cos(s[0]));
  out[1] = float(sin(s[0]));
  out[2] = float(s[1]);
}

#elif ENVIRONMENT == ACROBOT
constexpr int NUMBERS = 4;
constexpr double GRAVITY = 9.8, STEP_S = 0.2, SPEED_1 = 4 * PI, SPEED_2 = 9 * PI;

__device__ __forceinline__ void reset(double* s, uint64 base, int64 n) {
  for (int j = 0; j < 4; j++)
    s[j] = double(float(-0.1 + (0.1 - -0.1) * uniform(base, 4 * n + j)));
}
// The two angular accelerations.
__device__ void slope(double one, double two, double speed_one, double speed_two, double torque,
                      double& first, double& second) {
  const double cosine = cos(two), sine = sin(two);
  const double d1 = 0.25 + (1.25 + cosine) + 1.0 + 1.0, d2 = (0.25 + 0.5 * cosine) + 1.0;
  const double phi2 = 0.5 * GRAVITY * cos(one + two - PI / 2.0);
  const double phi1 = -0.5 * (speed_two * speed_two) * sine - speed_two * speed_one * sine +
                      1.5 * GRAVITY * cos(one - PI / 2) + phi2;
  second = (torque + d2 / d1 * phi1 - 0.5 * (speed_one * speed_one) * sine - phi2) /
           (0.25 + 1.0 - d2 * d2 / d1);
  first = -(d2 * second + phi1) / d1;
}
__device__ __forceinline__ double wrap(double angle) {
  while (angle > PI) angle = angle - TWO_PI;
  while (angle < -PI) angle = angle + TWO_PI;
  return angle;
}
// Runge and Kutta's step of fourth order.
__device__ __forceinline__ bool move_on(double* s, Action action, double& reward) {
  const double torque = double(action) - 1.0, h = STEP_S / 2.0, sixth = STEP_S / 6.0;
  const double a = s[0], b = s[1], c = s[2], d = s[3];
  double at_a = a, at_b = b, at_c = c, at_d = d, sum_a = c, sum_b = d, sum_c, sum_d;
#pragma unroll 1
  for (int stage = 1; stage < 5; stage++) {
    double change_c, change_d;
    slope(at_a, at_b, at_c, at_d, torque, change_c, change_d);
    const double ahead = stage < 3 ? h : STEP_S;
    // The sums rise from left to right: k1 + 2 k2 + 2 k3 + k4.
    if (stage == 1) {
      sum_c = change_c;
      sum_d = change_d;
    } else {
      const double share = stage < 4 ? 2.0 : 1.0;
      sum_a = sum_a + share * at_c;
      sum_b = sum_b + share * at_d;
      sum_c = sum_c + share * change_c;
      sum_d = sum_d + share * change_d;
    }
    const double speed_c = at_c, speed_d = at_d;
    at_a = a + ahead * speed_c;
    at_b = b + ahead * speed_d;
    at_c = c + ahead * change_c;
    at_d = d + ahead * change_d;
  }
  s[0] = wrap(a + sixth * sum_a);
  s[1] = wrap(b + sixth * sum_b);
  s[2] = within(c + sixth * sum_c, -SPEED_1, SPEED_1);
  s[3] = within(d + sixth * sum_d, -SPEED_2, SPEED_2);
  const bool done = -cos(s[0]) - cos(s[1] + s[0]) > 1.0;
  reward = done ? 0.0 : -1.0;
  return done;
}
__device__ __forceinline__ void observe(const double* s, float* out) {
  out[0] = float(cos(s[0]));
  out[1] = float(sin(s[0]));
  out[2] = float(cos(s[1]));
  out[3] = float(sin(s[1]));
  out[4] = float(s[2]);
  out[5] = float(s[3]);
}

#else  // both cars; their state: position, velocity, and 1 once a step is done
constexpr int NUMBERS = 3;
constexpr double LEFT = -1.2, RIGHT = 0.6, SPEED = 0.07, GRAVITY = 0.0025;
constexpr double FORCE = 0.001, POWER = 0.0015, GOAL = 0.5, GOAL_CONTINUOUS = 0.45;

__device__ __forceinline__ void reset(double* s, uint64 base, int64 n) {
  s[0] = -0.6 + (-0.4 - -0.6) * uniform(base, n);
  s[1] = 0.0;
  s[2] = 0.0;
}
__device__ __forceinline__ void observe(const double* s, float* out) {
  out[0] = float(s[0]);
  out[1] = float(s[1]);
}
// A velocity changed, a position moved by it; T: double or float.
template <class T>
__device__ __forceinline__ bool roll(T& position, T& velocity, T change, T goal) {
  velocity = within(velocity + change, -T(SPEED), T(SPEED));
  position = within(position + velocity, T(LEFT), T(RIGHT));
  if (position == T(LEFT) && velocity < T(0)) velocity = T(0);
  return position >= goal && velocity >= T(0);
}
#if ENVIRONMENT == MOUNTAIN_CAR
__device__ __forceinline__ bool move_on(double* s, Action action, double& reward) {
  const double change = double(action - 1) * FORCE + cos(3 * s[0]) * (-GRAVITY);
  s[2] = 1.0;
  reward = -1.0;
  return roll(s[0], s[1], change, GOAL);
}
#else
// gymnasium works in float32 from the second step of an episode on. A force within its bounds stays
// a float32 and its product too; a bound is a Python float.
__device__ __forceinline__ bool move_on(double* s, Action action, double& reward) {
  const bool inside = fabsf(action) <= 1.0f;
  const float push = within(action, -1.0f, 1.0f);
  bool done;
  if (s[2] == 0.0) {
    const double pull = GRAVITY * cos(3 * s[0]);
    const double change = inside ? double(push * float(POWER) - float(pull)) : push * POWER - pull;
    done = roll(s[0], s[1], change, GOAL_CONTINUOUS);
    s[0] = double(float(s[0]));
    s[1] = double(float(s[1]));
  } else {
    float position = float(s[0]), velocity = float(s[1]);
    const double pull = GRAVITY * cos(double(3.0f * position));
    const float change = inside ? push * float(POWER) - float(pull) : float(push * POWER - pull);
    done = roll(position, velocity, change, float(GOAL_CONTINUOUS));
    s[0] = position;
    s[1] = velocity;
  }
  s[2] = 1.0;
  const double spent = action;
  reward = (done ? 100.0 : 0.0) - spent * spent * 0.1;
  return done;
}
#endif
#endif

// What is normalised, column by column: successors, first observations of new episodes, the
// discounted return.
constexpr int OBS_COLUMNS = NORMALISE_OBS ? OBS : 0;
constexpr int COLUMNS = 2 * OBS_COLUMNS + NORMALISE_REWARD;
constexpr int PLACES = COLUMNS ? COLUMNS : 1;

// before: normalise.obs and its count, normalise.reward and its count, as they were; 2·OBS + 4.
// sums: of each column and block the mean and the squared distances from it, added up.
#define ARGUMENTS                                                                                \
  uint64 *rng, const Action *action, float *obs, double *state, int64 *elapsed,                  \
      double *env_return, double *returns, int64 *lengths, int64 *count, float *s_obs,           \
      Action *s_action, float *s_reward, float *s_next, unsigned char *s_terminated,             \
      unsigned char *s_truncated, double *obs_stats, double *obs_count, double *reward_stats,    \
      double *reward_count, double *discounted, const double *options, int64 *ended,             \
      double *before, double *sums, int64 envs
#define GIVEN                                                                                    \
  rng, action, obs, state, elapsed, env_return, returns, lengths, count, s_obs, s_action,        \
      s_reward, s_next, s_terminated, s_truncated, obs_stats, obs_count, reward_stats,           \
      reward_count, discounted, options, ended, before, sums, envs

__device__ __forceinline__ void load(const double* state, int64 n, double* s) {
#pragma unroll
  for (int j = 0; j < NUMBERS; j++) s[j] = state[n * STATE + j];
}
__device__ __forceinline__ void store(double* state, int64 n, const double* s) {
#pragma unroll
  for (int j = 0; j < NUMBERS; j++) state[n * STATE + j] = s[j];
}

// Mean of a column over the block's threads that take part, and squared distances, to `sums`.
__device__ __forceinline__ void add_up(double value, bool takes_part, int64 rows, int column,
                                       double* sums) {
  const double mean = rows ? block_sum(takes_part ? value : 0.0) / double(rows) : 0.0;
  const double away = takes_part ? value - mean : 0.0;
  const double squares = rows ? block_sum(away * away) : 0.0;
  if (threadIdx.x == 0) {
    double* at = sums + 2 * (int64(column) * gridDim.x + blockIdx.x);
    at[0] = mean;
    at[1] = squares;
  }
}

// Rows of a block: all of its environments, or those whose episode ended.
__device__ __forceinline__ int64 rows_of(int64 block, int64 envs) {
  const int64 left = envs - block * blockDim.x;
  return left < blockDim.x ? left : blockDim.x;
}

// stats: (mean, variance) of `count` values, joined with a column's rows of all blocks (Chan, Golub
// and LeVeque 1983). Every block computes the same. ended: null for all rows.
__device__ void join(double* stats, double count, const double* sums, int column,
                     const int64* ended, int64 rows, int64 envs) {
  const double* at = sums + 2 * int64(column) * gridDim.x;
  double sum = 0.0, squares = 0.0;
  for (int64 b = threadIdx.x; b < gridDim.x; b += blockDim.x)
    sum += double(ended ? ended[b] : rows_of(b, envs)) * at[2 * b];
  const double mean = block_sum(sum) / double(rows);
  for (int64 b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
    const double away = at[2 * b] - mean;
    squares += at[2 * b + 1] + double(ended ? ended[b] : rows_of(b, envs)) * away * away;
  }
  const double variance = block_sum(squares) / double(rows);
  const double total = count + double(rows), delta = mean - stats[0];
  const double moved =
      stats[1] * count + variance * double(rows) + delta * delta * count * double(rows) / total;
  stats[0] += delta * double(rows) / total;
  stats[1] = moved / total;
}

__device__ __forceinline__ double clipped(double value, double limit) {
  return limit > 0.0 ? within(value, -limit, limit) : value;
}
__device__ __forceinline__ float scaled(float value, const double* stats, const double* options) {
  return float(clipped((double(value) - stats[0]) / sqrt(stats[1] + options[1]), options[0]));
}

__device__ __forceinline__ void move_all(ARGUMENTS) {
  const int64 n = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool there = n < envs;
  const uint64 base = stream(rng[0], rng[1] + 1);
  bool over = false, terminated = false;
  float next[OBS], now[OBS];
  double after = 0.0;
  if (there) {
    double s[NUMBERS], reward;
    load(state, n, s);
    for (int c = 0; c < OBS; c++) s_obs[n * OBS + c] = obs[n * OBS + c];
    s_action[n] = action[n];
    terminated = move_on(s, action[n], reward);
    observe(s, next);
    const int64 steps = elapsed[n] + 1;
    const bool late = steps >= LIMIT;
    over = terminated || late;
    elapsed[n] = steps;
    env_return[n] += reward;
    s_reward[n] = float(reward);
    s_terminated[n] = terminated;
    s_truncated[n] = late;
    if (over) reset(s, base, n);
    observe(s, now);
    store(state, n, s);
    for (int c = 0; c < OBS; c++) {
      s_next[n * OBS + c] = next[c];
      obs[n * OBS + c] = now[c];
    }
    if (NORMALISE_REWARD) {
      after = (terminated ? 0.0 : options[2] * discounted[n]) + double(float(reward));
      discounted[n] = after;
    }
  }
  const int64 mine = block_sum(int64(over));
  if (threadIdx.x == 0) {
    ended[blockIdx.x] = mine;
    if (blockIdx.x == 0) ended[gridDim.x] = count[0];
  }
  if (COLUMNS == 0) return;
  const int64 rows = rows_of(blockIdx.x, envs);
#pragma unroll
  for (int c = 0; c < OBS_COLUMNS; c++) {
    add_up(next[c], there, rows, c, sums);
    add_up(now[c], over, mine, OBS_COLUMNS + c, sums);
  }
  if (NORMALISE_REWARD) add_up(after, there, rows, 2 * OBS_COLUMNS, sums);
  if (blockIdx.x == 0) {
    const int c = threadIdx.x;
    if (c < 2 * OBS_COLUMNS) before[c] = obs_stats[c];
    if (OBS_COLUMNS && c == 2 * OBS) before[c] = obs_count[0];
    if (NORMALISE_REWARD && c < 2) before[2 * OBS + 1 + c] = reward_stats[c];
    if (NORMALISE_REWARD && c == 2) before[2 * OBS + 3] = reward_count[0];
  }
}

// Episodes that ended: into the ring, in the order of environments.
__device__ __forceinline__ void note_episodes(bool over, int64 n, double* env_return,
                                              int64* elapsed, double* returns, int64* lengths,
                                              int64* count, const int64* ended, int64& all) {
  int64 earlier = 0, sum = 0;
  for (int64 b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
    sum += ended[b];
    if (b < blockIdx.x) earlier += ended[b];
  }
  all = block_sum(sum);
  const int64 place = block_sum(earlier) + rank_in_block(over), first = ended[gridDim.x];
  if (over) {
    if (place >= all - EPISODES) {  // else another of this firing would follow into its place
      const int64 slot = (first + place) % EPISODES;
      returns[slot] = env_return[n];
      lengths[slot] = elapsed[n];
    }
    env_return[n] = 0.0;
    elapsed[n] = 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) count[0] = first + all;
}

__device__ __forceinline__ void finish_all(ARGUMENTS) {
  const int64 n = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool there = n < envs, over = there && (s_terminated[n] || s_truncated[n]);
  const bool first = blockIdx.x == 0 && threadIdx.x == 0;
  int64 all;
  note_episodes(over, n, env_return, elapsed, returns, lengths, count, ended, all);
  if (first) rng[1] += 1;
  for (int c = 0; c < OBS_COLUMNS; c++) {
    double stats[2] = {before[c], before[OBS + c]};
    double seen = before[2 * OBS];
    join(stats, seen, sums, c, nullptr, envs, envs);
    seen += double(envs);
    float next = 0.0f;
    if (there) s_next[n * OBS + c] = next = scaled(s_next[n * OBS + c], stats, options);
    if (all) {
      join(stats, seen, sums, OBS_COLUMNS + c, ended, all, envs);
      seen += double(all);
    }
    if (there) obs[n * OBS + c] = over ? scaled(obs[n * OBS + c], stats, options) : next;
    if (first) {
      obs_stats[c] = stats[0];
      obs_stats[OBS + c] = stats[1];
      obs_count[0] = seen;
    }
  }
  if (NORMALISE_REWARD) {
    const double seen = before[2 * OBS + 3];
    double stats[2] = {before[2 * OBS + 1], before[2 * OBS + 2]};
    join(stats, seen, sums, 2 * OBS_COLUMNS, nullptr, envs, envs);
    if (there)
      s_reward[n] = float(clipped(double(s_reward[n]) / sqrt(stats[1] + options[1]), options[0]));
    if (first) {
      reward_stats[0] = stats[0];
      reward_stats[1] = stats[1];
      reward_count[0] = seen + double(envs);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) move(ARGUMENTS) { move_all(GIVEN); }

extern "C" __global__ void __launch_bounds__(256) finish(ARGUMENTS) { finish_all(GIVEN); }

extern "C" __global__ void __launch_bounds__(256) step(ARGUMENTS) {
  move_all(GIVEN);
  __syncthreads();
  finish_all(GIVEN);
}

// First states, unless environments have run before; then `first` scales the first observations.
extern "C" __global__ void __launch_bounds__(256) start(ARGUMENTS) {
  if (rng[1] != 0) return;
  const int64 n = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  const bool there = n < envs;
  float now[OBS];
  if (there) {
    double s[NUMBERS];
    reset(s, stream(rng[0], 0), n);
    observe(s, now);
    store(state, n, s);
    for (int c = 0; c < OBS; c++) obs[n * OBS + c] = now[c];
    elapsed[n] = 0;
    env_return[n] = 0.0;
  }
#pragma unroll
  for (int c = 0; c < OBS_COLUMNS; c++) {
    add_up(now[c], there, rows_of(blockIdx.x, envs), c, sums);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      before[c] = obs_stats[c];
      before[OBS + c] = obs_stats[OBS + c];
      before[2 * OBS] = obs_count[0];
    }
  }
}

extern "C" __global__ void __launch_bounds__(256) first(ARGUMENTS) {
  if (rng[1] != 0) return;
  const int64 n = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int c = 0; c < OBS_COLUMNS; c++) {
    double stats[2] = {before[c], before[OBS + c]};
    join(stats, before[2 * OBS], sums, c, nullptr, envs, envs);
    if (n < envs) obs[n * OBS + c] = scaled(obs[n * OBS + c], stats, options);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      obs_stats[c] = stats[0];
      obs_stats[OBS + c] = stats[1];
      obs_count[0] = before[2 * OBS] + double(envs);
    }
  }
}
