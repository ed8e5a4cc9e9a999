// The layout of an operation's arguments, which layout.py compares with that of its ctypes struct.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace {

enum FieldKind : int64_t { POINTER, INTEGER, DOUBLE };

struct Field {
  const char* name;
  int64_t offset, kind;
};

struct Layout {
  int64_t size, count;
  const Field* fields;
};

template <class T>
constexpr FieldKind field_kind() {
  static_assert(std::is_pointer_v<T> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>,
                "an argument is a pointer, an int64_t or a double");
  return std::is_pointer_v<T> ? POINTER : std::is_same_v<T, int64_t> ? INTEGER : DOUBLE;
}

}  // namespace

// FOR_EACH(macro, Struct, a, b, ...) is macro(Struct, a) macro(Struct, b) ..., for up to 256 names.
// The preprocessor does not recurse; each EXPAND scans its result again, which expands one more
// FOR_EACH_AGAIN.
#define PARENTHESES ()
#define EXPAND(...) EXPAND4(EXPAND4(EXPAND4(EXPAND4(__VA_ARGS__))))
#define EXPAND4(...) EXPAND3(EXPAND3(EXPAND3(EXPAND3(__VA_ARGS__))))
#define EXPAND3(...) EXPAND2(EXPAND2(EXPAND2(EXPAND2(__VA_ARGS__))))
#define EXPAND2(...) EXPAND1(EXPAND1(EXPAND1(EXPAND1(__VA_ARGS__))))
#define EXPAND1(...) __VA_ARGS__
#define FOR_EACH(macro, Struct, ...) \
  __VA_OPT__(EXPAND(FOR_EACH_ONE(macro, Struct, __VA_ARGS__)))
#define FOR_EACH_ONE(macro, Struct, name, ...) \
  macro(Struct, name) __VA_OPT__(FOR_EACH_AGAIN PARENTHESES(macro, Struct, __VA_ARGS__))
#define FOR_EACH_AGAIN() FOR_EACH_ONE

#define FIELD(Struct, name) \
  {#name, offsetof(Struct, name), field_kind<decltype(Struct::name)>()},

// Exports baton_<function>, which runs the operation, and baton_<function>_layout. The names are
// those of all fields of the struct, in order; a missing one does not compile.
#define OPERATION(function, Struct, ...)                                               \
  void baton_##function(const void* arguments, void* team) {                           \
    function(*static_cast<const Struct*>(arguments), *static_cast<Team*>(team));       \
  }                                                                                    \
  const Layout* baton_##function##_layout() {                                          \
    static constexpr Field fields[] = {FOR_EACH(FIELD, Struct, __VA_ARGS__)};          \
    static constexpr int64_t count = sizeof(fields) / sizeof(Field);                   \
    static_assert(sizeof(Struct) == 8 * count, "OPERATION lacks a field of " #Struct); \
    static constexpr Layout layout{sizeof(Struct), count, fields};                     \
    return &layout;                                                                    \
  }
