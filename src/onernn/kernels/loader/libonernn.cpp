// libonernn: onernn.h for programs that link with it, and operators for ONNX Runtime. The functions
// are in a library per instruction set, such as libonernn-avx2.so. This loads the best one in its
// folder that the machine runs.
#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
#include "library/onernn.h"
#pragma GCC visibility pop
#include "library/cpu.hpp"
#include "library/ort_interface.hpp"

namespace {

/// Returns an error for ONNX Runtime: the library is missing.
void* unregistered(const void* api_base) {
  const auto* const api = static_cast<const onernn::ort::ApiBase*>(api_base)->GetApi(1);
  return api ? api->CreateStatus(onernn::ort::kFail, onernn_message()) : nullptr;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}
bool has(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// For each function: result, name, parameters, arguments, and the result if no library is found.
#define FUNCTIONS(F)                                                                               \
  F(int32_t, onernn_open, (const char* a, int32_t b, onernn_model** c), (a, b, c), 2)              \
  F(int32_t, onernn_open_bytes, (const void* a, int64_t b, int32_t c, onernn_model** d),           \
    (a, b, c, d), 2)                                                                               \
  F(void, onernn_close, (onernn_model * a), (a), )                                                 \
  F(int32_t, onernn_inputs, (const onernn_model* a), (a), -1)                                      \
  F(int32_t, onernn_outputs, (const onernn_model* a), (a), -1)                                     \
  F(const char*, onernn_name, (const onernn_model* a, int32_t b), (a, b), nullptr)                 \
  F(const char*, onernn_dtype, (const onernn_model* a, int32_t b), (a, b), nullptr)                \
  F(int32_t, onernn_rank, (const onernn_model* a, int32_t b), (a, b), -1)                          \
  F(int64_t, onernn_dim, (const onernn_model* a, int32_t b, int32_t c), (a, b, c), -1)             \
  F(int32_t, onernn_levels, (const onernn_model* a, int32_t b), (a, b), -1)                        \
  F(int32_t, onernn_next, (const onernn_model* a, int32_t b), (a, b), -1)                          \
  F(int32_t, onernn_stream_open, (onernn_model * a, onernn_stream * *b), (a, b), 2)                \
  F(void, onernn_stream_close, (onernn_stream * a), (a), )                                         \
  F(int32_t, onernn_limit, (onernn_stream * a, int64_t b, int64_t c), (a, b, c), 2)                \
  F(int32_t, onernn_give, (onernn_stream * a, int32_t b, const void* c, const int64_t* d),         \
    (a, b, c, d), 2)                                                                               \
  F(int32_t, onernn_give_offsets,                                                                  \
    (onernn_stream * a, int32_t b, int32_t c, const int64_t* d, int64_t e), (a, b, c, d, e), 2)    \
  F(int32_t, onernn_take, (onernn_stream * a, int32_t b, void* c, int64_t d), (a, b, c, d), 2)     \
  F(int32_t, onernn_prepare, (onernn_stream * a), (a), 2)                                          \
  F(int32_t, onernn_run, (onernn_stream * a), (a), 2)                                              \
  F(int32_t, onernn_reset, (onernn_stream * a), (a), 2)                                            \
  F(const void*, onernn_numbers, (const onernn_stream* a, int32_t b), (a, b), nullptr)             \
  F(int64_t, onernn_size, (const onernn_stream* a, int32_t b, int32_t c), (a, b, c), -1)           \
  F(int64_t, onernn_most_bytes, (const onernn_stream* a, int32_t b), (a, b), -1)                   \
  F(const int64_t*, onernn_offsets, (const onernn_stream* a, int32_t b, int32_t c), (a, b, c),     \
    nullptr)                                                                                       \
  F(int64_t, onernn_sequences, (const onernn_stream* a, int32_t b, int32_t c), (a, b, c), -1)      \
  F(int32_t, onernn_clients_open,                                                                  \
    (onernn_model * a, int64_t b, int32_t c, int64_t d, onernn_clients** e), (a, b, c, d, e), 2)   \
  F(void, onernn_clients_close, (onernn_clients * a), (a), )                                       \
  F(int32_t, onernn_client_open, (onernn_clients * a, int64_t* b), (a, b), 2)                      \
  F(int32_t, onernn_client_close, (onernn_clients * a, int64_t b), (a, b), 2)                      \
  F(int32_t, onernn_push, (onernn_clients * a, const int64_t* b, int64_t c, const void* const* d), \
    (a, b, c, d), 2)                                                                               \
  F(int32_t, onernn_pull,                                                                          \
    (onernn_clients * a, const int64_t* b, int64_t c, void* const* d, int64_t* e),                 \
    (a, b, c, d, e), 2)                                                                            \
  F(void*, RegisterCustomOps, (void* a, const void* b), (a, b), unregistered(b))

/// The functions of a library, found once and then never changed.
struct Library {
  char missing[512] = "";
  const char* (*message)() = nullptr;
#define POINTER(result, name, parameters, arguments, none) result(*name) parameters = nullptr;
  FUNCTIONS(POINTER)
#undef POINTER

  Library() {
    Dl_info here{};
    if (!dladdr(reinterpret_cast<void*>(&onernn_interface), &here) || !here.dli_fname) {
      std::snprintf(missing, sizeof missing, "the folder of libonernn is not known");
      return;
    }
    const char* const name = std::strrchr(here.dli_fname, '/');
    const std::string folder(here.dli_fname,
                             name ? static_cast<std::size_t>(name + 1 - here.dli_fname) : 0);
    const std::vector<std::string> sets = words_of(ONERNN_SETS), runs = words_of(runnable().text);
    std::string cap = std::getenv("ONERNN_MAX_ISA") ? std::getenv("ONERNN_MAX_ISA") : "";
    for (char& each : cap) each = static_cast<char>(std::tolower(static_cast<unsigned char>(each)));
    if (runs.empty()) {
      std::snprintf(missing, sizeof missing, "this CPU lacks what all kernels need, %s",
                    sets[0].c_str());
      return;
    }
    if (!cap.empty() && !has(sets, cap)) {
      std::snprintf(missing, sizeof missing, "ONERNN_MAX_ISA=%.64s: expected one of %s",
                    cap.c_str(), ONERNN_SETS);
      return;
    }
    void* best = nullptr;
    bool allowed = cap.empty();  // the cap need not be a set that this CPU runs
    for (auto set = sets.rbegin(); set != sets.rend() && !best; ++set) {
      allowed = allowed || *set == cap;
      if (allowed && has(runs, *set)) best = opened(folder, set->c_str());
    }
    if (!best) return;
    missing[0] = 0;  // one library suffices
#define FIND(result, name, parameters, arguments, none) \
  name = reinterpret_cast<result(*) parameters>(dlsym(best, #name));
    FUNCTIONS(FIND)
#undef FIND
    message = reinterpret_cast<const char* (*)()>(dlsym(best, "onernn_message"));
  }

  /// Returns null, and sets `missing`, if the library is absent or of another version.
  void* opened(const std::string& folder, const char* isa) {
    const std::string path = folder + "libonernn-" + isa + ".so";
    void* const found = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!found) {
      std::snprintf(missing, sizeof missing, "%s", dlerror());
      return nullptr;
    }
    const auto abi = reinterpret_cast<std::uint32_t (*)()>(dlsym(found, "onernn_abi"));
    if (abi && abi() == ONERNN_ABI) return found;
    std::snprintf(missing, sizeof missing, "%s: of another version of onernn", path.c_str());
    return nullptr;
  }
};

const Library& library() {
  static const Library& one = *new Library;  // never destroyed: streams may outlive it
  return one;
}

}  // namespace

int32_t onernn_interface() { return ONERNN_INTERFACE; }

const char* onernn_message() { return library().message ? library().message() : library().missing; }

#define FORWARD(result, name, parameters, arguments, none) \
  result name parameters {                                 \
    if (!library().name) return none;                      \
    return library().name arguments;                       \
  }
FUNCTIONS(FORWARD)
