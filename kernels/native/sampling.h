// Draws of tokens from logits: filters without a sort, and noise where it can win alone.
#pragma once
#include <algorithm>
#include <limits>

#include "team.h"
#include "vectors.h"

namespace {

struct SampleTokens {
  const float* logits;              // [any, vocab], rows `stride` apart
  const int64_t* rows;              // [count], rows of the logits
  const float* temperature;         // [count]
  const int64_t *seeds, *positions;  // [count]
  const int64_t* top_k;             // [count]; null, with the next two: no row filters
  const float *top_p, *min_p;       // [count]
  int64_t* tokens;                  // [any]; those of `rows` are written
  int64_t count, vocab, stride;
};

constexpr float NEVER = -std::numeric_limits<float>::infinity();

// A token of one row. Those before it in the order have larger logits, or equal ones and come
// earlier in the vocabulary. What filters keep is the beginning of that order.
struct Ranked {
  float value;
  int64_t token;

  bool before(const Ranked& other) const {
    return value > other.value || (value == other.value && token < other.token);
  }
};

constexpr Ranked LAST = {NEVER, std::numeric_limits<int64_t>::max()};

// Tokens by how far their logits are below the best: 64 buckets a nat, and one for the rest.
constexpr int64_t BUCKETS = 2048;
constexpr float BUCKETS_A_NAT = 64.0f;

inline int64_t bucket_of(float below) {
  const float place = below * BUCKETS_A_NAT;
  return place < BUCKETS - 1 ? static_cast<int64_t>(place) : BUCKETS - 1;
}

// The tokens of one row that are at least `floor`, counted and weighed by bucket in one pass.
class Buckets {
 public:
  Buckets(const float* x, int64_t vocab, float best, float floor)
      : x_(x), vocab_(vocab), best_(best), floor_(floor),
        counts_(scratch<int64_t, struct Counts>(BUCKETS)),
        masses_(scratch<double, struct Masses>(BUCKETS)) {
    std::fill_n(counts_, BUCKETS, 0);
    std::fill_n(masses_, BUCKETS, 0.0);
    runs(vocab, [&](int64_t i, int64_t n) {
      float weights[LANES];
      store(weights, exp(load_run(x + i, n) - best));
      for (int64_t j = 0; j < n; j++) {
        if (!(x[i + j] >= floor)) continue;
        const int64_t bucket = bucket_of(best - x[i + j]);
        counts_[bucket]++;
        masses_[bucket] += weights[j];
      }
    });
  }

  // The last token that top-k and then top-p keep.
  Ranked last_kept(int64_t top_k, float top_p) {
    int64_t all = 0, bucket = 0, earlier = 0;
    for (int64_t b = 0; b < BUCKETS; b++) all += counts_[b];
    if (!all) return LAST;
    const int64_t kept = top_k > 0 && top_k < all ? top_k : all;
    double whole = 0.0;
    while (bucket < BUCKETS && earlier + counts_[bucket] <= kept) {
      earlier += counts_[bucket];
      whole += masses_[bucket++];
    }
    Ranked last = LAST;
    const int64_t partial = kept - earlier;  // tokens of `bucket` that are kept
    if (partial) {
      sort_bucket(bucket);
      for (int64_t i = 0; i < partial; i++) whole += weight(sorted()[i]);
      last = sorted()[partial - 1];
    } else if (kept < all) {
      sort_bucket(last_filled(bucket));
      last = sorted().back();
    }
    return top_p < 1.0f ? nucleus(top_p * whole, last) : last;
  }

 private:
  const float* x_;
  int64_t vocab_;
  float best_, floor_;
  int64_t* counts_;
  double* masses_;

  static std::vector<Ranked>& sorted() {
    thread_local std::vector<Ranked> tokens;
    return tokens;
  }

  double weight(const Ranked& token) const { return exp(splat(token.value - best_))[0]; }

  // The last bucket below `end` that has a token.
  int64_t last_filled(int64_t end) const {
    while (!counts_[--end]) {
    }
    return end;
  }

  // The last token, at most `last`, that has less than `wanted` of mass before it. The likeliest
  // always is one.
  Ranked nucleus(double wanted, Ranked last) {
    double mass = 0.0;
    int64_t bucket = 0;
    while (bucket < BUCKETS && mass + masses_[bucket] < wanted) mass += masses_[bucket++];
    if (bucket == BUCKETS) return last;  // by rounding alone
    sort_bucket(bucket);
    Ranked found = sorted()[0];
    for (const Ranked& token : sorted()) {
      if (mass >= wanted) break;
      found = token;
      mass += weight(token);
    }
    return last.before(found) ? last : found;
  }

