// libnvidia-ml.so.1: the processes and sizes that the books hold.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gpu.h"

extern "C" {
enum { INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};

// With FAKE_CUDA_MIG each device is the only instance of a GPU of its own. As in a container, the GPU's handle tells what
// it is, but neither its memory nor its processes.
enum { INSTANCE = 1 << 16, SLOTS = 7 };
static void* handle_of(int device) { return (void*)(uintptr_t)(device + 1); }
static int device_of(void* handle) { return (int)((uintptr_t)handle % INSTANCE) - 1; }
static bool is_instance(void* handle) { return (uintptr_t)handle >= INSTANCE; }
static bool is_parent(void* handle) { return fake_is_mig() && !is_instance(handle); }

int nvmlInit() { return fake_refused("nvmlInit", 0); }
int nvmlInit_v2() { return fake_refused("nvmlInit", 0); }
int nvmlInitWithFlags(unsigned) { return fake_refused("nvmlInit", 0); }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int error) { return error ? "fake NVML error" : "Success"; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) { return snprintf(text, length, "580.0.0"), 0; }
int nvmlSystemGetCudaDriverVersion(int* version) { return *version = STUB_CUDA * 1000, 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { return *version = STUB_CUDA * 1000, 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = fake_device_count(), 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  if (index >= (unsigned)fake_device_count()) return INVALID_ARGUMENT;
  return *handle = handle_of(index), 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  unsigned domain = 0, bus = 0;
  if (sscanf(id, "%x:%x", &domain, &bus) != 2 || !bus || bus > (unsigned)fake_device_count()) return INVALID_ARGUMENT;
  return *handle = handle_of(bus - 1), 0;
}
int nvmlDeviceGetIndex(void* handle, unsigned* index) { return *index = device_of(handle), 0; }
int nvmlDeviceGetName(void* handle, char* text, unsigned length) {
  return snprintf(text, length, "Fake GPU%s", is_instance(handle) ? " MIG 1g.10gb" : ""), 0;
}
int nvmlDeviceGetUUID(void* handle, char* text, unsigned length) {
  unsigned char b[16];
  fake_uuid(device_of(handle), b);
  if (is_parent(handle)) b[0] ^= 0xff;
  snprintf(text, length, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", is_instance(handle) ? "MIG" : "GPU",
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  size_t free, total;
  if (int error = fake_refused("nvmlDeviceGetMemoryInfo", 0)) return error;
  if (is_parent(handle)) return NO_PERMISSION;
  fake_memory(device_of(handle), &free, &total);
  *memory = {total, free, total - free};
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void* handle, MemoryV2* memory) {
  Memory plain;
  if (int error = nvmlDeviceGetMemoryInfo(handle, &plain)) return error;
  *memory = {memory->version, plain.total, 0, plain.free, plain.used};
  return 0;
}
int nvmlDeviceGetMigMode(void* handle, unsigned* current, unsigned* wanted) {
  if (is_instance(handle)) return INVALID_ARGUMENT;
  return *current = *wanted = fake_is_mig(), 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) { return *count = fake_is_mig() ? SLOTS : 0, 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void* handle, unsigned slot, void** found) {
  if (!is_parent(handle) || slot >= SLOTS) return INVALID_ARGUMENT;
  if (slot) return NOT_FOUND;
  return *found = (char*)handle + INSTANCE, 0;
}
int nvmlDeviceIsMigDeviceHandle(void* handle, unsigned* is) { return *is = is_instance(handle), 0; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void* handle, void** found) {
  if (!is_instance(handle)) return INVALID_ARGUMENT;
  return *found = (char*)handle - INSTANCE, 0;
}
int nvmlDeviceGetGpuInstanceId(void* handle, unsigned* id) { return is_instance(handle) ? (*id = 1, 0) : INVALID_ARGUMENT; }
int nvmlDeviceGetComputeInstanceId(void* handle, unsigned* id) {
  return is_instance(handle) ? (*id = 0, 0) : INVALID_ARGUMENT;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* processes) {
  int device = device_of(handle), found = 0;
  if (is_parent(handle)) return NO_PERMISSION;
  Process all[2];
  if (fake_is_touched(device)) all[found++] = {(unsigned)getpid(), fake_used(device) + fake_context(device), ~0u, ~0u};
  if (fake_other(device)) all[found++] = {1, fake_other(device), ~0u, ~0u};
  unsigned room = *count;
  *count = found;
  if (room < (unsigned)found) return INSUFFICIENT_SIZE;
  memcpy(processes, all, found * sizeof *all);
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, ProcessV1* processes) {
  Process all[2];
  unsigned found = 2, room = *count;
  if (int error = nvmlDeviceGetComputeRunningProcesses_v3(handle, &found, all)) return error;
  *count = found;
  if (room < found) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < found; i++) processes[i] = {all[i].pid, all[i].used};
  return 0;
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void* handle, unsigned* count, void*) {
  return *count = 0, is_parent(handle) ? NO_PERMISSION : 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return NOT_SUPPORTED; }
// its state is "not supported"; torch 2.13 requires the call to succeed
int nvmlDeviceGetGpuFabricInfoV(void*, char* info) { return memset(info + sizeof(int), 0, 24), 0; }
}
