// The functions of cuBLAS, cuDNN and the other libraries that must return a value. build.py adds those that do their
// work on the device and return nothing: they succeed. All others report their name and fail.
#include <cstdint>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))

static int make_handle(void** handle) {
  static char handles[1 << 16];
  static unsigned count;
  *handle = &handles[64 * (count++ % 1024)];
  return 0;
}
#define CREATES(name) \
  API int name(void** handle) { return make_handle(handle); }

CREATES(cublasCreate_v2)
API int cublasGetVersion_v2(void*, int* version) { return *version = STUB_CUDA * 10000, 0; }
API int cublasGetMathMode(void*, int* mode) { return *mode = 0, 0; }
API int cublasGetPointerMode_v2(void*, int* mode) { return *mode = 0, 0; }
API const char* cublasGetStatusString(int) { return "fake cuBLAS status"; }

CREATES(cublasLtCreate)
CREATES(cublasLtMatmulDescCreate)
CREATES(cublasLtMatrixLayoutCreate)
CREATES(cublasLtMatmulPreferenceCreate)
API size_t cublasLtGetVersion() { return STUB_CUDA * 10000; }
API int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void* results, int* count) {
  constexpr size_t size_of_result = 96;
  memset(results, 0, size_of_result);
  return *count = 1, 0;
}

CREATES(cudnnCreate)
CREATES(cudnnCreateTensorDescriptor)
CREATES(cudnnCreateFilterDescriptor)
CREATES(cudnnCreateConvolutionDescriptor)
CREATES(cudnnCreateActivationDescriptor)
CREATES(cudnnCreateDropoutDescriptor)
API size_t cudnnGetVersion() { return 91900; }
API size_t cudnnGetCudartVersion() { return STUB_CUDA * 1000; }
API const char* cudnnGetErrorString(int) { return "fake cuDNN status"; }
API void cudnnGetLastErrorString(char* text, size_t length) { strncpy(text, "fake cuDNN status", length); }
API int cudnnBackendCreateDescriptor(int, void** handle) { return make_handle(handle); }
// every list has one element; a descriptor in it is the one that the caller passed
API int cudnnBackendGetAttribute(void*, int, int type, int64_t room, int64_t* count, void* values) {
  constexpr int descriptor = 15;
  if (count) *count = 1;
  if (values && room && type != descriptor) memset(values, 0, type == 3 ? 8 : 4);
  return 0;
}
API int cudnnDropoutGetStatesSize(void*, size_t* size) { return *size = 1024, 0; }
#define NO_WORKSPACE(name, ...) \
  API int name(__VA_ARGS__, size_t* size) { return *size = 0, 0; }
NO_WORKSPACE(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*)
NO_WORKSPACE(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, void*, int, int, void*, void*)
NO_WORKSPACE(cudnnGetBatchNormalizationBackwardExWorkspaceSize, void*, int, int, void*, void*, void*, void*, void*, void*, void*)

CREATES(cusparseCreate)
API const char* cusparseGetErrorString(int) { return "fake cuSPARSE status"; }

API int cufftCreate(int* plan) { return *plan = 1, 0; }
API int cufftXtMakePlanMany(int, int, void*, void*, int64_t, int64_t, int, void*, int64_t, int64_t, int, int64_t, size_t* size, int) {
  return *size = 0, 0;
}

CREATES(cusolverDnCreate)
CREATES(cusolverDnCreateParams)
API int cusolverDnXpotrf_bufferSize(void*, void*, int, int64_t, int, void*, int64_t, int, size_t* device, size_t* host) {
  return *device = *host = 1024, 0;
}
API int cusolverDnXgeqrf_bufferSize(void*, void*, int64_t, int64_t, int, void*, int64_t, int, void*, int, size_t* device, size_t* host) {
  return *device = *host = 1024, 0;
}

API int ncclGetVersion(int* version) { return *version = 22809, 0; }
API const char* ncclGetErrorString(int) { return "fake NCCL status"; }
API const char* ncclGetLastError(void*) { return ""; }
API int ncclGetUniqueId(char* id) { return memset(id, 0, 128), 0; }
struct UniqueId {
  char bytes[128];
};
API int ncclCommInitRank(void** handle, int, UniqueId, int) { return make_handle(handle); }
API int ncclCommInitRankConfig(void** handle, int, UniqueId, int, void*) { return make_handle(handle); }
API int ncclCommGetAsyncError(void*, int* error) { return *error = 0, 0; }

API int nvrtcVersion(int* major, int* minor) { return *major = STUB_CUDA, *minor = 0, 0; }
API const char* nvrtcGetErrorString(int) { return "fake NVRTC status"; }
