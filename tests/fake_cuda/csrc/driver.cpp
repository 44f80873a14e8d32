// libcuda.so.1: what torch asks of the driver.
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gpu.h"

extern "C" {
enum { NOT_FOUND = 500, NOT_SUPPORTED = 801 };
struct Location {
  int type, id;
};
struct AllocationProperties {  // CUmemAllocationProp begins so
  int type, handle_types;
  Location location;
};

#define REFUSE(name, size) \
  if (int error = fake_refused(name, size)) return error

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = STUB_CUDA * 1000, 0; }
int cuDeviceGetCount(int* count) { return *count = fake_device_count(), 0; }
int cuDeviceGet(int* device, int index) { return *device = index, index < fake_device_count() ? 0 : 101; }
int cuDeviceGetName(char* name, int length, int) { return snprintf(name, length, "Fake GPU"), 0; }
int cuDeviceTotalMem_v2(size_t* size, int device) { return fake_memory(device, nullptr, size), 0; }
int cuDeviceGetUuid_v2(unsigned char* bytes, int device) { return fake_uuid(device, bytes), 0; }
int cuDeviceGetUuid(unsigned char* bytes, int device) { return fake_uuid(device, bytes), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 75: *value = fake_capability() / 10; break;
    case 76: *value = fake_capability() % 10; break;
    case 16: *value = 132; break;    // multiprocessors
    case 10: *value = 32; break;     // warp size
    case 1: *value = 1024; break;    // threads of a block
    case 102: *value = 1; break;     // virtual memory management
    default: *value = 0;
  }
  return 0;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = fake_is_touched(device);
  return 0;
}
static void* context_of(int device) { return (void*)(uintptr_t)(0xc000 + device); }
int cuDevicePrimaryCtxRetain(void** context, int device) {
  fake_touch(device);
  return *context = context_of(device), 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxGetCurrent(void** context) {
  int device = fake_current_device();
  return *context = fake_is_touched(device) ? context_of(device) : nullptr, 0;
}
int cuCtxSetCurrent(void* context) {
  if (context) fake_set_current_device((uintptr_t)context - 0xc000);
  return 0;
}
int cuCtxGetDevice(int* device) { return *device = fake_current_device(), 0; }
int cuGetErrorString(int error, const char** text) {
  return *text = error == FAKE_OUT_OF_MEMORY ? "out of memory" : error ? "fake driver error" : "no error", 0;
}
int cuGetErrorName(int error, const char** text) {
  *text = error == FAKE_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error ? "CUDA_ERROR_UNKNOWN" : "CUDA_SUCCESS";
  return 0;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  REFUSE("cuMemGetInfo", 0);
  fake_touch(fake_current_device());
  return fake_memory(fake_current_device(), free, total), 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t size) {
  REFUSE("cuMemAlloc", size);
  return fake_malloc(fake_current_device(), size, address);
}
int cuMemFree_v2(uint64_t address) { return fake_free(address); }
int cuMemGetAllocationGranularity(size_t* size, const void*, int) { return *size = 2 << 20, 0; }
int cuMemAddressReserve(uint64_t* address, size_t size, size_t, uint64_t, unsigned long long) {
  REFUSE("cuMemAddressReserve", size);
  return fake_reserve(size, address);
}
int cuMemAddressFree(uint64_t address, size_t size) { return fake_unreserve(address, size); }
int cuMemCreate(uint64_t* handle, size_t size, const AllocationProperties* properties, unsigned long long) {
  REFUSE("cuMemCreate", size);
  return fake_create(properties->location.id, size, handle);
}
int cuMemRelease(uint64_t handle) { return fake_release(handle); }
int cuMemMap(uint64_t address, size_t size, size_t, uint64_t handle, unsigned long long) {
  REFUSE("cuMemMap", size);
  return fake_map(address, size, handle);
}
int cuMemUnmap(uint64_t address, size_t size) { return fake_unmap(address, size); }
int cuMemSetAccess(uint64_t, size_t, const void*, size_t) { return 0; }
int cuMemRetainAllocationHandle(uint64_t* handle, void* address) { return fake_retain((uint64_t)address, handle); }
int cuMemGetAddressRange_v2(uint64_t* base, size_t* size, uint64_t address) {
  int device;
  uint64_t found_base;
  size_t found_size;
  if (!fake_find(address, &device, &found_base, &found_size)) return NOT_FOUND;
  if (base) *base = found_base;
  if (size) *size = found_size;
  return 0;
}
int cuMemsetD32Async(uint64_t, unsigned, size_t, void*) { return 0; }
int cuGetProcAddress(const char* name, void** found, int, uint64_t) {
  return *found = fake_symbol(name), *found ? 0 : NOT_FOUND;
}
int cuGetProcAddress_v2(const char* name, void** found, int, uint64_t, int* result) {
  *found = fake_symbol(name);
  if (result) *result = *found ? 0 : 1;
  return *found ? 0 : NOT_FOUND;
}

// torch looks these up when it starts and calls them only for features that the stub does not have
#define UNSUPPORTED(name) \
  int name() { return fake_unknown(#name); }
UNSUPPORTED(cuMemExportToShareableHandle)
UNSUPPORTED(cuMemImportFromShareableHandle)
UNSUPPORTED(cuMemGetAllocationPropertiesFromHandle)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuStreamWriteValue32)
UNSUPPORTED(cuCtxFromGreenCtx)
UNSUPPORTED(cuCtxPopCurrent)
UNSUPPORTED(cuCtxPushCurrent)
UNSUPPORTED(cuDevResourceGenerateDesc)
UNSUPPORTED(cuDevSmResourceSplitByCount)
UNSUPPORTED(cuDeviceGetDevResource)
UNSUPPORTED(cuGreenCtxCreate)
UNSUPPORTED(cuGreenCtxDestroy)
UNSUPPORTED(cuGreenCtxStreamCreate)
int cuLogsRegisterCallback(void*, void*, void**) { return 0; }
int cuLogsUnregisterCallback(void*) { return 0; }
}
