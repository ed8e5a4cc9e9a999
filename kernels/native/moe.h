// Mixtures of experts: which experts a token goes to, and the feed-forward of those.
#pragma once
#include "eight_bit.h"
#include "linear.h"
#include "team.h"
#include "vectors.h"

namespace {

// Places of the `count` largest of `size` values, the largest first; of equals the first. A NaN is
// chosen last, so that there always are `count`.
inline void largest(const float* values, int64_t size, int64_t count, int64_t* places) {
  struct Taken {};
  char* taken = scratch<char, Taken>(size);
  memset(taken, 0, size);
  for (int64_t k = 0; k < count; k++) {
    int64_t best = -1;
    for (int64_t i = 0; i < size; i++) {
      if (taken[i]) continue;
      const bool number = values[i] == values[i];  // not NaN
      if (best < 0 || values[i] > values[best] || (values[best] != values[best] && number)) best = i;
    }
    taken[best] = 1;
    places[k] = best;
  }
}

struct RouteSoftmax {
  const float* logits;  // [rows, experts]
  float* weights;       // [rows, top_k]
  int64_t* chosen;      // [rows, top_k]
  int64_t rows, experts, top_k;
};

void route_softmax(const RouteSoftmax& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    const float* logits = a.logits + row * a.experts;
    float* weights = a.weights + row * a.top_k;
    int64_t* chosen = a.chosen + row * a.top_k;
    largest(logits, a.experts, a.top_k, chosen);
    float total = 0.0f;
    for (int64_t k = 0; k < a.top_k; k++) {
      total += weights[k] = expf(logits[chosen[k]] - logits[chosen[0]]);
    }
    for (int64_t k = 0; k < a.top_k; k++) weights[k] /= total;
  });
}

struct RouteGrouped {
  const float *logits, *correction;  // [rows, experts], [experts]
  float* weights;                    // [rows, top_k]
  int64_t* chosen;                   // [rows, top_k]
  int64_t rows, experts, top_k, groups, top_groups, normalised;
  double factor;
};

// Returns the sum of the two largest of `size` values.
inline float best_two(const float* values, int64_t size) {
  float first = -INFINITY, second = -INFINITY;
  for (int64_t i = 0; i < size; i++) {
    if (values[i] > first) {
      second = first;
      first = values[i];
    } else if (values[i] > second) {
      second = values[i];
    }
  }
  return first + second;
}

// All but the groups that are worth most are ranked last.
inline void keep_best(float* ranked, const float* worth, int64_t groups, int64_t kept,
                      int64_t size) {
  struct Groups {};
  int64_t* best = scratch<int64_t, Groups>(groups);
  largest(worth, groups, groups, best);
  for (int64_t g = kept; g < groups; g++) {
    for (int64_t e = 0; e < size; e++) ranked[best[g] * size + e] = -INFINITY;
  }
}

void route_grouped(const RouteGrouped& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    struct Scores {};
    const int64_t size = a.experts / a.groups;
    float* scores = scratch<float, Scores>(2 * a.experts + a.groups);
    float* ranked = scores + a.experts;
    float* worth = ranked + a.experts;
    for (int64_t e = 0; e < a.experts; e++) {
      scores[e] = 1.0f / (1.0f + expf(-a.logits[row * a.experts + e]));
      ranked[e] = scores[e] + a.correction[e];
    }
    if (a.top_groups < a.groups) {
      for (int64_t g = 0; g < a.groups; g++) worth[g] = best_two(ranked + g * size, size);
      keep_best(ranked, worth, a.groups, a.top_groups, size);
    }
    float* weights = a.weights + row * a.top_k;
    int64_t* chosen = a.chosen + row * a.top_k;
    largest(ranked, a.experts, a.top_k, chosen);
    float total = 1e-20f;
    for (int64_t k = 0; k < a.top_k; k++) total += weights[k] = scores[chosen[k]];
    const float factor = static_cast<float>(a.factor) / (a.normalised ? total : 1.0f);
    for (int64_t k = 0; k < a.top_k; k++) weights[k] *= factor;
  });
}

struct RouteSoftmaxGrouped {
  const float* logits;  // [rows, experts]
  float* weights;       // [rows, top_k]
  int64_t* chosen;      // [rows, top_k]
  int64_t rows, experts, top_k, groups, top_groups, normalised;
  double factor;
};