  // Puts the tokens of one bucket in order.
  void sort_bucket(int64_t bucket) {
    std::vector<Ranked>& found = sorted();
    found.clear();
    const float low = static_cast<float>(bucket);
    runs(vocab_, [&](int64_t i, int64_t n) {
      const Vec place = (best_ - load_run(x_ + i, n)) * BUCKETS_A_NAT;
      const IntVec inside =
          bucket < BUCKETS - 1 ? (place >= low) & (place < low + 1.0f) : place >= low;
      int32_t any = 0;
      UNROLL for (int j = 0; j < LANES; j++) any |= inside[j];
      if (!any) return;
      for (int64_t j = 0; j < n; j++) {
        if (inside[j] && x_[i + j] >= floor_) found.push_back({x_[i + j], i + j});
      }
    });
    std::sort(found.begin(), found.end(),
              [](const Ranked& a, const Ranked& b) { return a.before(b); });
  }
};

constexpr int64_t DRAWN = 4 * LANES;  // tokens whose noise is made together

// The uniform words of DRAWN tokens from `first` on: see kernels/philox.py.
inline void philox(int64_t first, uint64_t seed, uint64_t position, uint32_t* words) {
  uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
  for (int j = 0; j < LANES; j++) {
    c0[j] = static_cast<uint32_t>(first / 4 + j);
    c1[j] = static_cast<uint32_t>(position);
    c2[j] = static_cast<uint32_t>(position >> 32);
    c3[j] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; round++) {
    for (int j = 0; j < LANES; j++) {
      const uint64_t low = uint64_t{c0[j]} * 0xD2511F53u, high = uint64_t{c2[j]} * 0xCD9E8D57u;
      c0[j] = static_cast<uint32_t>(high >> 32) ^ c1[j] ^ k0;
      c2[j] = static_cast<uint32_t>(low >> 32) ^ c3[j] ^ k1;
      c1[j] = static_cast<uint32_t>(high);
      c3[j] = static_cast<uint32_t>(low);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int j = 0; j < LANES; j++) {
    words[4 * j] = c0[j];
    words[4 * j + 1] = c1[j];
    words[4 * j + 2] = c2[j];
    words[4 * j + 3] = c3[j];
  }
}

// The largest noise: -log of the least uniform number, 2^-33.
constexpr float MOST_NOISE = 22.9f;

// The token whose logit and Gumbel noise -log(-log(1 - u)) add up to most, of those that are at
// least `floor` and not after `last`. The noise of a token is worked out only where u is so small
// that it may win: -log(1 - u) is at least u. x: [vocab], and DRAWN times never behind it.
inline int64_t draw(const float* x, int64_t vocab, float best, float floor, Ranked last,
                    uint64_t seed, uint64_t position) {
  float winner = NEVER;
  int64_t chosen = -1;
  for (int64_t first = 0; first < vocab; first += DRAWN) {
    const float least = std::max({winner - MOST_NOISE, floor, last.value});
    IntVec worth = {};
    for (int64_t i = 0; i < DRAWN; i += LANES) worth |= load(x + first + i) >= least;
    int32_t any = 0;
    UNROLL for (int j = 0; j < LANES; j++) any |= worth[j];
    if (!any) continue;
    uint32_t words[DRAWN];
    philox(first, seed, position, words);
    for (int64_t i = 0; i < DRAWN; i += LANES) {
      const Vec logits = load(x + first + i);
      const Vec wide = __builtin_convertvector(*reinterpret_cast<BitVec*>(words + i), Vec);
      Vec u = (wide + 0.5f) * 2.3283064365386963e-10f;
      u = u > 0.99999994f ? splat(0.99999994f) : u;
      const IntVec may = (u < exp(logits - winner) * 1.001f) & (logits >= least);
      any = 0;
      UNROLL for (int j = 0; j < LANES; j++) any |= may[j];
      if (!any) continue;
      for (int64_t j = 0; j < LANES; j++) {
        const Ranked token = {logits[j], first + i + j};
        if (!may[j] || last.before(token) || token.token >= vocab) continue;
        const float value = logits[j] - logf(-log1pf(-u[j]));
        if (value > winner) {
          winner = value;
          chosen = token.token;
        }
      }
    }
  }
  if (chosen < 0) {  // no logit is a number: any token, but one of the vocabulary
    while (++chosen < vocab - 1 && x[chosen] != best) {
    }
  }
  return chosen;
}

void sample_tokens(const SampleTokens& a, Team& team) {
  team.each(a.count, [&](int64_t n) {
    const float* logits = a.logits + a.rows[n] * a.stride;
    const float temperature = a.temperature[n];
    float* x = scratch<float, struct Scaled>(a.vocab + DRAWN);
    float best = NEVER;
    Vec tops = splat(NEVER);
    runs(a.vocab, [&](int64_t i, int64_t some) {
      const Vec scaled = load_run(logits + i, some) / temperature;
      store_run(x + i, scaled, some);
      if (some == LANES) tops = scaled > tops ? scaled : tops;
    });
    for (int64_t i = a.vocab / LANES * LANES; i < a.vocab; i++) best = std::max(best, x[i]);
    UNROLL for (int j = 0; j < LANES; j++) best = tops[j] > best ? tops[j] : best;
    std::fill_n(x + a.vocab, DRAWN, NEVER);
    float floor = NEVER;
    Ranked last = LAST;
    if (a.top_k && best > NEVER) {
      if (a.min_p[n] > 0.0f) floor = std::min(best, best + logf(a.min_p[n]));
      if (a.top_k[n] > 0 || a.top_p[n] < 1.0f) {
        last = Buckets(x, a.vocab, best, floor).last_kept(a.top_k[n], a.top_p[n]);
      }
    }
    a.tokens[a.rows[n]] =
        draw(x, a.vocab, best, floor, last, static_cast<uint64_t>(a.seeds[n]),
             static_cast<uint64_t>(a.positions[n]));
  });
}

}  // namespace
