/* A libnvidia-ml.so.1 for tests: it answers from a machine that is described in a file.
 *
 * FAKE_NVML_MACHINE names the file. It is read anew at each call, so that a test can change the machine in flight.
 * A line is a kind and its words; a word is key=value, and name= takes the rest of its line:
 *
 *   driver  version=550.54.15
 *   gpu     uuid=GPU-… total=N reserved=N used=N [mig=1] name=NVIDIA H200
 *   mig     gpu=0 instance=1 uuid=MIG-… total=N reserved=N used=N name=NVIDIA H200 MIG 1g.18gb
 *   process gpu=0 [slot=0] pid=42 [used=N] [graphics=1]      used is "not available" where it is left out
 *   error   call=nvmlDeviceGetUUID [gpu=1] [whole=1] code=15  call=* is every call on a device; whole: not on its MIGs
 *   hang    call=nvmlDeviceGetName fifo=PATH                 returns when somebody opens PATH for writing
 *
 * FAKE_NVML_CALLS, if set, names a file that gets the name of each call. GENERATION is the driver's age:
 * 3 has all that is used, 2 is as R470 (no memory v2, processes v2), 1 is as R418 (neither, and no MIG).
 * As in the real one: only v2 tells reserved memory apart, a MIG device has the memory of its GPU instance, the
 * whole GPU's handle lists the processes of all its instances, and before init every call is refused.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GENERATION
#define GENERATION 3
#endif

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, VERSION_MISMATCH = 25 };
enum { MOST = 32, MIG_SLOTS = 7, TEXT = 96 };

typedef unsigned long long bytes_t;
typedef struct { char uuid[TEXT], name[TEXT]; int mig, gpu, instance; bytes_t total, reserved, used; } unit_t;
typedef struct { int gpu, slot, graphics; unsigned pid; bytes_t used; } entry_t;
typedef struct { unsigned version; bytes_t total, reserved, free, used; } memory_v2_t;
typedef struct { bytes_t total, free, used; } memory_v1_t;
typedef struct { unsigned pid; bytes_t used; unsigned instance, compute_instance; } process_t;
typedef void *handle_t; /* (gpu + 1) * 256, and + slot + 1 for a MIG device */

static struct {
    char driver[TEXT];
    unit_t gpus[MOST], migs[MOST];
    entry_t entries[MOST];
    int n_gpus, n_migs, n_entries;
} machine;
static int initialised;

static int value(const char *line, const char *key, char *out) {
    char word[TEXT];
    snprintf(word, sizeof word, " %s=", key);
    const char *at = strstr(line, word);
    if (!at) return 0;
    at += strlen(word);
    snprintf(out, TEXT, "%.*s", (int)strcspn(at, strcmp(key, "name") ? " \n" : "\n"), at);
    return 1;
}

static bytes_t number(const char *line, const char *key, bytes_t otherwise) {
    char text[TEXT];
    return value(line, key, text) ? strtoull(text, NULL, 10) : otherwise;
}

static unit_t unit(const char *line) {
    unit_t u = {.mig = (int)number(line, "mig", 0), .gpu = (int)number(line, "gpu", 0),
                .instance = (int)number(line, "instance", 0), .total = number(line, "total", 0),
                .reserved = number(line, "reserved", 0), .used = number(line, "used", 0)};
    value(line, "uuid", u.uuid);
    value(line, "name", u.name);
    return u;
}

static entry_t entry(const char *line) {
    return (entry_t){.gpu = (int)number(line, "gpu", 0), .slot = (int)number(line, "slot", (bytes_t)-1),
                     .graphics = (int)number(line, "graphics", 0), .pid = (unsigned)number(line, "pid", 0),
                     .used = number(line, "used", (bytes_t)-1)};
}

static void wait_for_release(const char *line) {
    char path[512] = "";
    const char *at = strstr(line, " fifo=");
    if (at) snprintf(path, sizeof path, "%.*s", (int)strcspn(at + 6, " \n"), at + 6);
    int fd = open(path, O_RDONLY); /* blocks until there is a writer */
    if (fd >= 0) close(fd);
}

/* Reads the machine; returns the error that the file holds for this call on this GPU (-1: on none). */
static int load(const char *call, int gpu, int slot) {
    char line[1024], wanted[TEXT];
    int code = OK, hangs = 0;
    char hanging[1024] = "";
    FILE *file = fopen(getenv("FAKE_NVML_MACHINE"), "r");
    memset(&machine, 0, sizeof machine);
    while (file && fgets(line, sizeof line, file)) {
        if (!strncmp(line, "driver", 6)) value(line, "version", machine.driver);
        if (!strncmp(line, "gpu", 3)) machine.gpus[machine.n_gpus++] = unit(line);
        if (!strncmp(line, "mig", 3)) machine.migs[machine.n_migs++] = unit(line);
        if (!strncmp(line, "process", 7)) machine.entries[machine.n_entries++] = entry(line);
        int named = value(line, "call", wanted) && (!strcmp(wanted, call) || (!strcmp(wanted, "*") && gpu >= 0));
        if (!named || (int)number(line, "gpu", (bytes_t)gpu) != gpu) continue;
        if (number(line, "whole", 0) && slot >= 0) continue;
        if (!strncmp(line, "error", 5) && !code) code = (int)number(line, "code", 0);
        if (!strncmp(line, "hang", 4)) hangs = 1, strcpy(hanging, line);
    }
    if (file) fclose(file);
    if (hangs) wait_for_release(hanging);
    return code;
}

