// Operations on each row of the activations, or on each value.
#pragma once
#include "team.h"
#include "vectors.h"

namespace {

struct RmsNorm {
  const float* x;       // [rows, heads, width], rows x_stride apart
  const float* weight;  // [heads, width]
  float* out;           // [rows, heads, width]
  int64_t rows, heads, width, x_stride;
  double eps;
};

float mean_square(const float* x, int64_t width) {
  Vec total = {};
  runs(width, [&](int64_t i, int64_t n) {
    Vec v = load_run(x + i, n);
    total += v * v;
  });
  return sum(total) / static_cast<float>(width);
}

void rms_norm(const RmsNorm& a, Team& team) {
  const float eps = static_cast<float>(a.eps);
  team.each(a.rows, [&](int64_t row) {
    for (int64_t head = 0; head < a.heads; head++) {
      const float* x = a.x + row * a.x_stride + head * a.width;
      const float* weights = a.weight + head * a.width;
      float* out = a.out + (row * a.heads + head) * a.width;
      const float scale = 1.0f / sqrtf(mean_square(x, a.width) + eps);
      runs(a.width, [&](int64_t i, int64_t n) {
        store_run(out + i, load_run(x + i, n) * scale * load_run(weights + i, n), n);
      });
    }
  });
}

struct SquareSums {
  const float* x;  // [rows, width], rows x_stride apart
  float* out;      // [rows, groups]: the sum of squares in column `group`, zeros in the others
  int64_t rows, width, x_stride, groups, group;
};

void square_sums(const SquareSums& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    float* out = a.out + row * a.groups;
    std::fill(out, out + a.groups, 0.0f);
    out[a.group] = mean_square(a.x + row * a.x_stride, a.width) * static_cast<float>(a.width);
  });
}

struct NormBySums {
  const float* x;       // [rows, width], rows x_stride apart
  const float* sums;    // [rows, groups], of squares
  const float* weight;  // [width]
  float* out;           // [rows, width]: x / sqrt(sum / whole + eps) * weight
  int64_t rows, width, x_stride, groups, group, whole;
  double eps;
};

void norm_by_sums(const NormBySums& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    const float mean = a.sums[row * a.groups + a.group] / static_cast<float>(a.whole);
    const float scale = 1.0f / std::sqrt(mean + static_cast<float>(a.eps));
    const float* x = a.x + row * a.x_stride;
    float* out = a.out + row * a.width;
    runs(a.width, [&](int64_t i, int64_t n) {
      store_run(out + i, load_run(x + i, n) * scale * load_run(a.weight + i, n), n);
    });
  });
}

struct SwiGlu {
  const float* gate_up;  // [rows, 2 * width], gate first
  float* out;            // [rows, width]
  int64_t rows, width;
};

template <class F>
void gated(const SwiGlu& a, Team& team, F act) {
  constexpr int64_t PART = 512;
  const int64_t parts = (a.width + PART - 1) / PART;
  team.each(a.rows * parts, [&](int64_t job) {
    const int64_t row = job / parts, first = job % parts * PART;
    const float* gate = a.gate_up + row * 2 * a.width + first;
    float* out = a.out + row * a.width + first;
    runs(first + PART < a.width ? PART : a.width - first, [&](int64_t i, int64_t n) {
      store_run(out + i, act(load_run(gate + i, n)) * load_run(gate + a.width + i, n), n);
    });
  });
}

void swiglu(const SwiGlu& a, Team& team) {
  gated(a, team, [](Vec gate) { return silu(gate); });
}

struct GeGlu : SwiGlu {};  // gelu in the place of silu

void geglu(const GeGlu& a, Team& team) {
  gated(a, team, [](Vec gate) {
    for (int64_t i = 0; i < LANES; i++) gate[i] *= 0.5f * (1.0f + erff(gate[i] * 0.70710678f));
    return gate;
  });
}

struct Concat {
  const float *x, *y;  // [rows, x_width], [rows, y_width], rows apart by their strides
  float* out;          // [rows, x_width + y_width]
  int64_t rows, x_width, y_width, x_stride, y_stride;
};

