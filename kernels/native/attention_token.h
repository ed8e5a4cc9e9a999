// Attention of one token over positions that lie in pages.
#pragma once
#include "linear.h"
#include "softmax.h"
#include "vectors.h"

namespace {

// The positions of a node of a tree from its row's newest token on: its ancestors and itself, in the
// order of their depths. Node i of the row lies i places behind the newest token, node 0.
struct Branch {
  int64_t first = INT64_MAX;  // position of the newest token; far away where there is no tree
  uint64_t nodes = 0;         // bit i: node i

  // nodes: of the row, with the row itself; null: there is no tree. length: positions of the row.
  static Branch of(const int64_t* nodes, int64_t row, int64_t length) {
    if (!nodes) return {};
    const auto mine = static_cast<uint64_t>(nodes[row]);
    return {length - __builtin_popcountll(mine), mine};
  }

  int64_t place(int64_t position) const {
    if (position < first) return position;
    uint64_t left = nodes;
    for (int64_t depth = first; depth < position; depth++) left &= left - 1;
    return first + (left ? __builtin_ctzll(left) : 0);  // past the last, which is prefetched: 0
  }
};

// The places of the keys or values of one row in a pool.
template <class T>
struct Positions {
  const T* pool;  // the first position of page 0
  const int32_t* table;
  int64_t page_size, page_stride, step;  // step: between two positions of a page (in values)
  int64_t width;                         // values of a position that are read
  Branch branch;

  const T* at(int64_t position) const {
    const int64_t place = branch.place(position);
    return pool + table[place / page_size] * page_stride + place % page_size * step;
  }

  // f(i, from, n) for each run of positions at + i .. at + i + n below at + count that lie in one
  // page one after another. Those of a branch are copied to lie so: its sums are then taken as
  // those of a row without a tree.
  template <class F>
  void runs_of(int64_t at, int64_t count, F f) const {
    int64_t page = at / page_size, inside = at % page_size;
    for (int64_t i = 0; i < count; page++, inside = 0) {
      const int64_t n = page_size - inside < count - i ? page_size - inside : count - i;
      const bool apart = at + i + n > branch.first;
      f(i, apart ? gathered(at + i, n) : pool + table[page] * page_stride + inside * step, n);
      i += n;
    }
  }

  // n positions from the given one on, a step apart, in memory that the next call writes again.
  __attribute__((noinline)) const T* gathered(int64_t position, int64_t n) const {
    struct Run {};
    T* memory = scratch<T, Run>(n * step);
    for (int64_t i = 0; i < n; i++) {
      memcpy(memory + i * step, this->at(position + i), width * sizeof(T));
    }
    return memory;
  }
};

// Asks for `width` values that are read soon, into the second-level cache. Heads read a page's
// lines out of their order, which the CPU does not foresee.
template <class T>
inline void prefetch(const T* from, int64_t width) {
  constexpr int64_t LINE = 64 / sizeof(T);
  for (int64_t i = 0; i < width; i += LINE) __builtin_prefetch(from + i, 0, 2);
}

// f(h, NB) for groups of NB query heads from the hth on: as many as share what is loaded.
template <class F>
inline void head_groups(int64_t heads, F f) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) f(h, std::integral_constant<int, 4>{});
  if (h + 3 == heads) return f(h, std::integral_constant<int, 3>{});
  if (h + 2 == heads) return f(h, std::integral_constant<int, 2>{});
  if (h < heads) f(h, std::integral_constant<int, 1>{});
}