void route_softmax_grouped(const RouteSoftmaxGrouped& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    struct Ranked {};
    const int64_t size = a.experts / a.groups;
    const float* logits = a.logits + row * a.experts;
    float* ranked = scratch<float, Ranked>(a.experts + a.groups);
    float* worth = ranked + a.experts;
    float top = -INFINITY;
    for (int64_t e = 0; e < a.experts; e++) top = logits[e] > top ? logits[e] : top;
    float total = 0.0f;
    for (int64_t e = 0; e < a.experts; e++) total += ranked[e] = expf(logits[e] - top);
    for (int64_t e = 0; e < a.experts; e++) ranked[e] /= total;
    if (a.top_groups < a.groups) {
      for (int64_t g = 0; g < a.groups; g++) {
        worth[g] = -INFINITY;
        for (int64_t e = 0; e < size; e++) {
          worth[g] = ranked[g * size + e] > worth[g] ? ranked[g * size + e] : worth[g];
        }
      }
      keep_best(ranked, worth, a.groups, a.top_groups, size);
    }
    float* weights = a.weights + row * a.top_k;
    int64_t* chosen = a.chosen + row * a.top_k;
    largest(ranked, a.experts, a.top_k, chosen);
    float kept = 1e-20f;
    for (int64_t k = 0; k < a.top_k; k++) kept += weights[k] = ranked[chosen[k]];
    const float factor = static_cast<float>(a.factor) / (a.normalised ? kept : 1.0f);
    for (int64_t k = 0; k < a.top_k; k++) weights[k] *= factor;
  });
}

struct Experts {
  const float* x;               // [rows, width], rows x_stride apart
  const float* weights;         // [rows, top_k]
  const int64_t* chosen;        // [rows, top_k]
  const void *up, *down;        // [experts, inner, width] (gated: [2 inner, width], the gate's rows
                                // first), [experts, width, inner]
  const float *up_scale, *down_scale;  // of 8 bits: [experts, their rows, groups of a row]
  float *gathered, *activated;  // [rows * top_k, width and inner, rounded up to 32], scratch
  float* outer;                 // [rows * top_k, width], scratch
  int64_t* order;               // [rows * top_k + 2 experts + 2], scratch
  float* y;                     // [rows, width]
  // Of 8-bit numbers that are expanded, columns that share a scale, a multiple of 32; else 0. Their
  // `dtype` is the one to which they are expanded. They are floats (E4M3, no NaN) or integers.
  int64_t up_group, down_group, up_integers, down_integers;
  int64_t rows, width, inner, experts, top_k, x_stride, dtype, gated;
};

// The rows of all experts' matrices of one kind, one after another: up or down in Experts.
struct ExpertRows {
  const void* weight;
  const float* scale;
  int64_t group, integers;
};

// Outputs first .. end of the matrix that begins at row `origin`, of 8-bit numbers N: expanded four
// rows at a time, which stay in the first-level cache while they meet a block of activations.
template <class Tile, class N>
void expanded_part(const ExpertRows& from, int64_t origin, Linear a, const typename Tile::Value* x,
                 int64_t x_stride, int64_t first, int64_t end) {
  typedef typename Tile::Weight Weight;
  struct Expanded {};
  constexpr int64_t BLOCK = 48, TOGETHER = 4;
  const auto* numbers = static_cast<const N*>(from.weight) + origin * a.columns;
  const int64_t groups = (a.columns + from.group - 1) / from.group;
  const float* scales = from.scale + origin * groups;
  Weight* expanded = scratch<Weight, Expanded>(TOGETHER * a.columns);
  Linear block = a;
  for (int64_t row = 0; row < a.rows; row += BLOCK) {
    block.rows = row + BLOCK < a.rows ? BLOCK : a.rows - row;
    block.y = a.y + row * a.outputs;
    for (int64_t o = first; o < end; o += TOGETHER) {
      const int64_t count = end - o < TOGETHER ? end - o : TOGETHER;
      for (int64_t r = 0; r < count; r++) {
        expand_row(numbers + (o + r) * a.columns, scales + (o + r) * groups, from.group, a.columns,
                   expanded + r * a.columns);
      }
      block.weight = expanded - o * a.columns;
      const auto* values = x + row * x_stride;
      if (count == TOGETHER) {
        weight_rows<Tile, TOGETHER, 6>(block, values, x_stride, o);
      } else {
        linear_part<Tile>(block, values, x_stride, o, o + count);
      }
    }
  }
}

// Outputs first .. end of the matrix that begins at row `origin`.
template <class Tile>
void expert_part(const ExpertRows& from, int64_t origin, Linear a, const typename Tile::Value* x,
                 int64_t x_stride, int64_t first, int64_t end) {
  typedef typename Tile::Weight Weight;
  if (!from.group) {
    a.weight = static_cast<const Weight*>(from.weight) + origin * a.columns;
    return linear_part<Tile>(a, x, x_stride, first, end);
  }
  if (from.integers) return expanded_part<Tile, int8_t>(from, origin, a, x, x_stride, first, end);
  expanded_part<Tile, uint8_t>(from, origin, a, x, x_stride, first, end);
}

// The (row, choice) pairs in order of their experts, in `order`.
//
// Read `chosen` and `order` inside of loops alone: a thread that arrives after the operation is done
// finds other contents there.
struct ByExpert {
  int64_t* places;  // [rows * top_k], where each pair lies
  int64_t* starts;  // [experts + 1], first place of each expert
  int64_t* active;  // experts with any
  int64_t* count;   // [1], of those

  explicit ByExpert(const Experts& a)
      : places(a.order), starts(places + a.rows * a.top_k), active(starts + a.experts + 1),
        count(active + a.experts) {}

