// libcudart.so.12 and .13: the CUDA runtime as torch uses it. STUB_CUDA is the major version.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "gpu.h"

namespace {
constexpr uint64_t ALL_STREAMS = UINT64_MAX;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
std::mutex mutex;

cudaError_t result(int code) {
  if (code) last_error = (cudaError_t)code;
  return (cudaError_t)code;
}

struct Capture {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  unsigned long long id = 0;
};
struct Stream {
  int device = 0, priority = 0;
  Capture capture;
};
struct Event {
  uint64_t point = 0;
};

// Streams lie in one array, in the order of their creation: torch sorts free blocks by the handle.
constexpr int STREAMS = 1 << 16;
Stream streams[STREAMS];
std::atomic<int> stream_count{0};
std::atomic<unsigned long long> capture_count{0};
std::set<Stream*> capturing;

Stream* stream_of(cudaStream_t handle) {
  uintptr_t number = (uintptr_t)handle;
  return number <= 2 ? nullptr : (Stream*)handle;  // 0, 1 and 2 are the default streams
}

// A call that a capture forbids in this thread: it fails, and the capture is lost.
bool breaks_capture() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  std::lock_guard<std::mutex> lock(mutex);
  bool broken = false;
  for (Stream* stream : capturing)
    if (stream->capture.mode == cudaStreamCaptureModeGlobal) {
      stream->capture.status = cudaStreamCaptureStatusInvalidated;
      broken = true;
    }
  return broken;
}
#define REFUSE(name, size) \
  if (int error = fake_refused(name, size)) return result(error)
#define UNSAFE(name)                                                   \
  if (breaks_capture()) {                                              \
    fake_note("%s during a capture: the capture is invalidated", name); \
    return result(cudaErrorStreamCaptureUnsupported);                  \
  }

// host memory that the runtime knows, by its address
std::map<char*, size_t> pinned;
void pin(void* address, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  pinned[(char*)address] = size;
}
void unpin(void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  pinned.erase((char*)address);
}
bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = pinned.upper_bound((char*)address);
  return it != pinned.begin() && (--it, (char*)address < it->first + it->second);
}

bool on_device(const void* address) {
  int device;
  uint64_t base;
  size_t size;
  return fake_find((uint64_t)address, &device, &base, &size);
}

// Device memory holds nothing unless it is backed: what comes from it reads as zero.
cudaError_t copy(void* to, const void* from, size_t size) {
  bool to_device = on_device(to), from_device = on_device(from);
  if (fake_is_backed() || (!to_device && !from_device)) memmove(to, from, size);
  else if (!to_device) memset(to, 0, size);
  return cudaSuccess;
}

cudaError_t fill(void* address, int value, size_t size) {
  if (fake_is_backed()) memset(address, value, size);
  return cudaSuccess;
}

struct LaunchConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local LaunchConfiguration launch;

// What cudaMallocAsync holds: it counts and caches nothing.
std::map<void*, size_t> async_blocks;
uint64_t async_used = 0, async_peak = 0;
}  // namespace

// The beginning of cudaDeviceProp is the same in 12 and 13; then 13 leaves some fields out.
struct cudaDeviceProp {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_mask;
  size_t total_memory, shared_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, block_dim[3], grid_dim[3];
#if STUB_CUDA < 13
  int clock;
#endif
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch;
#if STUB_CUDA < 13
  int overlap;
#endif
  int multiprocessors;
  char rest[640];
};

