// Attention of prompts over pages.
#pragma once
#include "products.h"
#include "softmax.h"
#include "team.h"
#include "vectors.h"

namespace {

struct AttnPrefill {
  const float* q;  // [tokens, heads, head_dim], tokens q_stride apart
  const void *k_pool, *v_pool;  // [pages, page_size, kv_heads, head_dim], pages page_stride apart
  const int32_t* tables;        // [any, any], rows table_stride apart
  const int64_t* table_rows;    // [rows], row of `tables` of each row
  const int64_t* starts;        // [rows + 1], first token of each row
  const int64_t* kv_lens;       // [rows], tokens of each row, the new ones last
  float* out;                   // [tokens, heads, head_dim]
  int64_t rows, tokens;  // tokens: starts[rows], for what is read outside of loops
  int64_t heads, kv_heads, head_dim, page_size, q_stride, page_stride, table_stride, dtype;
  double scale;
};

constexpr int64_t QUERIES = 32;  // tokens of one piece of work, with all heads of one KV head

// Queries of one row, `per` of them at each position, that meet its keys block by block.
struct Piece {
  int64_t count, per, position;  // queries, and the position of the first
  int64_t last;                  // past the last position that any of them sees
  int64_t key_width, value_width;
};

// query(i, to): the i-th query, scaled. fetch(at, here, keys, values): of positions at .. at + here.
// out(i): where the i-th result goes.
template <class Memory, class Query, class Fetch, class Out>
inline void attend_piece(const Piece& p, Query query, Fetch fetch, Out out) {
  const int64_t D = p.key_width, E = p.value_width, count = p.count;
  float* q = scratch<float, Memory>(count * (D + KEYS + E + 2) + KEYS * (2 * D + E));
  float* scores = q + count * D;
  float* block = scores + count * KEYS;  // [keys, D]
  float* keys = block + KEYS * D;        // [D, keys]
  float* values = keys + KEYS * D;       // [keys, E]
  float* means = values + KEYS * E;      // [queries, E]
  const Softmax softmax{means + count * E, means + count * (E + 1), means};
  for (int64_t i = 0; i < count; i++) {
    query(i, q + i * D);
    softmax.top[i] = -INFINITY;
    softmax.total[i] = 0.0f;
  }
  memset(means, 0, count * E * sizeof(float));
  for (int64_t at = 0; at < p.last; at += KEYS) {
    const int64_t here = p.last - at < KEYS ? p.last - at : KEYS;
    memset(block + here * D, 0, (KEYS - here) * D * sizeof(float));
    memset(values + here * E, 0, (KEYS - here) * E * sizeof(float));
    fetch(at, here, block, values);
    transpose(block, KEYS, D, keys);
    memset(scores, 0, count * KEYS * sizeof(float));
    add_product({q, D, 1}, keys, KEYS, scores, KEYS, count, D, KEYS, D);
    for (int64_t i = 0; i < count; i++) {
      const int64_t seen = p.position + i / p.per + 1 - at;
      if (seen > 0) {
        weigh(scores + i * KEYS, seen < here ? seen : here, i, E, softmax);
      } else {
        memset(scores + i * KEYS, 0, KEYS * sizeof(float));
      }
    }
    add_product({scores, KEYS, 1}, values, E, means, E, count, KEYS, E, KEYS);
  }
  for (int64_t i = 0; i < count; i++) {
    float* to = out(i);
    const float share = 1.0f / softmax.total[i];
    runs(E, [&](int64_t d, int64_t n) {
      store_run(to + d, load_run(means + i * E + d, n) * share, n);
    });
  }
}

// body(row, first, end, part) for all new tokens of the rows, QUERIES at a time, in `parts` parts
// each; the longest first: from the end.
template <class F>
void each_piece(const int64_t* starts, int64_t rows, int64_t tokens, int64_t parts, Team& team,
                F body) {
  auto length = [=](int64_t row) { return starts[row + 1] - starts[row]; };
  auto blocks = [=](int64_t row) { return (length(row) + QUERIES - 1) / QUERIES; };
  const int64_t most = tokens / QUERIES + rows;  // blocks: each row's last may be short
  team.each(most * parts, [&](int64_t job) {
    int64_t row = rows - 1, after = job / parts;
    while (row >= 0 && after >= blocks(row)) after -= blocks(row--);
    if (row < 0) return;
    const int64_t first = (blocks(row) - 1 - after) * QUERIES;
    body(row, first, first + QUERIES < length(row) ? first + QUERIES : length(row), job % parts);
  });
}

// Queries first .. end (tokens of the row's new ones), for the query heads of one KV head.
template <class T>
void attend_prompt(const AttnPrefill& a, int64_t row, int64_t first, int64_t end, int64_t kv_head) {
  struct Memory {};
  const int64_t D = a.head_dim, per = a.heads / a.kv_heads;
  const int64_t prefix = a.kv_lens[row] - (a.starts[row + 1] - a.starts[row]);
  const int32_t* table = a.tables + a.table_rows[row] * a.table_stride;
  const float scale = static_cast<float>(a.scale);
  auto token = [&](int64_t i) { return a.starts[row] + first + i / per; };
  auto query = [&](int64_t i, float* to) {
    const float* from = a.q + token(i) * a.q_stride + (kv_head * per + i % per) * D;
    runs(D, [&](int64_t d, int64_t n) { store_run(to + d, load_run(from + d, n) * scale, n); });
  };
  auto fetch = [&](int64_t at, int64_t here, float* keys, float* values) {
    for (int64_t i = 0; i < here; i++) {
      const int64_t place = table[(at + i) / a.page_size] * a.page_stride +
                            ((at + i) % a.page_size * a.kv_heads + kv_head) * D;
      const T* k = static_cast<const T*>(a.k_pool) + place;
      const T* v = static_cast<const T*>(a.v_pool) + place;
      runs(D, [&](int64_t d, int64_t n) {
        store_run(keys + i * D + d, load_run(k + d, n), n);
        store_run(values + i * D + d, load_run(v + d, n), n);
      });
    }
  };
  auto out = [&](int64_t i) {
    return a.out + (token(i) * a.heads + kv_head * per + i % per) * D;
  };
  const Piece piece{(end - first) * per, per, prefix + first, prefix + end, D, D};
  attend_piece<Memory>(piece, query, fetch, out);
}

void attn_prefill(const AttnPrefill& a, Team& team) {
  auto work = [&](int64_t row, int64_t first, int64_t end, int64_t kv_head) {
    if (a.dtype == FLOAT32) {
      attend_prompt<float>(a, row, first, end, kv_head);
    } else {
      attend_prompt<Bf16>(a, row, first, end, kv_head);
    }
  };
  each_piece(a.starts, a.rows, a.tokens, a.kv_heads, team, work);
}

}  // namespace
