// Dense networks in one block of THREADS threads: forward, backward, clipping, Adam and targets, as
// pearl_devices.primitives.math.nets has them.
//
// A pass runs ROWS rows of a batch, a multiple of four. Every matrix lies row by row, its rows
// `pitch` floats apart: zeros fill them up to fours, for loads of float4, and an odd number of
// fours keeps the loads of neighbouring rows off each other's banks. The weights of a layer have
// up4(in) rows, the biases follow as one more. Zeros in the padding of weights and inputs keep all
// other padding 0. Each sum has one order, whatever order the threads run in, and nothing is atomic.
#pragma once
#include "blocks.cuh"

constexpr unsigned ALL = 0xffffffffu;
constexpr float CLIP_EPS = 1e-6f;
constexpr int WINDOW = 64;  // gradient steps whose constants are computed at once

__host__ __device__ constexpr int over(int n, int by) { return (n + by - 1) / by; }
__host__ __device__ constexpr int up4(int n) { return over(n, 4) * 4; }
__host__ __device__ constexpr int pitch(int width) {
  return up4(width) + (up4(width) / 4 % 2 ? 0 : 4);
}

// A thread's tile of a product, and how many neighbouring lanes share the sums of one.
struct Tiling {
  int rows, columns, split;
};
enum Form { AFFINE, THROUGH, OUTER };

__host__ __device__ constexpr int loads(int numbers) { return numbers == 4 ? 1 : numbers; }

// The tiling of least work for the busiest thread, in instructions; a load of four counts as two
// for the banks. exact: no column beyond the last may be computed.
__host__ __device__ constexpr Tiling tiling(Form form, int rows, int columns, int inner,
                                            bool exact = false) {
  Tiling best{1, 1, 1};
  long least = 0;
  for (int r = 1; r <= 4; r *= 2)
    for (int c = 1; c <= 4; c *= 2)
      for (int split = 1, folds = 0; split <= 32; split *= 2, folds++) {
        if (exact && columns % c) continue;
        const int down = r == 1 ? rows : up4(rows) / r;
        const int across = c == 1 ? columns : exact ? columns / c : up4(columns) / c;
        const long rounds = over(down * across * split, THREADS);
        const int steps = over(form == OUTER ? inner : over(inner, 4), split);
        const int each = form == OUTER    ? r * c + 2 * (loads(r) + loads(c))
                         : form == AFFINE ? 4 * r * c + 2 * (r + 4 * loads(c))
                                          : 4 * r * c + 2 * (r + c);
        const long work = rounds * (steps * (each + 4) + folds * r * c * 3 + r * c + 16);
        if (!least || work < least) {
          least = work;
          best = {r, c, split};
        }
      }
  return best;
}

template <int N>
__device__ __forceinline__ void load(float* to, const float* from) {
  if constexpr (N == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else {
#pragma unroll
    for (int n = 0; n < N; n++) to[n] = from[n];
  }
}

// Adds what SPLIT neighbouring lanes have, in each of them.
template <int SPLIT, int R, int C>
__device__ __forceinline__ void fold(float (&sum)[R][C]) {
#pragma unroll
  for (int apart = SPLIT / 2; apart; apart /= 2)
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int c = 0; c < C; c++) sum[r][c] += __shfl_xor_sync(ALL, sum[r][c], apart);
}

enum Finish { LINEAR, RELU, TANH };

// out (ROWS, OUT) = x (ROWS, IN) · weights (IN, OUT) + bias, finished.
template <int IN, int OUT, Finish FINISH>
__device__ __forceinline__ void affine(const float* x, const float* weights, float* out) {
  constexpr Tiling T = tiling(AFFINE, ROWS, OUT, IN);
  constexpr int R = T.rows, C = T.columns, SPLIT = T.split;
  constexpr int DOWN = ROWS / R, ACROSS = C == 1 ? OUT : up4(OUT) / C;
  const float* const bias = weights + up4(IN) * pitch(OUT);
  const int part = threadIdx.x % SPLIT;
#pragma unroll 1
  for (int base = 0; base < DOWN * ACROSS; base += THREADS / SPLIT) {
    const int tile = base + threadIdx.x / SPLIT, row = tile / ACROSS, first = tile % ACROSS * C;
    const bool mine = tile < DOWN * ACROSS;
    float sum[R][C] = {};
    if (mine) {
#pragma unroll 2
      for (int k = 4 * part; k < up4(IN); k += 4 * SPLIT) {
        float a[R][4];
#pragma unroll
        for (int r = 0; r < R; r++) load<4>(a[r], x + (row + r * DOWN) * pitch(IN) + k);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float b[C];
          load<C>(b, weights + (k + i) * pitch(OUT) + first);
#pragma unroll
          for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < C; c++) sum[r][c] += a[r][i] * b[c];
        }
      }
    }
    fold<SPLIT>(sum);
    if (mine && part == 0)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
          const float z = sum[r][c] + bias[first + c];
          out[(row + r * DOWN) * pitch(OUT) + first + c] =
              FINISH == TANH ? bend(z) : FINISH == RELU && z < 0.0f ? 0.0f : z;
        }
  }
}