void concat(const Concat& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    float* out = a.out + row * (a.x_width + a.y_width);
    memcpy(out, a.x + row * a.x_stride, a.x_width * sizeof(float));
    memcpy(out + a.x_width, a.y + row * a.y_stride, a.y_width * sizeof(float));
  });
}

struct Relu2 {
  const float* x;  // [size]
  float* out;      // [size]; max(x, 0)^2
  int64_t size;
};

void relu2(const Relu2& a, Team& team) {
  constexpr int64_t PART = 4096;
  team.each((a.size + PART - 1) / PART, [&](int64_t part) {
    const int64_t first = part * PART;
    runs(first + PART < a.size ? PART : a.size - first, [&](int64_t i, int64_t n) {
      const Vec v = load_run(a.x + first + i, n);
      store_run(a.out + first + i, relu2(v), n);
    });
  });
}

struct SigmoidGated {
  const float* x;     // [rows, width]
  const float* gate;  // [rows, width], or [rows, 1] where it is `single`; rows gate_stride apart
  float* out;         // [rows, width]; x * sigmoid(gate)
  int64_t rows, width, gate_stride, single;
};

void sigmoid_gated(const SigmoidGated& a, Team& team) {
  team.each(a.rows, [&](int64_t row) {
    const float* gate = a.gate + row * a.gate_stride;
    runs(a.width, [&](int64_t i, int64_t n) {
      const Vec open = sigmoid(a.single ? splat(*gate) : load_run(gate + i, n));
      store_run(a.out + row * a.width + i, load_run(a.x + row * a.width + i, n) * open, n);
    });
  });
}

struct AddScaled {
  const float *x, *y;  // [size]
  float* out;          // [size]; x + alpha * y (or alpha * y where x is null)
  int64_t size;
  double alpha;
};

void add_scaled(const AddScaled& a, Team& team) {
  constexpr int64_t PART = 4096;
  const float alpha = static_cast<float>(a.alpha);
  team.each((a.size + PART - 1) / PART, [&](int64_t part) {
    const int64_t first = part * PART;
    runs(first + PART < a.size ? PART : a.size - first, [&](int64_t i, int64_t n) {
      Vec y = load_run(a.y + first + i, n) * alpha;
      store_run(a.out + first + i, a.x ? load_run(a.x + first + i, n) + y : y, n);
    });
  });
}

struct SelectRows {
  const float* x;       // [any, width]
  const int64_t* rows;  // [count]
  float* out;           // [count, width]
  int64_t count, width;
};

void select_rows(const SelectRows& a, Team& team) {
  team.each(a.count, [&](int64_t i) {
    memcpy(a.out + i * a.width, a.x + a.rows[i] * a.width, a.width * sizeof(float));
  });
}

struct Rope {
  const float* x;            // [rows, heads, head_dim], rows x_stride apart
  const float* cache;        // [positions, rotary]: cosines, then sines
  const int64_t* positions;  // [rows]
  float* out;                // [rows, heads, head_dim]
  int64_t rows, heads, head_dim, rotary, x_stride;
};

void rope(const Rope& a, Team& team) {
  const int64_t half = a.rotary / 2;
  team.each(a.rows, [&](int64_t row) {
    const float* cos = a.cache + a.positions[row] * a.rotary;
    for (int64_t head = 0; head < a.heads; head++) {
      const float* x = a.x + row * a.x_stride + head * a.head_dim;
      float* out = a.out + (row * a.heads + head) * a.head_dim;
      runs(half, [&](int64_t i, int64_t n) {
        Vec c = load_run(cos + i, n), s = load_run(cos + half + i, n);
        Vec first = load_run(x + i, n), second = load_run(x + half + i, n);
        store_run(out + i, first * c - second * s, n);
        store_run(out + half + i, second * c + first * s, n);
      });
      memcpy(out + a.rotary, x + a.rotary, (a.head_dim - a.rotary) * sizeof(float));
    }
  });
}

}  // namespace
