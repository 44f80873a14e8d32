// The books of the GPUs that do not exist: sizes, addresses, streams and events. They live in libcuda.so.1.
// Every fake_* function is a C function, so a test can call it through ctypes as well.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
enum { FAKE_OK = 0, FAKE_INVALID = 1, FAKE_OUT_OF_MEMORY = 2 };

// memory; all return one of the codes above
int fake_malloc(int device, size_t size, uint64_t* address);
int fake_free(uint64_t address);
int fake_reserve(size_t size, uint64_t* address);
int fake_unreserve(uint64_t address, size_t size);
int fake_create(int device, size_t size, uint64_t* handle);
int fake_release(uint64_t handle);
int fake_retain(uint64_t address, uint64_t* handle);
int fake_map(uint64_t address, size_t size, uint64_t handle);
int fake_unmap(uint64_t address, size_t size);
void fake_memory(int device, size_t* free, size_t* total);
size_t fake_used(int device);
size_t fake_context(int device);  // bytes that the process holds apart from its allocations
size_t fake_other(int device);
bool fake_find(uint64_t address, int* device, uint64_t* base, size_t* size);
bool fake_is_backed();

// devices
int fake_device_count();
int fake_current_device();
void fake_set_current_device(int device);
void fake_touch(int device);  // its primary context exists from now on
bool fake_is_touched(int device);
int fake_capability();
bool fake_is_mig();
void fake_uuid(int device, unsigned char* bytes);

// order of work
uint64_t fake_record(uint64_t stream);  // a point that is passed at once, or later if events are pending
bool fake_is_passed(uint64_t point);
void fake_synchronize(uint64_t stream);  // ~0: all streams
uint64_t fake_last_point();

// what a test steers
void fake_set_device(int device, size_t total, size_t free_before);
void fake_set_other(int device, size_t bytes);
void fake_set_growth(int device, size_t bytes);  // another process takes this much at every look
void fake_set_pending(int pending);
void fake_pass(uint64_t point);  // this point alone
void fake_force_addresses(const uint64_t* pairs, size_t count);  // address and size of the next segments
void fake_refuse(const char* rules);
int fake_refused(const char* call, size_t size);  // the error this call must return, 0 for none

void fake_note(const char* format, ...);  // with FAKE_CUDA_LOG
int fake_unknown(const char* name);       // reports a function that is not part of the stub; returns NOT_SUPPORTED
void* fake_symbol(const char* name);
}