static int begin(const char *call, int gpu, int slot) {
    const char *path = getenv("FAKE_NVML_CALLS");
    FILE *calls = path ? fopen(path, "a") : NULL;
    if (calls) fprintf(calls, "%s\n", call), fclose(calls);
    int code = load(call, gpu, slot);
    return code ? code : initialised || !strcmp(call, "nvmlInitWithFlags") ? OK : UNINITIALIZED;
}

static int gpu_of(handle_t handle) { return (int)((uintptr_t)handle / 256) - 1; }
static int slot_of(handle_t handle) { return (int)((uintptr_t)handle % 256) - 1; }
#define BEGIN(gpu) do { int code = begin(__func__, gpu, -1); if (code) return code; } while (0)
#define BEGIN_ON(handle) \
    do { int code = begin(__func__, gpu_of(handle), slot_of(handle)); if (code) return code; } while (0)

static unit_t *mig_at(int gpu, int slot) {
    for (int i = 0; i < machine.n_migs; i++)
        if (machine.migs[i].gpu == gpu && slot-- == 0) return &machine.migs[i];
    return NULL;
}

static unit_t *unit_of(handle_t handle) {
    return slot_of(handle) >= 0 ? mig_at(gpu_of(handle), slot_of(handle)) : &machine.gpus[gpu_of(handle)];
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; BEGIN(-1); initialised++; return OK; }
int nvmlShutdown(void) { BEGIN(-1); initialised--; return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }
int nvmlDeviceGetCount_v2(unsigned *count) { BEGIN(-1); *count = (unsigned)machine.n_gpus; return OK; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    BEGIN(-1);
    snprintf(out, size, "%s", machine.driver);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t *handle) {
    BEGIN((int)index);
    if (index >= (unsigned)machine.n_gpus) return INVALID_ARGUMENT;
    *handle = (handle_t)(uintptr_t)((index + 1) * 256);
    return OK;
}

int nvmlDeviceGetUUID(handle_t handle, char *out, unsigned size) {
    BEGIN_ON(handle);
    snprintf(out, size, "%s", unit_of(handle)->uuid);
    return OK;
}

int nvmlDeviceGetName(handle_t handle, char *out, unsigned size) {
    BEGIN_ON(handle);
    snprintf(out, size, "%s", unit_of(handle)->name);
    return OK;
}

int nvmlDeviceGetMemoryInfo(handle_t handle, memory_v1_t *out) {
    BEGIN_ON(handle);
    unit_t *u = unit_of(handle);
    *out = (memory_v1_t){u->total, u->total - u->reserved - u->used, u->reserved + u->used};
    return OK;
}

#if GENERATION >= 2
static int processes(const char *call, handle_t handle, unsigned *count, process_t *out, int graphics) {
    int gpu = gpu_of(handle), slot = slot_of(handle), code = begin(call, gpu, slot);
    unsigned room = *count, found = 0;
    if (code) return code;
    for (int i = 0; i < machine.n_entries; i++) {
        entry_t *e = &machine.entries[i];
        if (e->gpu != gpu || e->graphics != graphics || (slot >= 0 && e->slot != slot)) continue;
        if (out && found < room)
            out[found] = (process_t){e->pid, e->used, e->slot < 0 ? (unsigned)-1 : (unsigned)e->slot, (unsigned)-1};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESSES(name, graphics) \
    int name(handle_t handle, unsigned *count, process_t *out) { return processes(#name, handle, count, out, graphics); }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)

int nvmlDeviceGetMigMode(handle_t handle, unsigned *current, unsigned *pending) {
    BEGIN_ON(handle);
    *current = *pending = (unsigned)unit_of(handle)->mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t handle, unsigned *count) {
    BEGIN_ON(handle);
    *count = MIG_SLOTS;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t handle, unsigned slot, handle_t *mig) {
    BEGIN_ON(handle);
    if (!mig_at(gpu_of(handle), (int)slot)) return NOT_FOUND;
    *mig = (handle_t)((uintptr_t)handle + slot + 1);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(handle_t handle, unsigned *id) {
    BEGIN_ON(handle);
    *id = (unsigned)unit_of(handle)->instance;
    return OK;
}
#endif

#if GENERATION >= 3
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)

int nvmlDeviceGetMemoryInfo_v2(handle_t handle, memory_v2_t *out) {
    BEGIN_ON(handle);
    unit_t *u = unit_of(handle);
    if (out->version != (2u << 24 | sizeof *out)) return VERSION_MISMATCH;
    *out = (memory_v2_t){out->version, u->total, u->reserved, u->total - u->reserved - u->used, u->used};
    return OK;
}
#endif
