// Attention of prompts over pages.
#pragma once
#include "attention_token.h"
#include "products.h"
#include "scores.h"
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

// The softmaxes of a piece's queries: of the part of the positions that they are in, and of all parts
// before it. A query's parts follow from its own length, as in a decode step.
struct Parts {
  Softmax part, all;
  int64_t width;

  // Behind the positions before `end`: begins another part for those whose part they complete.
  void end_block(const Piece& p, int64_t end) const {
    // The tokens of a piece are too few for more than two lengths of parts.
    if (end % part_length(p.position + 1) && end % part_length(p.last)) return;
    for (int64_t i = 0; i < p.count; i++) {
      const int64_t length = p.position + i / p.per + 1, each = part_length(length);
      if (end >= length || end % each) continue;
      end_part(i, end == each);
      part.top[i] = -INFINITY;
      part.total[i] = 0.0f;
      memset(part.values + i * width, 0, width * sizeof(float));
    }
  }

  // Adds the part of the i-th query to those before it.
  void end_part(int64_t i, bool first) const {
    if (first) {
      all.top[i] = part.top[i];
      all.total[i] = part.total[i];
      memcpy(all.values + i * width, part.values + i * width, width * sizeof(float));
    } else {
      merge_part(of(part, i), of(all, i), 1, width);
    }
  }

  // The i-th query's softmax of all its positions.
  Softmax whole(const Piece& p, int64_t i) const {
    const int64_t length = p.position + i / p.per + 1;
    if (length <= part_length(length)) return of(part, i);
    end_part(i, false);
    return of(all, i);
  }

  Softmax of(const Softmax& softmax, int64_t i) const {
    return {softmax.top + i, softmax.total + i, softmax.values + i * width};
  }
};

// query(i, to): the i-th query, scaled. fetch(at, here, keys, values): of positions at .. at + here.
// out(i): where the i-th result goes. Without AS_STEP there is one part, and channels are summed one
// after another.
template <Order ORDER, class Memory, class Query, class Fetch, class Out>
inline void attend_piece(const Piece& p, Query query, Fetch fetch, Out out) {
  constexpr bool AS_STEP = ORDER != Order::CHANNELS;
  const int64_t D = p.key_width, E = p.value_width, count = p.count;
  const int64_t softmaxes = (AS_STEP ? 2 : 1) * softmax_size(count, E);
  float* q = scratch<float, Memory>(count * (D + KEYS) + KEYS * (2 * D + E) + softmaxes);
  float* scores = q + count * D;
  float* block = scores + count * KEYS;  // [keys, D]
  float* keys = block + KEYS * D;        // [D, keys]
  float* values = keys + KEYS * D;       // [keys, E]
  float* means = values + KEYS * E;      // [queries, E]
  const Softmax softmax = softmax_in(means, count, E);
  const Parts parts{softmax, softmax_in(means + softmax_size(count, E), count, E), E};
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
    if constexpr (AS_STEP) {
      score_keys<ORDER>(q, keys, D, count, scores);
    } else {
      memset(scores, 0, count * KEYS * sizeof(float));
      add_product({q, D, 1}, keys, KEYS, scores, KEYS, count, D, KEYS, D);
    }
    for (int64_t i = 0; i < count; i++) {
      const int64_t seen = p.position + i / p.per + 1 - at;
      if (seen > 0) {
        weigh(scores + i * KEYS, seen < here ? seen : here, i, E, softmax);
      } else {
        memset(scores + i * KEYS, 0, KEYS * sizeof(float));
      }
    }
    add_product({scores, KEYS, 1}, values, E, means, E, count, KEYS, E, KEYS);
    if (AS_STEP) parts.end_block(p, at + KEYS);
  }
  for (int64_t i = 0; i < count; i++) {
    const Softmax all = AS_STEP ? parts.whole(p, i) : parts.of(softmax, i);
    write_means(all, 1, E, false, out(i));
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
  if (paired<T>(D, D)) {
    attend_piece<Order::PAIRED_LANES, Memory>(piece, query, fetch, out);
  } else {
    attend_piece<Order::LANES, Memory>(piece, query, fetch, out);
  }
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