  void make(const Experts& a) {
    const int64_t pairs = a.rows * a.top_k;
    memset(starts, 0, (a.experts + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < pairs; i++) places[i] = starts[a.chosen[i] + 1]++;
    *count = 0;
    for (int64_t e = 0; e < a.experts; e++) {
      if (starts[e + 1]) active[(*count)++] = e;
      starts[e + 1] += starts[e];
    }
    for (int64_t i = 0; i < pairs; i++) places[i] += starts[a.chosen[i]];
  }
};

// activated[rows, first .. first + count] of one expert: silu(gate x) up x, or relu(up x)^2.
template <class Tile>
void expert_up(const Experts& a, const ByExpert& pairs, int64_t expert, int64_t first,
               int64_t count) {
  typedef typename Tile::Value Value;
  struct Products {};
  constexpr int64_t BLOCK = 48;
  const int64_t x_stride = padded_width(a.width), stride = padded_width(a.inner);
  float* up = scratch<float, Products>(2 * BLOCK * WEIGHT_PART);
  float* gate = up + BLOCK * WEIGHT_PART;
  auto product = [&](int64_t row, int64_t rows, int64_t output, float* to) {
    output += expert * a.inner * (a.gated ? 2 : 1) + first;
    Linear part{};
    part.y = to;
    part.rows = rows;
    part.columns = a.width;
    part.outputs = WEIGHT_PART;
    expert_part<Tile>({a.up, a.up_scale, a.up_group, a.up_integers}, output, part,
                      reinterpret_cast<const Value*>(a.gathered) + row * x_stride, x_stride, 0,
                      count);
  };
  for (int64_t row = pairs.starts[expert]; row < pairs.starts[expert + 1]; row += BLOCK) {
    const int64_t left = pairs.starts[expert + 1] - row, rows = left < BLOCK ? left : BLOCK;
    product(row, rows, a.gated ? a.inner : 0, up);
    if (a.gated) product(row, rows, 0, gate);
    for (int64_t r = 0; r < rows; r++) {
      Value* to = reinterpret_cast<Value*>(a.activated) + (row + r) * stride + first;
      runs(count, [&](int64_t i, int64_t n) {
        Vec v = load_run(up + r * WEIGHT_PART + i, n);
        v = a.gated ? silu(load_run(gate + r * WEIGHT_PART + i, n)) * v : relu2(v);
        store_run(to + i, v, n);
      });
      if (first + count == a.inner) memset(to + count, 0, (stride - a.inner) * sizeof(Value));
    }
  }
}

template <class Tile>
void experts_as(const Experts& a, Team& team) {
  typedef typename Tile::Value Value;
  ByExpert pairs(a);
  const int64_t x_stride = padded_width(a.width), stride = padded_width(a.inner);
  const int64_t most = a.experts < a.rows * a.top_k ? a.experts : a.rows * a.top_k;
  auto each_part = [&](int64_t outputs, auto body) {
    const int64_t parts = (outputs + WEIGHT_PART - 1) / WEIGHT_PART;
    team.each(most * parts, [&](int64_t job) {
      if (job / parts >= *pairs.count) return;
      const int64_t first = job % parts * WEIGHT_PART;
      const int64_t end = first + WEIGHT_PART < outputs ? first + WEIGHT_PART : outputs;
      body(pairs.active[job / parts], first, end);
    });
  };
  team.each(1, [&](int64_t) { pairs.make(a); });
  team.each(a.rows * a.top_k, [&](int64_t i) {
    Value* to = reinterpret_cast<Value*>(a.gathered) + pairs.places[i] * x_stride;
    convert_row(a.x + i / a.top_k * a.x_stride, to, a.width, x_stride);
  });
  each_part(a.inner, [&](int64_t expert, int64_t first, int64_t end) {
    expert_up<Tile>(a, pairs, expert, first, end - first);
  });
  each_part(a.width, [&](int64_t expert, int64_t first, int64_t end) {
    const int64_t row = pairs.starts[expert];
    Linear down{};
    down.y = a.outer + row * a.width;
    down.rows = pairs.starts[expert + 1] - row;
    down.columns = a.inner;
    down.outputs = a.width;
    expert_part<Tile>({a.down, a.down_scale, a.down_group, a.down_integers}, expert * a.width, down,
                      reinterpret_cast<const Value*>(a.activated) + row * stride, stride, first,
                      end);
  });
  team.each(a.rows, [&](int64_t row) {  // in the token's own order of experts
    float* y = a.y + row * a.width;
    memset(y, 0, a.width * sizeof(float));
    for (int64_t k = 0; k < a.top_k; k++) {
      const float* outer = a.outer + pairs.places[row * a.top_k + k] * a.width;
      const float weight = a.weights[row * a.top_k + k];
      runs(a.width, [&](int64_t i, int64_t n) {
        store_run(y + i, load_run(y + i, n) + weight * load_run(outer + i, n), n);
      });
    }
  });
}

void experts(const Experts& a, Team& team) {
  if (a.dtype == FLOAT32) return experts_as<FloatTile<float>>(a, team);
#ifdef BATON_DOT_BF16
  experts_as<DotTile>(a, team);
#else
  experts_as<FloatTile<Bf16>>(a, team);
#endif
}

}  // namespace
