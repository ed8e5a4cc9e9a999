// Latent attention: what is done to queries before, over pages of latents, and after; see mla.py.
#pragma once
#include "attention_rows.h"
#include "team.h"
#include "vectors.h"

namespace {

struct PartialRope {
  const float* x;            // [rows, heads, rotated], rows and heads apart by their strides
  const float* cache;        // [positions, rotated]: cosines, then sines
  const int64_t* positions;  // [rows]
  float* out;                // [rows, heads, rotated]
  int64_t rows, heads, rotated, x_stride, head_stride;
  int64_t interleaved;  // channels 2 i and 2 i + 1 are a pair, not i and i + rotated / 2
};

void apply_partial_rope(const PartialRope& a, Team& team) {
  const int64_t half = a.rotated / 2;
  const int64_t step = a.interleaved ? 2 : 1, apart = a.interleaved ? 1 : half;
  team.each(a.rows, [&](int64_t row) {
    const float* cos = a.cache + a.positions[row] * a.rotated;
    const float* sin = cos + half;
    for (int64_t head = 0; head < a.heads; head++) {
      const float* x = a.x + row * a.x_stride + head * a.head_stride;
      float* out = a.out + (row * a.heads + head) * a.rotated;
      for (int64_t i = 0; i < half; i++) {
        const float first = x[step * i], second = x[step * i + apart];
        out[i] = first * cos[i] - second * sin[i];
        out[half + i] = second * cos[i] + first * sin[i];
      }
    }
  });
}

struct LatentWrite {
  const float* latents;  // [tokens, width], tokens latent_stride apart
  void* pool;            // [pages, page_size, width], pages page_stride apart (in values)
  const int64_t *pages, *offsets;  // [tokens]
  int64_t tokens, width, latent_stride, page_stride, dtype;
};

template <class T>
void latent_write_as(const LatentWrite& a, Team& team) {
  team.each(a.tokens, [&](int64_t t) {
    T* to = static_cast<T*>(a.pool) + a.pages[t] * a.page_stride + a.offsets[t] * a.width;
    runs(a.width, [&](int64_t i, int64_t n) {
      store_run(to + i, load_run(a.latents + t * a.latent_stride + i, n), n);
    });
  });
}

void latent_write(const LatentWrite& a, Team& team) {
  a.dtype == FLOAT32 ? latent_write_as<float>(a, team) : latent_write_as<Bf16>(a, team);
}

struct MlaQuery {
  const float *plain, *rotated;  // [rows, heads, keys], [rows, heads, tail], strided
  const void* up;                // [heads, keys + values, rank]
  float* out;                    // [rows, heads, rank + tail]
  int64_t rows, heads, keys, values, rank, tail;
  int64_t plain_stride, plain_head, rotated_stride, rotated_head, dtype;
};

template <class T>
void mla_query_as(const MlaQuery& a, Team& team) {
  const int64_t width = a.rank + a.tail;
  team.each(a.heads, [&](int64_t head) {
    const T* up = static_cast<const T*>(a.up) + head * (a.keys + a.values) * a.rank;
    for (int64_t row = 0; row < a.rows; row++) {
      const float* q = a.plain + row * a.plain_stride + head * a.plain_head;
      float* out = a.out + (row * a.heads + head) * width;
      runs(a.rank, [&](int64_t i, int64_t n) {
        Vec total = {};
        for (int64_t k = 0; k < a.keys; k++) total += q[k] * load_run(up + k * a.rank + i, n);
        store_run(out + i, total, n);
      });
      const float* tail = a.rotated + row * a.rotated_stride + head * a.rotated_head;
      memcpy(out + a.rank, tail, a.tail * sizeof(float));
    }
  });
}

void mla_query(const MlaQuery& a, Team& team) {
  a.dtype == FLOAT32 ? mla_query_as<float>(a, team) : mla_query_as<Bf16>(a, team);
}

struct MlaDecode {
  const float* q;         // [rows, heads, width]
  const void* pool;       // [pages, page_size, width], pages page_stride apart (in values)
  const int32_t* tables;  // [any, any], rows table_stride apart
  const int64_t* table_rows;  // [rows], row of `tables` of each row
  const int64_t* kv_lens;     // [rows]; 0 for padding rows
  const int64_t* nodes;       // [rows], see Branch; null: there are no trees
  float* out;              // [rows, heads, rank]
  float* parts;            // of RowsOfHeads
  int64_t rows, heads, width, rank, page_size, page_stride, table_stride, dtype;
  int64_t first_key;  // of RowsOfHeads
  double scale;
};

constexpr int64_t MLA_HEADS = 8;  // that one thread takes over a row's latents together

template <class T>
void mla_decode_as(const MlaDecode& a, Team& team) {
  const RowsOfHeads rows{a.rows,    a.heads, MLA_HEADS, a.rank,
                         a.kv_lens, a.out,   a.parts,   a.first_key, paired<T>(a.width, a.rank)};
  auto attend = [&](int64_t row, int64_t first, int64_t end, int64_t from, int64_t to,
                    const Softmax& softmax) {
    const Positions<T> latents{static_cast<const T*>(a.pool),
                               a.tables + a.table_rows[row] * a.table_stride, a.page_size,
                               a.page_stride, a.width, a.width,
                               Branch::of(a.nodes, row, a.kv_lens[row])};
    for (int64_t head = first; head < end; head += MLA_HEADS) {
      const int64_t count = end - head < MLA_HEADS ? end - head : MLA_HEADS, at = head - first;
      const TokenHeads heads{a.q + (row * a.heads + head) * a.width, 1, count, a.width, a.rank,
                             static_cast<float>(a.scale)};
      attend_part(heads, latents, latents, from, to, a.kv_lens[row],
                  {softmax.top + at, softmax.total + at, softmax.values + at * a.rank});
    }
  };
  attend_rows(rows, team, 1, attend);
}

void mla_decode(const MlaDecode& a, Team& team) {
  a.dtype == FLOAT32 ? mla_decode_as<float>(a, team) : mla_decode_as<Bf16>(a, team);
}

struct FromLatent {
  const float* mean;  // [rows, heads, rank]
  const void* up;     // [heads, keys + values, rank]
  float* out;         // [rows, heads, values]
  int64_t rows, heads, keys, values, rank, dtype;
};

template <class T>
void from_latent_as(const FromLatent& a, Team& team) {
  team.each(a.heads, [&](int64_t head) {
    const T* up = static_cast<const T*>(a.up) + (head * (a.keys + a.values) + a.keys) * a.rank;
    for (int64_t row = 0; row < a.rows; row++) {
      const float* mean = a.mean + (row * a.heads + head) * a.rank;
      float* out = a.out + (row * a.heads + head) * a.values;
      for (int64_t v = 0; v < a.values; v++) {
        Vec total = {};
        runs(a.rank, [&](int64_t i, int64_t n) {
          total += load_run(mean + i, n) * load_run(up + v * a.rank + i, n);
        });
        out[v] = sum(total);
      }
    }
  });
}

void from_latent(const FromLatent& a, Team& team) {
  a.dtype == FLOAT32 ? from_latent_as<float>(a, team) : from_latent_as<Bf16>(a, team);
}

}  // namespace
