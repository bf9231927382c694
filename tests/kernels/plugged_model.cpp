// ONNX Runtime's C interface runs a model that `onernn plug` wrote: one call registers the library.
//   plugged_model LIBONNXRUNTIME LIBONERNN MODEL T N WIDTH < x > y
// The table of functions as onnxruntime_c_api.h has it; `unused`: those that are not called here.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

struct OrtApi {
  void* unused_0[2];
  const char* (*GetErrorMessage)(const void* status);
  void* (*CreateEnv)(int level, const char* id, void** env);
  void* unused_4[3];
  void* (*CreateSession)(const void* env, const char* model, const void* options, void** session);
  void* unused_8;
  void* (*Run)(void* session, const void* run_options, const char* const* input_names,
               const void* const* inputs, std::size_t input_count, const char* const* output_names,
               std::size_t output_count, void** outputs);
  void* (*CreateSessionOptions)(void** options);
  void* unused_11[18];
  void* (*RegisterCustomOpsLibrary)(void* options, const char* path, void** handle);
  void* unused_30[19];
  void* (*CreateTensorWithDataAsOrtValue)(const void* memory, void* data, std::size_t bytes,
                                          const std::int64_t* shape, std::size_t rank, int type,
                                          void** value);
  void* unused_50;
  void* (*GetTensorMutableData)(void* value, void** data);
  void* unused_52[12];
  void* (*GetTensorShapeElementCount)(const void* shape, std::size_t* count);
  void* (*GetTensorTypeAndShape)(const void* value, void** shape);
  void* unused_66[3];
  void* (*CreateCpuMemoryInfo)(int allocator, int type, void** memory);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

static const OrtApi* api;

static void check(void* status) {
  if (!status) return;
  std::fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  std::exit(1);
}

int main(int, char** argv) {
  void* const runtime = dlopen(argv[1], RTLD_NOW);
  if (!runtime) return std::fprintf(stderr, "%s\n", dlerror()), 2;
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(runtime, "OrtGetApiBase"));
  api = base()->GetApi(17);

  void *env, *options, *library, *session, *memory, *x, *y = nullptr, *shape, *numbers;
  check(api->CreateEnv(3, "plugged", &env));
  check(api->CreateSessionOptions(&options));
  check(api->RegisterCustomOpsLibrary(options, argv[2], &library));
  check(api->CreateSession(env, argv[3], options, &session));

  const std::int64_t sizes[] = {std::atoll(argv[4]), std::atoll(argv[5]), std::atoll(argv[6])};
  std::vector<float> given(static_cast<std::size_t>(sizes[0] * sizes[1] * sizes[2]));
  if (std::fread(given.data(), 4, given.size(), stdin) != given.size()) return 3;
  check(api->CreateCpuMemoryInfo(1, 0, &memory));
  check(
      api->CreateTensorWithDataAsOrtValue(memory, given.data(), given.size() * 4, sizes, 3, 1, &x));
  const char *const input = "x", *const output = "y";
  check(api->Run(session, nullptr, &input, &x, 1, &output, 1, &y));

  std::size_t count;
  check(api->GetTensorTypeAndShape(y, &shape));
  check(api->GetTensorShapeElementCount(shape, &count));
  check(api->GetTensorMutableData(y, &numbers));
  return std::fwrite(numbers, 4, count, stdout) == count ? 0 : 4;
}