// out[h, d] += weights[h * KEYS + i] values[i, d] for n positions and V vectors of channels; `last`:
// channels of the last of these. soon: as many positions that are read next.
template <class T, int NB, int V>
inline void add_values(const float* weights, const T* values, const T* soon, int64_t step, int64_t n,
                       int64_t last, float* out, int64_t width) {
  Vec total[NB][V];
  UNROLL for (int h = 0; h < NB; h++) UNROLL for (int v = 0; v < V; v++) {
    total[h][v] = load_run(out + h * width + v * LANES, v + 1 == V ? last : LANES);
  }
  for (int64_t i = 0; i < n; i++) {
    prefetch(soon + i * step, V * LANES);
    Vec some[V];
    UNROLL for (int v = 0; v < V; v++) {
      some[v] = load_run(values + i * step + v * LANES, v + 1 == V ? last : LANES);
    }
    UNROLL for (int h = 0; h < NB; h++) {
      const Vec weight = splat(weights[h * KEYS + i]);
      UNROLL for (int v = 0; v < V; v++) total[h][v] += weight * some[v];
    }
  }
  UNROLL for (int h = 0; h < NB; h++) UNROLL for (int v = 0; v < V; v++) {
    store_run(out + h * width + v * LANES, total[h][v], v + 1 == V ? last : LANES);
  }
}

template <class T, int NB>
inline void add_values(const float* weights, const T* values, const T* soon, int64_t step, int64_t n,
                       float* out, int64_t width) {
  int64_t d = 0;
  for (; d + 4 * LANES <= width; d += 4 * LANES) {
    add_values<T, NB, 4>(weights, values + d, soon + d, step, n, LANES, out + d, width);
  }
  runs(width - d, [&](int64_t i, int64_t some) {
    add_values<T, NB, 1>(weights, values + d + i, soon + d + i, step, n, some, out + d + i, width);
  });
}

// Of bfloat16 pools whose heads are multiples of PAIRED channels, 32 channels are converted together:
// half the work. Queries and sums then hold the even channels of each 32 before the odd ones.
constexpr int64_t PAIRED = 2 * LANES;
template <class T>
inline bool paired(int64_t keys, int64_t values) {
  return std::is_same_v<T, Bf16> && keys % PAIRED == 0 && values % PAIRED == 0;
}

// R keys times NB queries; y[b * KEYS + r].
template <int R, int NB>
inline void score_pairs(const float* q, const Bf16* keys, int64_t step, int64_t width, float* y) {
  constexpr int64_t y_stride = KEYS;
  Vec total[R][NB] = {};
  for (int64_t k = 0; k < width; k += PAIRED) {
    Vec even[R], odd[R];
    UNROLL for (int r = 0; r < R; r++) {
      load_pairs(keys + r * step + k, even[r], odd[r]);
      __builtin_prefetch(keys + (R + r) * step + k);  // of a tile to come
    }
    UNROLL for (int b = 0; b < NB; b++) {
      const Vec first = kept(load(q + b * width + k));
      UNROLL for (int r = 0; r < R; r++) total[r][b] += even[r] * first;
      const Vec second = kept(load(q + b * width + k + LANES));
      UNROLL for (int r = 0; r < R; r++) total[r][b] += odd[r] * second;
    }
  }
  SUM_TOTALS
}

// out[h, d] += weights[h * KEYS + i] values[i, d] for n positions. soon: as in add_values.
template <int NB, int V>
inline void add_pairs(const float* weights, const Bf16* values, const Bf16* soon, int64_t step,
                      int64_t n, float* out, int64_t width) {
  Vec total[NB][V];
  UNROLL for (int h = 0; h < NB; h++) UNROLL for (int v = 0; v < V; v++) {
    total[h][v] = load(out + h * width + v * LANES);
  }
  for (int64_t i = 0; i < n; i++) {
    prefetch(soon + i * step, V * LANES);
    Vec some[V];
    UNROLL for (int v = 0; v < V; v += 2) {
      load_pairs(values + i * step + v * LANES, some[v], some[v + 1]);
    }
    UNROLL for (int h = 0; h < NB; h++) {
      const Vec weight = splat(weights[h * KEYS + i]);
      UNROLL for (int v = 0; v < V; v++) total[h][v] += weight * some[v];
    }
  }
  UNROLL for (int h = 0; h < NB; h++) UNROLL for (int v = 0; v < V; v++) {
    store(out + h * width + v * LANES, total[h][v]);
  }
}

