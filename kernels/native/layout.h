// The operations that the library exports, with the layouts of their arguments: arguments.py makes
// its ctypes structs from them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <type_traits>

namespace {

enum FieldKind : int64_t { POINTER, INTEGER, DOUBLE };

struct Field {
  const char* name;
  int64_t kind;
};

// An operation; one of a list, in no order.
struct Exported {
  const char* name;
  void (*function)(const void* arguments, void* team);
  const char* nullable;  // names of the pointers that may be null, between commas
  int64_t count;         // of fields
  const Field* fields;   // of its arguments, in order and without gaps
  const Exported* next;
};

const Exported* exported = nullptr;

// Puts an operation at the head of the list, when the library is loaded.
struct Export {
  Exported operation;
  explicit Export(Exported given) : operation(given) {
    operation.next = exported;
    exported = &operation;
  }
};

template <class T>
constexpr FieldKind field_kind() {
  static_assert(std::is_pointer_v<T> || std::is_same_v<T, int64_t> || std::is_same_v<T, double>,
                "an argument is a pointer, an int64_t or a double");
  return std::is_pointer_v<T> ? POINTER : std::is_same_v<T, int64_t> ? INTEGER : DOUBLE;
}

// Whether fields that begin at these bytes of a struct are all of its 8 bytes, in order.
constexpr bool in_order(std::initializer_list<size_t> offsets) {
  size_t expected = 0;
  for (const size_t offset : offsets) {
    if (offset != expected) return false;
    expected += 8;
  }
  return true;
}

// Whether each of the names between commas is a pointer among the fields.
template <size_t N>
constexpr bool are_pointers(std::string_view names, const Field (&fields)[N]) {
  while (!names.empty()) {
    const size_t end = names.find(',');
    const std::string_view name = names.substr(0, end);
    bool found = false;
    for (const Field& field : fields) found |= field.kind == POINTER && name == field.name;
    if (!found) return false;
    names.remove_prefix(end == names.npos ? names.size() : names.find_first_not_of(", ", end));
  }
  return true;
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

#define FIELD(Struct, name) {#name, field_kind<decltype(Struct::name)>()},
#define OFFSET(Struct, name) offsetof(Struct, name),

// NULLABLE(a, b): the pointers that may be null. NONE: there are none.
#define NULLABLE(...) #__VA_ARGS__
#define NONE ""

// Exports an operation. The names are those of all fields of the struct, in order; a missing one
// does not compile.
#define OPERATION(operation, Struct, nullable, ...)                                    \
  namespace exported_##operation {                                                     \
    void run(const void* arguments, void* team) {                                      \
      operation(*static_cast<const Struct*>(arguments), *static_cast<Team*>(team));    \
    }                                                                                  \
    constexpr Field fields[] = {FOR_EACH(FIELD, Struct, __VA_ARGS__)};                 \
    constexpr int64_t count = sizeof(fields) / sizeof(Field);                          \
    static_assert(sizeof(Struct) == 8 * count, "OPERATION lacks a field of " #Struct); \
    static_assert(in_order({FOR_EACH(OFFSET, Struct, __VA_ARGS__)}),                   \
                  "OPERATION has the fields of " #Struct " in another order");         \
    static_assert(are_pointers(nullable, fields),                                      \
                  "a field of " #Struct " may be null and is no pointer");             \
    const Export entry({#operation, run, nullable, count, fields, nullptr});           \
  }
