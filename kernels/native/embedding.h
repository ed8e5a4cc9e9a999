// Rows of a table by token id.
#pragma once
#include <algorithm>

#include "eight_bit.h"
#include "packed.h"
#include "team.h"
#include "vectors.h"

namespace {

struct Embedding {
  const int64_t* ids;  // [rows]
  const void* table;   // [count, width], of ids from `first` on; packed: as PackedLinear's weight
  const float* scale;  // of an 8-bit table, as PackedEightBit's
  float* out;          // [rows, width], zeros for other ids
  int64_t rows, width, dtype, first, count, packed;
  int64_t group, integers;  // of an 8-bit table, which is packed, as PackedEightBit's; else 0
};

// look_up(id, out): one row of the table.
template <class F>
void each_id(const Embedding& a, Team& team, F look_up) {
  team.each(a.rows, [&](int64_t row) {
    const int64_t id = a.ids[row] - a.first;
    float* out = a.out + row * a.width;
    if (id < 0 || id >= a.count) {
      std::fill_n(out, a.width, 0.0f);
      return;
    }
    look_up(id, out);
  });
}

template <class T>
void embedding_as(const Embedding& a, Team& team) {
  each_id(a, team, [&](int64_t id, float* out) {
    const T* from = static_cast<const T*>(a.table) + id * a.width;
    runs(a.width, [&](int64_t i, int64_t n) { store_run(out + i, load_run(from + i, n), n); });
  });
}

// A row is one lane of its panel: some values of each line of memory, all lines one after another.
template <class T>
void packed_embedding_as(const Embedding& a, Team& team) {
  constexpr int64_t DEPTH = depth(T{});
  const int64_t steps = (a.width + DEPTH - 1) / DEPTH;
  each_id(a, team, [&](int64_t id, float* out) {
    const int64_t place = id / LANES * steps * LANES + id % LANES;
    const T* from = static_cast<const T*>(a.table) + place * DEPTH;
    for (int64_t i = 0; i < a.width; i++) {
      out[i] = value(from[i / DEPTH * LANES * DEPTH + i % DEPTH]);
    }
  });
}

// The numbers N of a row, times their scales, rounded to T.
template <class T, class N>
void eight_bit_embedding_as(const Embedding& a, Team& team) {
  struct Row {};
  constexpr int64_t DEPTH = depth(T{});
  const int64_t steps = (a.width + DEPTH - 1) / DEPTH;
  const int64_t groups = (a.width + a.group - 1) / a.group;
  each_id(a, team, [&](int64_t id, float* out) {
    const int64_t panel = id / LANES, lane = id % LANES;
    const N* from = static_cast<const N*>(a.table) + (panel * steps * LANES + lane) * DEPTH;
    const float* scales = a.scale + panel * groups * LANES + lane;
    N* numbers = scratch<N, Row>(a.width + LANES);  // 16 are read at once, some without use
    for (int64_t i = 0; i < a.width; i++) {
      numbers[i] = from[i / DEPTH * LANES * DEPTH + i % DEPTH];
    }
    runs(a.width, [&](int64_t i, int64_t n) {
      const Vec scale = splat(scales[i / a.group * LANES] * bias_of(N{}));
      store_run(out + i, rounded(T{}, small_numbers(numbers + i) * scale), n);
    });
  });
}

template <class T>
void eight_bit_embedding(const Embedding& a, Team& team) {
  if (a.integers) return eight_bit_embedding_as<T, int8_t>(a, team);
  eight_bit_embedding_as<T, uint8_t>(a, team);
}

void embedding(const Embedding& a, Team& team) {
  if (a.group) {
    return a.dtype == FLOAT32 ? eight_bit_embedding<float>(a, team)
                              : eight_bit_embedding<Bf16>(a, team);
  }
  if (a.packed) {
    return a.dtype == FLOAT32 ? packed_embedding_as<float>(a, team)
                              : packed_embedding_as<Bf16>(a, team);
  }
  if (a.dtype == FLOAT32) return embedding_as<float>(a, team);
  embedding_as<Bf16>(a, team);
}

}  // namespace
