// The part of version 17 of ONNX Runtime's C interface that our operators use.
//
// The table of functions only grows, and its entries never move. So any ONNX Runtime from 1.17 on
// returns a table that begins like this one.
#ifndef ONERNN_ORT_INTERFACE_HPP
#define ONERNN_ORT_INTERFACE_HPP

#include <cstddef>
#include <cstdint>

#include "../isa.hpp"

namespace onernn {
inline namespace ONERNN_ISA {
namespace ort {

constexpr std::uint32_t kVersion = 17;  // 1.17

struct Status;  // null: success
struct SessionOptions;
struct Domain;
struct Value;
struct Shape;
struct KernelInfo;
struct Context;
struct Operator;

enum Code : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9 };
enum Element : int { kFloat = 1, kInt32 = 6, kDouble = 11 };
enum Presence : int { kRequired = 0, kOptional = 1 };

/// OrtApi. `unused`: functions that onernn does not call.
struct Api {
  Status* (*CreateStatus)(Code, const char* message);
  void* unused_1[25];
  Status* (*CreateCustomOpDomain)(const char* name, Domain**);
  Status* (*CustomOpDomain_Add)(Domain*, const Operator*);
  Status* (*AddCustomOpDomain)(SessionOptions*, Domain*);
  void* unused_29[22];
  Status* (*GetTensorMutableData)(Value*, void**);
  void* unused_52[9];
  Status* (*GetDimensionsCount)(const Shape*, std::size_t*);
  Status* (*GetDimensions)(const Shape*, std::int64_t*, std::size_t count);
  void* unused_63[2];
  Status* (*GetTensorTypeAndShape)(const Value*, Shape**);
  void* unused_66[20];
  Status* (*KernelInfoGetAttribute_int64)(const KernelInfo*, const char* name, std::int64_t*);
  Status* (*KernelInfoGetAttribute_string)(const KernelInfo*, const char* name, char* text,
                                           std::size_t* bytes);  // with a NUL after the text
  void* unused_88[2];
  Status* (*KernelContext_GetInput)(const Context*, std::size_t, const Value**);
  Status* (*KernelContext_GetOutput)(Context*, std::size_t, const std::int64_t* dimensions,
                                     std::size_t count, Value**);
  void* unused_92[1];
  void (*ReleaseStatus)(Status*);
  void* unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(Shape*);
  void* unused_100[174];
  Status* (*KernelContext_ParallelFor)(const Context*, void (*)(void*, std::size_t),
                                       std::size_t total, std::size_t batches, void* data);
};
static_assert(offsetof(Api, CreateCustomOpDomain) == 26 * sizeof(void*));
static_assert(offsetof(Api, GetTensorMutableData) == 51 * sizeof(void*));
static_assert(offsetof(Api, GetDimensionsCount) == 61 * sizeof(void*));
static_assert(offsetof(Api, GetTensorTypeAndShape) == 65 * sizeof(void*));
static_assert(offsetof(Api, KernelInfoGetAttribute_int64) == 86 * sizeof(void*));
static_assert(offsetof(Api, KernelContext_GetInput) == 90 * sizeof(void*));
static_assert(offsetof(Api, ReleaseStatus) == 93 * sizeof(void*));
static_assert(offsetof(Api, ReleaseTensorTypeAndShapeInfo) == 99 * sizeof(void*));
static_assert(offsetof(Api, KernelContext_ParallelFor) == 274 * sizeof(void*));

/// OrtApiBase.
struct ApiBase {
  const Api* (*GetApi)(std::uint32_t version);  // null if ONNX Runtime is older than this version
  const char* (*GetVersionString)();
};

/// OrtCustomOp: what ONNX Runtime asks about an operator, and calls to run it.
struct Operator {
  std::uint32_t version = kVersion;
  void* (*CreateKernel)(const Operator*, const Api*, const KernelInfo*) = nullptr;
  const char* (*GetName)(const Operator*) = nullptr;
  const char* (*GetExecutionProviderType)(const Operator*) = nullptr;
  Element (*GetInputType)(const Operator*, std::size_t) = nullptr;
  std::size_t (*GetInputTypeCount)(const Operator*) = nullptr;
  Element (*GetOutputType)(const Operator*, std::size_t) = nullptr;
  std::size_t (*GetOutputTypeCount)(const Operator*) = nullptr;
  void (*KernelCompute)(void* kernel, Context*) = nullptr;
  void (*KernelDestroy)(void* kernel) = nullptr;
  Presence (*GetInputCharacteristic)(const Operator*, std::size_t) = nullptr;
  Presence (*GetOutputCharacteristic)(const Operator*, std::size_t) = nullptr;
  int (*GetInputMemoryType)(const Operator*, std::size_t) = nullptr;
  int (*GetVariadicInputMinArity)(const Operator*) = nullptr;
  int (*GetVariadicInputHomogeneity)(const Operator*) = nullptr;
  int (*GetVariadicOutputMinArity)(const Operator*) = nullptr;
  int (*GetVariadicOutputHomogeneity)(const Operator*) = nullptr;
  Status* (*CreateKernelV2)(const Operator*, const Api*, const KernelInfo*,
                            void** kernel) = nullptr;
  Status* (*KernelComputeV2)(void* kernel, Context*) = nullptr;
  Status* (*InferOutputShapeFn)(const Operator*, void* context) = nullptr;
  int (*GetStartVersion)(const Operator*) = nullptr;
  int (*GetEndVersion)(const Operator*) = nullptr;
};

}  // namespace ort
}  // namespace ONERNN_ISA
}  // namespace onernn

#endif