template <int NB>
inline void add_pairs(const float* weights, const Bf16* values, const Bf16* soon, int64_t step,
                      int64_t n, float* out, int64_t width) {
  int64_t d = 0;
  for (; d + 2 * PAIRED <= width; d += 2 * PAIRED) {
    add_pairs<NB, 4>(weights, values + d, soon + d, step, n, out + d, width);
  }
  if (d < width) add_pairs<NB, 2>(weights, values + d, soon + d, step, n, out + d, width);
}

// Query heads of one token that share their keys and values `per` by `per`.
struct TokenHeads {
  const float* q;  // [kv_heads, per, keys]
  int64_t kv_heads, per, keys, values;  // keys, values: channels
  float scale;
};

// A row's context is met in parts, one after another, and each part's softmax is merged into that of
// the parts before it. Where the parts lie follows from the row's own length: a row has the same
// bits whether one thread takes all of its parts or every part has a thread.
constexpr int64_t MOST_PARTS = 16, LEAST_PART = 256;

inline int64_t part_length(int64_t positions) {
  const int64_t each = (positions + MOST_PARTS - 1) / MOST_PARTS;
  return each <= LEAST_PART ? LEAST_PART : (each + KEYS - 1) / KEYS * KEYS;
}

// The softmax of some heads: their sums, and `width` values each, not yet divided by the totals.
inline Softmax softmax_in(float* memory, int64_t heads, int64_t width) {
  return {memory + heads * width, memory + heads * (width + 1), memory};
}
inline int64_t softmax_size(int64_t heads, int64_t width) { return heads * (width + 2); }

// Softmax over positions begin .. end, at least one, of the row's `limit`. While a block's keys are
// scored its values are on their way, and while these are added up, the next block's keys: one
// request for each line that is computed with, so that memory never waits for arithmetic.
//
// It is not inlined, nor is merge_part: all who call them get the same instructions, and so the same bits.
// Arguments are values: a store could change what a reference refers to, for all the compiler knows.
template <class T, bool PAIRS>
__attribute__((noinline)) void attend_part_as(const TokenHeads a, const Positions<T> keys,
                                              const Positions<T> values, int64_t begin,
                                              int64_t end, int64_t limit, const Softmax softmax) {
  struct Memory {};
  constexpr int64_t SCORED = 4;  // positions that one KV head takes before the next
  const int64_t heads = a.kv_heads * a.per;
  float* q = scratch<float, Memory>(heads * (a.keys + KEYS));
  float* scores = q + heads * a.keys;
  if constexpr (PAIRS) {
    for (int64_t i = 0; i < heads * a.keys; i += PAIRED) {
      const Vec first = load(a.q + i) * a.scale, second = load(a.q + i + LANES) * a.scale;
      store(q + i, __builtin_shufflevector(first, second, EVEN_PLACES));
      store(q + i + LANES, __builtin_shufflevector(first, second, ODD_PLACES));
    }
  } else {
    runs(heads * a.keys,
         [&](int64_t i, int64_t n) { store_run(q + i, load_run(a.q + i, n) * a.scale, n); });
  }
  for (int64_t h = 0; h < heads; h++) {
    softmax.top[h] = -INFINITY;
    softmax.total[h] = 0.0f;
  }
  memset(softmax.values, 0, heads * a.values * sizeof(float));
  auto each_group = [&](auto f) {
    for (int64_t kv = 0; kv < a.kv_heads; kv++) {
      head_groups(a.per, [&](int64_t h, auto group) { f(kv, kv * a.per + h, group); });
    }
  };
  const bool apart = keys.pool != values.pool;
  for (int64_t at = begin; at < end; at += KEYS) {
    const int64_t count = end - at < KEYS ? end - at : KEYS;
    keys.runs_of(at, count, [&](int64_t i, const T* from, int64_t n) {
      const int64_t whole = n / SCORED * SCORED;
      const T* soon = values.at(at + i);
      auto score = [&](int64_t k, auto some) {
        each_group([&](int64_t kv, int64_t h, auto group) {
          const T* key = from + k * keys.step + kv * a.keys;
          float* score = scores + h * KEYS + i + k;
          for (int64_t r = k; apart && r < k + some; r++) {
            prefetch(soon + r * values.step + kv * a.values, a.values);
          }
          if constexpr (PAIRS) {
            score_pairs<some, group>(q + h * a.keys, key, keys.step, a.keys, score);
          } else {
            tile<T, some, group>(q + h * a.keys, a.keys, key, keys.step, a.keys, score, KEYS);
          }
        });
      };
      for (int64_t k = 0; k < whole; k += SCORED) score(k, std::integral_constant<int, SCORED>{});
      for (int64_t k = whole; k < n; k++) score(k, std::integral_constant<int, 1>{});
    });
    for (int64_t h = 0; h < heads; h++) {
      weigh(scores + h * KEYS, count, h, a.values, softmax);
    }
    values.runs_of(at, count, [&](int64_t i, const T* from, int64_t n) {
      const int64_t next = at + KEYS + i;
      const T* soon = next < limit ? keys.at(next) : from;
      each_group([&](int64_t kv, int64_t h, auto group) {
        const float* weights = scores + h * KEYS + i;
        const T *value = from + kv * a.values, *key = soon + kv * a.keys;
        float* sums = softmax.values + h * a.values;
        if constexpr (PAIRS) {
          add_pairs<group>(weights, value, key, values.step, n, sums, a.values);
        } else {
          add_values<T, group>(weights, value, key, values.step, n, sums, a.values);
        }
      });
    });
  }
}