// below (ROWS, COLUMNS) = d (ROWS, OUT) · weights (COLUMNS, OUT) transposed, times the derivative
// of the function whose value `below` holds before.
template <int COLUMNS, int OUT, Finish FINISH>
__device__ __forceinline__ void through(const float* d, const float* weights, float* below) {
  constexpr Tiling T = tiling(THROUGH, ROWS, COLUMNS, OUT, FINISH == LINEAR);
  constexpr int R = T.rows, C = T.columns, SPLIT = T.split;
  constexpr int DOWN = ROWS / R, WIDE = (FINISH == LINEAR || C == 1 ? COLUMNS : up4(COLUMNS)) / C;
  const int part = threadIdx.x % SPLIT;
#pragma unroll 1
  for (int base = 0; base < DOWN * WIDE; base += THREADS / SPLIT) {
    const int tile = base + threadIdx.x / SPLIT, row = tile / WIDE, column = tile % WIDE;
    const bool mine = tile < DOWN * WIDE;
    float sum[R][C] = {};
    if (mine) {
#pragma unroll 2
      for (int k = 4 * part; k < up4(OUT); k += 4 * SPLIT) {
        float a[R][4];
#pragma unroll
        for (int r = 0; r < R; r++) load<4>(a[r], d + (row + r * DOWN) * pitch(OUT) + k);
#pragma unroll
        for (int c = 0; c < C; c++) {
          float b[4];
          load<4>(b, weights + (column + c * WIDE) * pitch(OUT) + k);
#pragma unroll
          for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[r][c] += a[r][i] * b[i];
        }
      }
    }
    fold<SPLIT>(sum);
    if (mine && part == 0)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
          float& at = below[(row + r * DOWN) * pitch(COLUMNS) + column + c * WIDE];
          if constexpr (FINISH == TANH) at = sum[r][c] * (1.0f - at * at);
          else if constexpr (FINISH == RELU) at = at <= 0.0f ? 0.0f : sum[r][c];
          else at = sum[r][c];
        }
  }
}

// grad (IN + bias, OUT) = or += the sums over rows of a (rows, IN) times d (rows, OUT).
template <int IN, int OUT>
__device__ __forceinline__ void outer(const float* a, const float* d, float* grad, int rows,
                                      bool more) {
  constexpr Tiling T = tiling(OUTER, IN, OUT, ROWS);
  constexpr int R = T.rows, C = T.columns, SPLIT = T.split;
  constexpr int DOWN = R == 1 ? IN : up4(IN) / R, ACROSS = C == 1 ? OUT : up4(OUT) / C;
  const int part = threadIdx.x % SPLIT;
#pragma unroll 1
  for (int base = 0; base < DOWN * ACROSS; base += THREADS / SPLIT) {
    const int tile = base + threadIdx.x / SPLIT, top = tile / ACROSS * R, left = tile % ACROSS * C;
    const bool mine = tile < DOWN * ACROSS;
    float sum[R][C] = {};
    if (mine) {
#pragma unroll 2
      for (int k = part; k < rows; k += SPLIT) {
        float x[R], y[C];
        load<R>(x, a + k * pitch(IN) + top);
        load<C>(y, d + k * pitch(OUT) + left);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
          for (int c = 0; c < C; c++) sum[r][c] += x[r] * y[c];
      }
    }
    fold<SPLIT>(sum);
    if (mine && part == 0)
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
          float& at = grad[(top + r) * pitch(OUT) + left + c];
          at = more ? at + sum[r][c] : sum[r][c];
        }
  }
  constexpr int SHARERS = tiling(OUTER, 1, OUT, ROWS).split;
  const int share = threadIdx.x % SHARERS;
