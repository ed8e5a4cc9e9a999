// Latent attention of prompts, on what their latents expand to; see mla.py.
#pragma once
#include "attention_prompts.h"

namespace {

struct LatentRead {
  const void* pool;       // [pages, page_size, width], pages page_stride apart (in values)
  const int32_t* tables;  // [any, any], rows table_stride apart
  const int64_t* table_rows;  // [rows], row of `tables` of each row
  const int64_t* kv_lens;     // [rows]
  float* out;              // [tokens, width]: the rows' latents end to end
  int64_t rows, tokens, width, page_size, page_stride, table_stride, dtype;
};

template <class T>
void latent_read_as(const LatentRead& a, Team& team) {
  team.each(a.tokens, [&](int64_t token) {
    int64_t row = 0, position = token;
    while (position >= a.kv_lens[row]) position -= a.kv_lens[row++];
    const int64_t page = a.tables[a.table_rows[row] * a.table_stride + position / a.page_size];
    const T* from =
        static_cast<const T*>(a.pool) + page * a.page_stride + position % a.page_size * a.width;
    float* to = a.out + token * a.width;
    runs(a.width, [&](int64_t i, int64_t n) { store_run(to + i, load_run(from + i, n), n); });
  });
}

void latent_read(const LatentRead& a, Team& team) {
  a.dtype == FLOAT32 ? latent_read_as<float>(a, team) : latent_read_as<Bf16>(a, team);
}

// Attention of some heads; `heads` and all heads' tensors mean these alone.
struct MlaPrefill {
  const float *plain, *rotated;  // [tokens, heads, keys], [tokens, heads, tail], strided
  const float* expanded;         // [any, heads, keys + values], what `latents` expand to
  const float* latents;          // [any, rank + tail]: the rows' latents end to end
  const int64_t *starts, *kv_lens;  // [rows + 1], first token of each row; [rows]
  float* out;                       // [tokens, heads, values], tokens out_stride apart
  int64_t rows, tokens, heads, keys, values, rank, tail;
  int64_t plain_stride, plain_head, rotated_stride, rotated_head, out_stride;
  double scale;
};

// Queries first .. end (tokens of the row's new ones), for one head.
void attend_expanded(const MlaPrefill& a, int64_t row, int64_t first, int64_t end, int64_t head) {
  struct Memory {};
  const int64_t width = a.keys + a.tail, each = a.keys + a.values;
  const int64_t prefix = a.kv_lens[row] - (a.starts[row + 1] - a.starts[row]);
  const float scale = static_cast<float>(a.scale);
  int64_t before = 0;  // latents of earlier rows
  for (int64_t other = 0; other < row; other++) before += a.kv_lens[other];
  auto token = [&](int64_t i) { return a.starts[row] + first + i; };
  auto query = [&](int64_t i, float* to) {
    const float* plain = a.plain + token(i) * a.plain_stride + head * a.plain_head;
    const float* rotated = a.rotated + token(i) * a.rotated_stride + head * a.rotated_head;
    runs(a.keys, [&](int64_t d, int64_t n) { store_run(to + d, load_run(plain + d, n) * scale, n); });
    runs(a.tail, [&](int64_t d, int64_t n) {
      store_run(to + a.keys + d, load_run(rotated + d, n) * scale, n);
    });
  };
  auto fetch = [&](int64_t at, int64_t here, float* keys, float* values) {
    for (int64_t i = 0; i < here; i++) {
      const int64_t place = before + at + i;
      const float* own = a.expanded + (place * a.heads + head) * each;
      memcpy(keys + i * width, own, a.keys * sizeof(float));
      memcpy(keys + i * width + a.keys, a.latents + place * (a.rank + a.tail) + a.rank,
             a.tail * sizeof(float));
      memcpy(values + i * a.values, own + a.keys, a.values * sizeof(float));
    }
  };
  auto out = [&](int64_t i) { return a.out + token(i) * a.out_stride + head * a.values; };
  const Piece piece{end - first, 1, prefix + first, prefix + end, width, a.values};
  attend_piece<Order::CHANNELS, Memory>(piece, query, fetch, out);
}

void mla_prefill(const MlaPrefill& a, Team& team) {
  auto work = [&](int64_t row, int64_t first, int64_t end, int64_t head) {
    attend_expanded(a, row, first, end, head);
  };
  each_piece(a.starts, a.rows, a.tokens, a.heads, team, work);
}

}  // namespace