extern "C" {
#define API __attribute__((visibility("default"))) cudaError_t

static void describe(cudaDeviceProp* all, int device) {
  constexpr bool old = STUB_CUDA < 13;
  memset(all, 0, old ? 1032 : 1008);
  auto put = [&](int offset, int value) { memcpy((char*)all + offset, &value, sizeof value); };
  strcpy(all->name, "Fake GPU");
  fake_uuid(device, all->uuid);
  fake_memory(device, nullptr, &all->total_memory);
  all->shared_per_block = 49152;
  all->registers_per_block = 65536;
  all->warp_size = 32;
  all->threads_per_block = all->block_dim[0] = all->block_dim[1] = 1024;
  all->block_dim[2] = 64;
  all->grid_dim[0] = 2147483647;
  all->grid_dim[1] = all->grid_dim[2] = 65535;
  all->major = fake_capability() / 10;
  all->minor = fake_capability() % 10;
  all->texture_alignment = 512;
  all->multiprocessors = 132;
  put(old ? 576 : 560, 1);           // concurrentKernels
  put(old ? 584 : 568, device + 1);  // pciBusID
  put(old ? 604 : 588, 1);           // unifiedAddressing
  put(old ? 616 : 596, 62914560);    // l2CacheSize
  put(old ? 624 : 604, 2048);        // maxThreadsPerMultiProcessor
  put(old ? 640 : 624, 233472);      // sharedMemPerMultiprocessor
  put(old ? 648 : 632, 65536);       // regsPerMultiprocessor
  put(old ? 696 : 672, 232448);      // sharedMemPerBlockOptin
}

// devices
API cudaGetDeviceCount(int* count) {
  REFUSE("cudaGetDeviceCount", 0);
  return *count = fake_device_count(), result(*count ? cudaSuccess : cudaErrorNoDevice);
}
API cudaGetDevice(int* device) { return *device = fake_current_device(), cudaSuccess; }
API cudaSetDevice(int device) {
  if (device < 0 || device >= fake_device_count()) return result(cudaErrorInvalidDevice);
  fake_set_current_device(device);
  fake_touch(device);
  return cudaSuccess;
}
API cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
API cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
API cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}
API cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
API cudaDeviceEnablePeerAccess(int, unsigned) { return result(cudaErrorPeerAccessNotEnabled); }
API cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return snprintf(text, length, "0000:%02x:00.0", device + 1), cudaSuccess;
}
API cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = fake_capability() / 10; break;
    case 76: *value = fake_capability() % 10; break;
    case 16: *value = 132; break;
    case 1: case 2: case 3: *value = 1024; break;
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;
    case 10: *value = 32; break;
    case 39: *value = 2048; break;
    case 97: *value = 232448; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
#if STUB_CUDA < 13
API cudaGetDeviceProperties_v2(cudaDeviceProp* all, int device) { return describe(all, device), cudaSuccess; }
#endif
API cudaGetDeviceProperties(cudaDeviceProp* all, int device) { return describe(all, device), cudaSuccess; }

// memory
API cudaMemGetInfo(size_t* free, size_t* total) {
  REFUSE("cudaMemGetInfo", 0);
  fake_touch(fake_current_device());
  return fake_memory(fake_current_device(), free, total), cudaSuccess;
}
API cudaMalloc(void** address, size_t size) {
  UNSAFE("cudaMalloc");
  REFUSE("cudaMalloc", size);
  uint64_t found = 0;
  int error = fake_malloc(fake_current_device(), size, &found);
  if (!error) *address = (void*)found;
  return result(error);
}
API cudaFree(void* address) {
  fake_touch(fake_current_device());
  UNSAFE("cudaFree");
  fake_synchronize(ALL_STREAMS);
  return result(fake_free((uint64_t)address));
}
API cudaMallocAsync(void** address, size_t size, cudaStream_t) {
  REFUSE("cudaMallocAsync", size);
  uint64_t found = 0;
  if (int error = fake_malloc(fake_current_device(), size, &found)) return result(error);
  *address = (void*)found;
  std::lock_guard<std::mutex> lock(mutex);
  async_used += async_blocks[*address] = size;
  async_peak = std::max(async_peak, async_used);
  return cudaSuccess;
}
API cudaFreeAsync(void* address, cudaStream_t) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = async_blocks.find(address);
  if (it != async_blocks.end()) async_used -= it->second, async_blocks.erase(it);
  return result(fake_free((uint64_t)address));
}
API cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) { return *pool = (cudaMemPool_t)0x7000, cudaSuccess; }
API cudaMemPoolSetAccess(cudaMemPool_t, const void*, size_t) { return cudaSuccess; }
API cudaMemPoolSetAttribute(cudaMemPool_t, int, void*) { return cudaSuccess; }
API cudaMemPoolGetAttribute(cudaMemPool_t, int attribute, void* value) {
  UNSAFE("cudaMemPoolGetAttribute");
  std::lock_guard<std::mutex> lock(mutex);
  bool is_peak = attribute == 6 || attribute == 8;
  return *(uint64_t*)value = is_peak ? async_peak : async_used, cudaSuccess;
}
API cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
API cudaDeviceGetGraphMemAttribute(int, int, void* value) { return *(uint64_t*)value = 0, cudaSuccess; }
API cudaDeviceSetGraphMemAttribute(int, int, void*) { return cudaSuccess; }
API cudaHostAlloc(void** address, size_t size, unsigned) {
  REFUSE("cudaHostAlloc", size);
  if (posix_memalign(address, 4096, size ? size : 1)) return result(cudaErrorMemoryAllocation);
  return pin(*address, size), cudaSuccess;
}
API cudaMallocHost(void** address, size_t size) { return cudaHostAlloc(address, size, 0); }
API cudaFreeHost(void* address) { return unpin(address), free(address), cudaSuccess; }
API cudaHostRegister(void* address, size_t size, unsigned) { return pin(address, size), cudaSuccess; }
API cudaHostUnregister(void* address) { return unpin(address), cudaSuccess; }
API cudaHostGetDevicePointer(void** found, void* address, unsigned) { return *found = address, cudaSuccess; }
struct PointerAttributes {
  int type, device;
  void *on_device, *on_host;
};
API cudaPointerGetAttributes(PointerAttributes* found, const void* address) {
  int device;
  uint64_t base;
  size_t size;
  *found = {0, -2, nullptr, (void*)address};
  if (fake_find((uint64_t)address, &device, &base, &size)) *found = {2, device, (void*)address, nullptr};
  else if (is_pinned(address)) *found = {1, 0, (void*)address, (void*)address};
  return cudaSuccess;
}
API cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  UNSAFE("cudaMemcpy");
  fake_synchronize(0);
  return copy(to, from, size);
}
API cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t) { return copy(to, from, size); }
API cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t) { return copy(to, from, size); }
API cudaMemset(void* address, int value, size_t size) { return fill(address, value, size); }
API cudaMemsetAsync(void* address, int value, size_t size, cudaStream_t) { return fill(address, value, size); }