#pragma unroll 1
  for (int base = 0; base < OUT; base += THREADS / SHARERS) {
    const int column = base + threadIdx.x / SHARERS;
    float sum[1][1] = {};
    if (column < OUT)
#pragma unroll 4
      for (int k = share; k < rows; k += SHARERS) sum[0][0] += d[k * pitch(OUT) + column];
    fold<SHARERS>(sum);
    if (column < OUT && share == 0) {
      float& at = grad[up4(IN) * pitch(OUT) + column];
      at = more ? at + sum[0][0] : sum[0][0];
    }
  }
}

// A network of these widths, input first; widths of 0 at the end are none. CURVED: its hidden
// layers are tanh instead of ReLU.
template <bool CURVED, int... WIDTHS>
struct Net {
  __host__ __device__ static constexpr int width(int layer) {
    constexpr int widths[] = {WIDTHS..., 0};
    return widths[layer];
  }
  __host__ __device__ static constexpr int layers() {
    int found = 0;
    while (width(found)) found++;
    return found - 1;
  }
  // Where the weights of a layer begin in a padded vector, in a flat one; its outputs in a pass.
  __host__ __device__ static constexpr int padded_at(int layer) {
    int at = 0;
    for (int l = 0; l < layer; l++) at += (up4(width(l)) + 1) * pitch(width(l + 1));
    return at;
  }
  __host__ __device__ static constexpr int flat_at(int layer) {
    int at = 0;
    for (int l = 0; l < layer; l++) at += (width(l) + 1) * width(l + 1);
    return at;
  }
  __host__ __device__ static constexpr int outputs_at(int layer) {
    int at = 0;
    for (int l = 0; l < layer; l++) at += ROWS * pitch(width(l + 1));
    return at;
  }
  static constexpr int LAYERS = layers(), IN = width(0), OUT = width(LAYERS);
  static constexpr int SIZE = padded_at(LAYERS), FLAT = flat_at(LAYERS), ACTS = outputs_at(LAYERS);
  static constexpr Finish HIDDEN = CURVED ? TANH : RELU;

  // The outputs of a pass, rows pitch(OUT) apart.
  static __device__ __forceinline__ float* outputs(float* acts) {
    return acts + outputs_at(LAYERS - 1);
  }

  // acts ← the outputs of all layers for x (ROWS, IN). Ends with a barrier.
  template <int L = 0>
  static __device__ __forceinline__ void forward(const float* params, const float* x, float* acts) {
    affine<width(L), width(L + 1), L + 1 < LAYERS ? HIDDEN : LINEAR>(x, params + padded_at(L),
                                                                     acts + outputs_at(L));
    __syncthreads();
    if constexpr (L + 1 < LAYERS) forward<L + 1>(params, acts + outputs_at(L), acts);
  }

  // Gradient of a loss from its derivative by the outputs, which stands in their place in acts; in
  // place of each hidden layer's outputs its derivative goes. The derivative by the last TAIL
  // inputs goes to tail (ROWS, TAIL). rows: how many count. more: adds to grad. Ends with a barrier.
  template <bool WEIGHTS, int TAIL, int L = LAYERS - 1>
  static __device__ __forceinline__ void backward(const float* params, const float* x, float* acts,
                                                  float* grad, float* tail, int rows, bool more) {
    constexpr int I = width(L), O = width(L + 1);
    const float* const d = acts + outputs_at(L);
    const float* const weights = params + padded_at(L);
    if constexpr (WEIGHTS) {
      outer<I, O>(L ? acts + outputs_at(L ? L - 1 : 0) : x, d, grad + padded_at(L), rows, more);
      if constexpr (L > 0) __syncthreads();  // the derivative overwrites what was read
    }
    if constexpr (L > 0) {
      through<I, O, HIDDEN>(d, weights, acts + outputs_at(L - 1));
      __syncthreads();
      backward<WEIGHTS, TAIL, L - 1>(params, x, acts, grad, tail, rows, more);
    } else {
      if constexpr (TAIL > 0) through<TAIL, O, LINEAR>(d, weights + (I - TAIL) * pitch(O), tail);
      __syncthreads();
    }
  }