template <class T>
void attend_part(const TokenHeads& a, const Positions<T>& keys, const Positions<T>& values,
                 int64_t begin, int64_t end, int64_t limit, const Softmax& softmax) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (paired<T>(a.keys, a.values)) {
      return attend_part_as<T, true>(a, keys, values, begin, end, limit, softmax);
    }
  }
  attend_part_as<T, false>(a, keys, values, begin, end, limit, softmax);
}

// Merges the softmax of the next part into that of the parts before it.
__attribute__((noinline)) inline void merge_part(const Softmax part, const Softmax into,
                                                 int64_t heads, int64_t width) {
  for (int64_t h = 0; h < heads; h++) {
    const float top = into.top[h] > part.top[h] ? into.top[h] : part.top[h];
    const float kept = expf(into.top[h] - top), added = expf(part.top[h] - top);
    float* values = into.values + h * width;
    const float* more = part.values + h * width;
    runs(width, [&](int64_t i, int64_t n) {
      store_run(values + i, load_run(values + i, n) * kept + load_run(more + i, n) * added, n);
    });
    into.total[h] = into.total[h] * kept + part.total[h] * added;
    into.top[h] = top;
  }
}

// The mean of each head's values, by its weights. pairs: the sums hold even channels before odd ones.
inline void write_means(const Softmax& softmax, int64_t heads, int64_t width, bool pairs,
                        float* out) {
  for (int64_t h = 0; h < heads; h++) {
    const float share = 1.0f / softmax.total[h];
    const float* values = softmax.values + h * width;
    float* mean = out + h * width;
    if (pairs) {
      for (int64_t i = 0; i < width; i += PAIRED) {
        const Vec even = load(values + i) * share, odd = load(values + i + LANES) * share;
        store(mean + i, __builtin_shufflevector(even, odd, FIRST_PLACES));
        store(mean + i + LANES, __builtin_shufflevector(even, odd, LAST_PLACES));
      }
      continue;
    }
    runs(width,
         [&](int64_t i, int64_t n) { store_run(mean + i, load_run(values + i, n) * share, n); });
  }
}

}  // namespace
