// Decode kernels for a CPU: what torch is slow at when a batch has few rows.
//
// ABI: `baton_run` runs a list of operations, each a function and a pointer to its arguments (plain
// structs of pointers, 64-bit integers and doubles; signatures.py mirrors them). The list runs in
// one parallel region: every thread enters every operation, and its loops (`Team::each`) end when
// all of their work is done, so that operation i is complete before i + 1 begins.
//
// Activations are float32. Weights, KV and recurrent state may be bfloat16, weights also int8 with
// a scale a row. Every sum is taken in an order that depends on the row's own sizes alone, never on
// the number of rows or threads: a row's result is the same bits in every batch.
#include <cstdint>
#include <memory>

#include "attention.h"
#include "attention_prompts.h"
#include "conv.h"
#include "conv_prompts.h"
#include "delta.h"
#include "delta_prompts.h"
#include "linear.h"
#include "mamba2.h"
#include "mamba2_prompts.h"
#include "mla.h"
#include "mla_prompts.h"
#include "moe.h"
#include "packed.h"
#include "past_cache.h"
#include "rows.h"
#include "team.h"

extern "C" {

#define OPERATION(function, Arguments)                         \
  void baton_##function(const void* arguments, void* team) {    \
    function(*static_cast<const Arguments*>(arguments),         \
             *static_cast<Team*>(team));                        \
  }

OPERATION(linear, Linear)
OPERATION(packed_linear, PackedLinear)
OPERATION(embedding, Embedding)
OPERATION(rms_norm, RmsNorm)
OPERATION(swiglu, SwiGlu)
OPERATION(geglu, GeGlu)
OPERATION(beside, Beside)
OPERATION(add_scaled, AddScaled)
OPERATION(select_rows, SelectRows)
OPERATION(rope, Rope)
OPERATION(kv_write, KvWrite)
OPERATION(attn_decode, AttnDecode)
OPERATION(attn_prefill, AttnPrefill)
OPERATION(relu2, Relu2)
OPERATION(sigmoid_gated, SigmoidGated)
OPERATION(route_softmax, RouteSoftmax)
OPERATION(route_grouped, RouteGrouped)
OPERATION(route_softmax_grouped, RouteSoftmaxGrouped)
OPERATION(rotate_tails, RotateTails)
OPERATION(latent_write, LatentWrite)
OPERATION(mla_query, MlaQuery)
OPERATION(mla_decode, MlaDecode)
OPERATION(latent_read, LatentRead)
OPERATION(mla_prefill, MlaPrefill)
OPERATION(from_latent, FromLatent)
OPERATION(experts, Experts)
OPERATION(conv_step, ConvStep)
OPERATION(conv_prefill, ConvPrefill)
OPERATION(delta_step, DeltaStep)
OPERATION(delta_prefill, DeltaPrefill)
OPERATION(mamba2_step, Mamba2Step)
OPERATION(mamba2_prefill, Mamba2Prefill)

struct Operation {
  void (*run)(const void*, void*);
  const void* arguments;
};

int64_t baton_dots_bf16() {  // whether bfloat16 products are the CPU's own
#ifdef BATON_DOT_BF16
  return 1;
#else
  return 0;
#endif
}

int64_t baton_wide_vectors() {  // whether a vector of 16 floats is one register
#ifdef __AVX512F__
  return 1;
#else
  return 0;
#endif
}

void baton_run(const Operation* operations, int64_t count, int64_t threads) {
  constexpr int64_t MOST_LOOPS = 5;  // of one operation
  const std::unique_ptr<Loop[]> loops(new Loop[MOST_LOOPS * count]);
#pragma omp parallel num_threads(static_cast<int>(threads))
  {
    Team team(loops.get(), threads);
    for (int64_t i = 0; i < count; i++) operations[i].run(operations[i].arguments, &team);
  }
}

// Outside of any list: one thread's work.
void baton_copy_past_cache(void* to, const void* from, int64_t bytes) {
  copy_past_cache(static_cast<char*>(to), static_cast<const char*>(from), bytes);
}

}  // extern "C"