  // f(live, flat, padded) for each parameter, GROUP of them at a time: their places in a flat and in a
  // padded vector, of which the first `live` count. Every thread has its own parameters.
  template <int GROUP, int L = 0, class F>
  static __device__ __forceinline__ void each(F f) {
    constexpr int I = width(L), O = width(L + 1), COUNT = (I + 1) * O;
#pragma unroll 1
    for (int base = threadIdx.x; base < COUNT; base += GROUP * THREADS) {
      int flat[GROUP], padded[GROUP];
#pragma unroll
      for (int i = 0; i < GROUP; i++) {
        const unsigned j = base + i * THREADS, row = j / unsigned(O);
        flat[i] = flat_at(L) + int(j);
        padded[i] = padded_at(L) + int((row == I ? up4(I) : row) * pitch(O) + j % unsigned(O));
      }
      f(over(COUNT - base, THREADS), flat, padded);
    }
    if constexpr (L + 1 < LAYERS) each<GROUP, L + 1>(f);
  }
};

// What a network that learns has: parameters, target and gradient padded, moments flat.
struct Learner {
  float *params, *target, *grad, *m, *v;
};

// The same in memory of the device, all flat, with Adam's steps, learning rate and loss.
struct Stored {
  float *params, *target, *m, *v;
  int64* steps;
  const double* lr;
  double* loss;
};
#define STORED(X)                                                              \
  float *X##_params, float *X##_target, float *X##_m, float *X##_v, int64 *X##_steps, \
      const double *X##_lr, double *X##_loss
