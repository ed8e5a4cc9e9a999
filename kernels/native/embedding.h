// Rows of a table by token id.
#pragma once
#include <algorithm>

#include "packed.h"
#include "team.h"
#include "vectors.h"

namespace {

struct Embedding {
  const int64_t* ids;  // [rows]
  const void* table;   // [count, width], of ids from `first` on; packed: as PackedLinear's weight
  const float* scale;  // [count], of an int8 table
  float* out;          // [rows, width], zeros for other ids
  int64_t rows, width, dtype, first, count, packed;
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
    const float scale = a.scale ? a.scale[id] : 1.0f;
    runs(a.width, [&](int64_t i, int64_t n) {
      store_run(out + i, load_run(from + i, n) * scale, n);
    });
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

void embedding(const Embedding& a, Team& team) {
  if (a.packed) {
    return a.dtype == FLOAT32 ? packed_embedding_as<float>(a, team)
                              : packed_embedding_as<Bf16>(a, team);
  }
  if (a.dtype == FLOAT32) return embedding_as<float>(a, team);
  if (a.dtype == INT8) return embedding_as<int8_t>(a, team);
  embedding_as<Bf16>(a, team);
}

}  // namespace