// streams and events
API cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
  fake_touch(fake_current_device());
  int index = stream_count++;
  if (index >= STREAMS) return result(cudaErrorMemoryAllocation);
  streams[index].device = fake_current_device();
  streams[index].priority = priority;
  return *handle = (cudaStream_t)&streams[index], cudaSuccess;
}
API cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) { return cudaStreamCreateWithPriority(handle, flags, 0); }
API cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
API cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
API cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  Stream* stream = stream_of(handle);
  return *priority = stream ? stream->priority : 0, cudaSuccess;
}
API cudaStreamQuery(cudaStream_t) {
  UNSAFE("cudaStreamQuery");
  return cudaSuccess;
}
API cudaStreamSynchronize(cudaStream_t handle) {
  UNSAFE("cudaStreamSynchronize");
  return fake_synchronize((uint64_t)handle), cudaSuccess;
}
API cudaDeviceSynchronize() {
  UNSAFE("cudaDeviceSynchronize");
  REFUSE("cudaDeviceSynchronize", 0);
  return fake_synchronize(ALL_STREAMS), cudaSuccess;
}
API cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
API cudaStreamAddCallback(cudaStream_t handle, void (*callback)(cudaStream_t, cudaError_t, void*), void* data, unsigned) {
  return callback(handle, cudaSuccess, data), cudaSuccess;
}
API cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) { return function(data), cudaSuccess; }
API cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) { return *handle = (cudaEvent_t) new Event, cudaSuccess; }
API cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
API cudaEventDestroy(cudaEvent_t handle) { return delete (Event*)handle, cudaSuccess; }
API cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  return ((Event*)handle)->point = fake_record((uint64_t)stream), cudaSuccess;
}
API cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) { return cudaEventRecord(handle, stream); }
API cudaEventQuery(cudaEvent_t handle) {
  UNSAFE("cudaEventQuery");
  return result(fake_is_passed(((Event*)handle)->point) ? cudaSuccess : cudaErrorNotReady);
}
API cudaEventSynchronize(cudaEvent_t handle) {
  UNSAFE("cudaEventSynchronize");
  return fake_pass(((Event*)handle)->point), cudaSuccess;
}
// CUDA IPC as far as the sender: the handles are 64 bytes, and nothing opens them
API cudaIpcGetMemHandle(char* handle, void* address) {
  int device;
  uint64_t base;
  size_t size;
  REFUSE("cudaIpcGetMemHandle", 0);
  if (!fake_find((uint64_t)address, &device, &base, &size)) return result(cudaErrorInvalidValue);
  memset(handle, 0, 64);
  return memcpy(handle, &base, sizeof base), cudaSuccess;
}
API cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t) { return memset(handle, 0, 64), cudaSuccess; }
API cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { return *milliseconds = 1, cudaSuccess; }
API cudaEventElapsedTime_v2(float* milliseconds, cudaEvent_t, cudaEvent_t) { return *milliseconds = 1, cudaSuccess; }

