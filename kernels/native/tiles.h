// Products of bfloat16 in the CPU's tile registers (Intel AMX): 16 rows of 64 bytes each.
#pragma once
#include "vectors.h"

#if defined(BATON_DOT_BF16) && defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__linux__)
#define BATON_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int64_t TILE_ROWS = 16;

#ifdef BATON_TILES

constexpr int64_t TILE_VALUES = 512;  // of bfloat16 in a whole tile
constexpr int64_t TILE_STEPS = 16;    // pairs of inputs that one product of tiles takes

// Whether this process may use the registers. Linux gives them to a process that asks.
inline bool tiles_allowed() {
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
  return allowed;
}

// Tiles 0 to 3 hold sums, 4 and 5 activations, 6 and 7 weights.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// A thread's tile registers, for as many rows of activations at a time, at most TILE_ROWS.
class Tiles {
 public:
  explicit Tiles(int64_t rows) {
    TileShapes shapes;
    for (int i = 0; i < 6; i++) shapes.rows[i] = static_cast<uint8_t>(rows);
    shapes.rows[6] = shapes.rows[7] = TILE_STEPS;
    _tile_loadconfig(&shapes);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
};

// The sums of R tiles of activation rows and V panels of weights gain the products of TILE_STEPS
// steps. x: rows `x_stride` values apart; w, w_next: the weights of the panels.
template <int R, int V>
inline void add_tiles(const Bf16* x, int64_t x_stride, const Bf16* w, const Bf16* w_next) {
  const int64_t x_bytes = x_stride * sizeof(Bf16);
  _tile_loadd(6, w, 64);
  if constexpr (V > 1) _tile_loadd(7, w_next, 64);
  _tile_loadd(4, x, x_bytes);
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (V > 1) _tile_dpbf16ps(1, 4, 7);
  if constexpr (R > 1) {
    _tile_loadd(5, x + TILE_ROWS * x_stride, x_bytes);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (V > 1) _tile_dpbf16ps(3, 5, 7);
  }
}

// Tiles of weights that are made before they are multiplied lie in a ring of RING for each panel,
// AHEAD of the one in use: the stores are then over, and the tile's load does not wait for them.
constexpr int64_t RING = 8, AHEAD = 4;

// The sums of R tiles of rows times V panels from `panel` on, from zero over all `steps`, in order:
// a row's sums do not depend on the rows beside it.
template <int R, int V, class P>
inline void sum_tiles(const Bf16* x, int64_t x_stride, const P& panels, int64_t panel,
                      int64_t steps) {
  alignas(64) Bf16 ring[P::MADE ? RING * V * TILE_VALUES : 1];
  asm volatile("" : : : "memory");  // gcc does not see what a tile loads
  _tile_zero(0);
  if constexpr (V > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && V > 1) _tile_zero(3);
  const int64_t whole = steps / TILE_STEPS;
  auto place = [&](int64_t k, int v) { return ring + (k % RING * V + v) * TILE_VALUES; };
  auto make = [&](int64_t k) {
    for (int v = 0; v < V; v++) panels.make(panel + v, k, TILE_STEPS, place(k, v));
  };
  if constexpr (P::MADE) {
    for (int64_t k = 0; k < AHEAD && k < whole; k++) make(k);
  }
  for (int64_t k = 0; k < whole; k++) {
    if constexpr (P::MADE) {
      if (k + AHEAD < whole) make(k + AHEAD);
      asm volatile("" : : "r"(ring) : "memory");
      add_tiles<R, V>(x + k * DOT_LANES, x_stride, place(k, 0), place(k, V - 1));
    } else {
      add_tiles<R, V>(x + k * DOT_LANES, x_stride, panels.tile(panel, k),
                      panels.tile(panel + V - 1, k));
    }
  }
  if (const int64_t left = steps % TILE_STEPS) {  // behind them lies the next panel, or nothing
    alignas(64) Bf16 last[V * TILE_VALUES] = {};
    for (int v = 0; v < V; v++) panels.make(panel + v, whole, left, last + v * TILE_VALUES);
    asm volatile("" : : "r"(last) : "memory");
    add_tiles<R, V>(x + whole * DOT_LANES, x_stride, last, last + (V - 1) * TILE_VALUES);
  }
}

#else

inline bool tiles_allowed() { return false; }

#endif

}  // namespace