#define STORED_AS(X) \
  Stored { X##_params, X##_target, X##_m, X##_v, X##_steps, X##_lr, X##_loss }

// Of a network without a target.
#define STORED_ALONE(X) \
  float *X##_params, float *X##_m, float *X##_v, int64 *X##_steps, const double *X##_lr, \
      double *X##_loss
#define STORED_ALONE_AS(X) \
  Stored { X##_params, nullptr, X##_m, X##_v, X##_steps, X##_lr, X##_loss }

// Where a piece of working memory lies: in shared memory, or where that is full in the device's.
#define PLACE(NAME) ((NAME##_SHARED ? shared : scratch) + NAME##_AT)
#define MOMENT(NAME, STORED_AT) (NAME##_SHARED ? shared + NAME##_AT : STORED_AT)

__device__ __forceinline__ void zero(float* at, int floats) {
  for (int j = threadIdx.x; j < floats; j += THREADS) at[j] = 0.0f;
}

template <class N>
__device__ __forceinline__ void fetch(const Learner& net, const Stored& stored) {
  N::template each<1>([&](int, int (&flat)[1], int (&padded)[1]) {
    const int from = flat[0], to = padded[0];
    net.params[to] = stored.params[from];
    if (net.target) net.target[to] = stored.target[from];
    if (net.m != stored.m) net.m[from] = stored.m[from];
    if (net.v != stored.v) net.v[from] = stored.v[from];
  });
}

template <class N>
__device__ __forceinline__ void put_back(const Learner& net, const Stored& stored) {
  N::template each<1>([&](int, int (&flat)[1], int (&padded)[1]) {
    const int to = flat[0], from = padded[0];
    stored.params[to] = net.params[from];
    if (net.target) stored.target[to] = net.target[from];
    if (net.m != stored.m) stored.m[to] = net.m[to];
    if (net.v != stored.v) stored.v[to] = net.v[to];
  });
}

// to (ROWS, WIDTH) in columns AT … ← rows of `from` (rows, WIDTH), which lie one after the other.
template <int WIDTH, int INTO = WIDTH, int AT = 0>
__device__ __forceinline__ void stage(float* to, const float* from, int rows) {
#pragma unroll 1
  for (int base = threadIdx.x; base < rows * WIDTH; base += 4 * THREADS) {
    float held[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (base + i * THREADS < rows * WIDTH) held[i] = from[base + i * THREADS];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned j = base + i * THREADS;
      if (j < unsigned(rows * WIDTH)) to[j / WIDTH * pitch(INTO) + AT + j % WIDTH] = held[i];
    }
  }
}

// Constants of Adam in one gradient step: the learning rate and the root of the second moment, with
// their bias corrections.
struct Pace {
  float size, root;
};

__device__ __forceinline__ double power(double base, int64 exponent) {
  double found = 1.0;
#pragma unroll 1
  for (; exponent; exponent /= 2, base *= base)
    if (exponent % 2) found *= base;
  return found;
}

// paces ← those of the steps after `steps`, for network number `net` of at most four. A barrier
// must follow.
__device__ __forceinline__ void pace(int net, Pace* paces, int64 steps, double lr,
                                     const double* adam) {
  const int t = int(threadIdx.x) - net * WINDOW;
  if (t < 0 || t >= WINDOW) return;
  paces[t].size = float(lr / (1.0 - power(adam[0], steps + 1 + t)));
  paces[t].root = float(1.0 / sqrt(1.0 - power(adam[1], steps + 1 + t)));
}

// The constants of a gradient step; `every` is gradient steps between moves of a target, or 0.
struct Rules {
  float beta1, beta2, rest1, rest2, eps, tau, huber;
  double every, clip_norm;
};

__device__ __forceinline__ Rules rules_of(const double* adam, const double* tau,
                                          const double* every, const double* clip_norm,
                                          const double* huber) {
  return {float(adam[0]), float(adam[1]), float(1.0 - adam[0]), float(1.0 - adam[1]),
          float(adam[2]), float(tau[0]),  float(huber[0]),      every[0],
          clip_norm[0]};
}

// How a target moves in gradient step number `count`: its share of the way; 1 is all of it.
__device__ __forceinline__ float target_share(const Rules& rules, int64 count) {
  if (rules.every <= 0.0) return rules.tau;
  const double turns = double(count) / rules.every;
  return turns == floor(turns) ? 1.0f : 0.0f;
}

template <class N>
__device__ __forceinline__ float squares(const float* grad) {
  float mine = 0.0f;
  N::template each<4>([&](int live, int (&)[4], int (&padded)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < live) mine += grad[padded[i]] * grad[padded[i]];
  });
  return mine;
}

__device__ __forceinline__ float adam(const Rules& rules, const Pace& now, float g, float& m,
                                      float& v) {
  m = rules.beta1 * m + rules.rest1 * g;
  v = rules.beta2 * v + rules.rest2 * g * g;
  return now.size * m / (sqrtf(v) * now.root + rules.eps);
}

// What to multiply a gradient with whose squares sum to `sum`.
__device__ __forceinline__ float clip_factor(double clip_norm, float sum) {
  const double factor = clip_norm / (sqrt(double(sum)) + double(CLIP_EPS));
  return factor < 1.0 ? float(factor) : 1.0f;
}

// params −= step(gradient · scale, first moment, second moment), then the target moves by `share`. A
// barrier must follow.
template <class N, class F>
__device__ __forceinline__ void move(const Learner& net, float scale, float share, F step) {
  N::template each<4>([&](int live, int (&flat)[4], int (&padded)[4]) {
    // All are read before any is written.
    float p[4] = {}, g[4] = {}, m[4] = {}, v[4] = {}, target[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < live) {
        p[i] = net.params[padded[i]], m[i] = net.m[flat[i]], v[i] = net.v[flat[i]];
        g[i] = net.grad[padded[i]] * scale;
        if (share > 0.0f) target[i] = net.target[padded[i]];
      }
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] -= step(g[i], m[i], v[i]);
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i < live) {
        net.params[padded[i]] = p[i], net.m[flat[i]] = m[i], net.v[flat[i]] = v[i];
        if (share > 0.0f)
          net.target[padded[i]] = share >= 1.0f ? p[i] : target[i] + share * (p[i] - target[i]);
      }
  });
}

// One step of Adam along net.grad, then of the target by `share`. Ends with a barrier.
template <class N>
__device__ __forceinline__ void descend(const Learner& net, const Rules& rules, const Pace& now,
                                        float share) {
  float scale = 1.0f;
  if (rules.clip_norm > 0.0)
    scale = clip_factor(rules.clip_norm, block_sum(squares<N>(net.grad)));
  move<N>(net, scale, share,
          [&](float g, float& m, float& v) { return adam(rules, now, g, m, v); });
  __syncthreads();
}

// Loss and derivative of one row's error, both divided by the rows of the batch.
struct Slope {
  float loss, d;
};
__device__ __forceinline__ Slope td_gradient(float error, float weight, float huber) {
  const float scale = weight / float(BATCH), size = fabsf(error);
  if (huber <= 0.0f || size <= huber) return {0.5f * scale * error * error, scale * error};
  return {scale * huber * (size - 0.5f * huber), scale * (error > 0.0f ? huber : -huber)};
}