// captures: their state, and what breaks them
API cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Stream* stream = stream_of(handle);
  if (!stream) return result(cudaErrorStreamCaptureUnsupported);
  std::lock_guard<std::mutex> lock(mutex);
  stream->capture = {cudaStreamCaptureStatusActive, mode, ++capture_count};
  capturing.insert(stream);
  return cudaSuccess;
}
API cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Stream* stream = stream_of(handle);
  std::lock_guard<std::mutex> lock(mutex);
  if (!stream || !capturing.erase(stream)) return result(cudaErrorInvalidValue);
  bool lost = stream->capture.status == cudaStreamCaptureStatusInvalidated;
  stream->capture.status = cudaStreamCaptureStatusNone;
  *graph = lost ? nullptr : (cudaGraph_t)0x9000;
  return result(lost ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}
API cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  Stream* stream = stream_of(handle);
  return *status = stream ? stream->capture.status : cudaStreamCaptureStatusNone, cudaSuccess;
}
API cudaStreamGetCaptureInfo_v2(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id,
                                cudaGraph_t* graph, const cudaGraphNode_t** nodes, size_t* count) {
  Stream* stream = stream_of(handle);
  cudaStreamIsCapturing(handle, status);
  if (id) *id = stream ? stream->capture.id : 0;
  if (graph) *graph = (cudaGraph_t)0x9000;
  if (nodes) *nodes = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
#if STUB_CUDA >= 13
API cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
                             const cudaGraphNode_t** nodes, const void** edges, size_t* count) {
  if (edges) *edges = nullptr;
  return cudaStreamGetCaptureInfo_v2(handle, status, id, graph, nodes, count);
}
#endif
API cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) { return std::swap(*mode, thread_mode), cudaSuccess; }
API cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) { return *graph = (cudaGraphExec_t)0x9100, cudaSuccess; }
API cudaGraphInstantiateWithFlags(cudaGraphExec_t* graph, cudaGraph_t, unsigned long long) { return *graph = (cudaGraphExec_t)0x9100, cudaSuccess; }
API cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) { return *count = 1, cudaSuccess; }
API cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
API cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
API cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

// kernels: launched and forgotten
API __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  return launch = {grid, block, shared, stream}, cudaSuccess;
}
API __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, cudaStream_t* stream) {
  *grid = launch.grid, *block = launch.block, *shared = launch.shared, *stream = launch.stream;
  return cudaSuccess;
}
API cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
API cudaLaunchKernelExC(const void*, const void*, void**) { return cudaSuccess; }
API __cudaLaunchKernel(void*, dim3, dim3, void**, size_t, cudaStream_t) { return cudaSuccess; }
API __cudaGetKernel(void** kernel, const void* function) { return *kernel = (void*)function, cudaSuccess; }
struct FunctionAttributes {
  size_t shared, constant, local;
  int threads, registers, ptx, binary, cache_mode, dynamic_shared, rest[24];
};
API cudaFuncGetAttributes(FunctionAttributes* found, const void*) {
  static_assert(sizeof(FunctionAttributes) == 144, "cudaFuncAttributes has 144 bytes");
  memset(found, 0, sizeof *found);
  found->threads = 1024, found->registers = 32, found->dynamic_shared = 49152;
  found->ptx = found->binary = fake_capability();
  return cudaSuccess;
}
API cudaFuncSetAttribute(const void*, int, int) { return cudaSuccess; }
API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) { return *count = 2, cudaSuccess; }
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) { return *count = 2, cudaSuccess; }
API cudaGetSymbolAddress(void** address, const void*) { return *address = (void*)0x10000, cudaSuccess; }
API __cudaInitModule(void**) { return cudaSuccess; }
__attribute__((visibility("default"))) void** __cudaRegisterFatBinary(void*) {
  static void* handle[1];
  return handle;
}
#define VOID __attribute__((visibility("default"))) void
VOID __cudaRegisterFatBinaryEnd(void**) {}
VOID __cudaUnregisterFatBinary(void**) {}
VOID __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
VOID __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

// errors, and the way to the driver
API cudaGetLastError() {
  cudaError_t error = last_error;
  return last_error = cudaSuccess, error;
}
API cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorNotSupported: return "operation not supported";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    default: return "unknown error";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : error ? "cudaErrorUnknown" : "cudaSuccess";
}
API cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long, int* answer) {
  *found = fake_symbol(name);
  if (answer) *answer = *found ? 0 : 1;
  return cudaSuccess;
}
API cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long flags, int* answer) {
  return cudaGetDriverEntryPoint(name, found, flags, answer);
}
}
