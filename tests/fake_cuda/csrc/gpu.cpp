#include "gpu.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {
constexpr uint64_t MIB = 1 << 20, GRID = 2 * MIB, CHUNK = 32 * MIB, CONTEXT = 527 * MIB;
constexpr int NOT_SUPPORTED = 801;

uint64_t round_up(uint64_t size, uint64_t grid) { return (size + grid - 1) / grid * grid; }

[[noreturn]] void fail(const std::string& what) {
  fprintf(stderr, "fake_cuda: %s\n", what.c_str());
  abort();
}

// Where a new segment goes, as an H200's driver 580 decides: in chunks of 32 MiB, downwards; the holes of the newest
// chunk first; an empty chunk goes back; a chunk between two others needs 32 MiB to spare.
class Addresses {
 public:
  explicit Addresses(uint64_t top) : top_(top) {}

  uint64_t take(uint64_t size) {
    size = round_up(size, GRID);
    const Place* best = nullptr;
    for (auto it = by_size_.lower_bound(size); it != by_size_.end(); ++it)
      if (!best || *it->second.begin() < *best) best = &*it->second.begin();
    uint64_t address = best ? best->address : add_chunk(round_up(size, CHUNK))->first;
    bool taken = cut(address, size);
    if (!taken) fail("no place for a segment");
    return address;
  }

  bool take_at(uint64_t address, uint64_t size) {
    size = round_up(size, GRID);
    auto chunk = chunk_of(address);
    if (chunk == chunks_.end()) {
      auto above = chunks_.lower_bound(address);
      uint64_t end = address + (address % CHUNK ? size : round_up(size, CHUNK));
      if (above != chunks_.end()) end = std::min(end, above->first);
      chunk = insert(address, end);
    }
    while (address + size > chunk->second.end) {
      auto above = std::next(chunk);
      uint64_t end = chunk->second.end;
      if (above != chunks_.end() && above->first == end) {
        absorb(chunk, above);
      } else {
        uint64_t limit = above == chunks_.end() ? UINT64_MAX : above->first;
        if (limit == end) return false;
        chunk->second.end = std::min(address + size, limit);
        add_hole(chunk, end, chunk->second.end - end);
        note_gaps(chunk);
      }
    }
    return cut(address, size);
  }

  void give_back(uint64_t address) {
    auto it = taken_.find(address);
    if (it == taken_.end()) return;
    auto chunk = chunk_of(address);
    uint64_t size = it->second;
    taken_.erase(it);
    add_hole(chunk, address, size);
    auto& first = *chunk->second.holes.begin();
    if (first.first == chunk->first && first.second == chunk->second.end - chunk->first) {
      remove_hole(chunk, first.first);
      remove(chunk);
    }
  }

 private:
  struct Chunk {
    uint64_t end;
    int64_t rank;
    std::map<uint64_t, uint64_t> holes;
  };
  struct Place {
    int64_t rank;
    uint64_t address;
    bool operator<(const Place& other) const { return rank != other.rank ? rank < other.rank : address < other.address; }
  };
  using Chunks = std::map<uint64_t, Chunk>;

  Chunks::iterator chunk_of(uint64_t address) {
    auto it = chunks_.upper_bound(address);
    if (it == chunks_.begin() || address >= (--it)->second.end) return chunks_.end();
    return it;
  }

  Chunks::iterator insert(uint64_t begin, uint64_t end) {
    auto chunk = chunks_.emplace(begin, Chunk{end, --rank_, {}}).first;
    add_hole(chunk, begin, end - begin);
    note_gaps(chunk);
    return chunk;
  }

  Chunks::iterator add_chunk(uint64_t size) {
    uint64_t end = chunks_.empty() ? top_ : chunks_.begin()->first;
    for (auto begin = roomy_.rbegin(); begin != roomy_.rend(); ++begin) {
      auto below = chunks_.find(*begin);
      if (gap_above(below) < size + CHUNK) continue;
      end = below->second.end + gap_above(below);
      break;
    }
    return insert(end - size, end);
  }

  uint64_t gap_above(Chunks::iterator chunk) {
    auto next = std::next(chunk);
    uint64_t end = next == chunks_.end() ? top_ : next->first;
    return end > chunk->second.end ? end - chunk->second.end : 0;
  }

  // Keeps roomy_ right after a change of this chunk.
  void note_gaps(Chunks::iterator chunk) {
    if (chunk != chunks_.begin()) note_gap(std::prev(chunk));
    if (chunk != chunks_.end()) note_gap(chunk);
  }

  void note_gap(Chunks::iterator chunk) {
    if (gap_above(chunk) >= 2 * CHUNK) roomy_.insert(chunk->first);
    else roomy_.erase(chunk->first);
  }

  void remove(Chunks::iterator chunk) {
    roomy_.erase(chunk->first);
    note_gaps(chunks_.erase(chunk));
  }

  void absorb(Chunks::iterator chunk, Chunks::iterator above) {
    auto holes = above->second.holes;
    for (auto& hole : holes) remove_hole(above, hole.first);
    chunk->second.end = above->second.end;
    remove(above);
    for (auto& hole : holes) add_hole(chunk, hole.first, hole.second);
  }

  bool cut(uint64_t address, uint64_t size) {
    auto chunk = chunk_of(address);
    auto it = chunk->second.holes.upper_bound(address);
    if (it == chunk->second.holes.begin()) return false;
    --it;
    uint64_t begin = it->first, end = begin + it->second;
    if (address + size > end) return false;
    remove_hole(chunk, begin);
    if (address > begin) put_hole(chunk, begin, address - begin);
    if (end > address + size) put_hole(chunk, address + size, end - address - size);
    taken_[address] = size;
    return true;
  }

  void add_hole(Chunks::iterator chunk, uint64_t address, uint64_t size) {
    auto& holes = chunk->second.holes;
    auto next = holes.lower_bound(address);
    if (next != holes.end() && next->first == address + size) {
      size += next->second;
      remove_hole(chunk, next->first);
    }
    auto before = holes.lower_bound(address);
    if (before != holes.begin() && (--before)->first + before->second == address) {
      address = before->first;
      size += before->second;
      remove_hole(chunk, address);
    }
    put_hole(chunk, address, size);
  }

  void put_hole(Chunks::iterator chunk, uint64_t address, uint64_t size) {
    chunk->second.holes[address] = size;
    by_size_[size].insert({chunk->second.rank, address});
  }

  void remove_hole(Chunks::iterator chunk, uint64_t address) {
    auto it = chunk->second.holes.find(address);
    auto places = by_size_.find(it->second);
    places->second.erase({chunk->second.rank, address});
    if (places->second.empty()) by_size_.erase(places);
    chunk->second.holes.erase(it);
  }

  uint64_t top_;
  int64_t rank_ = 0;
  Chunks chunks_;
  std::set<uint64_t> roomy_;  // chunks with room for another one above them
  std::map<uint64_t, std::set<Place>> by_size_;
  std::map<uint64_t, uint64_t> taken_;
};

uint64_t parse_size(const char* text, char** end) {
  double number = strtod(text, end);
  static const std::pair<const char*, double> units[] = {{"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.}};
  for (auto& unit : units)
    if (!strncmp(*end, unit.first, 3)) {
      *end += 3;
      return number * unit.second;
    }
  return number;
}

// One value, or one for each device separated by commas; the last one holds for the rest.
std::vector<uint64_t> sizes(const char* name, const std::vector<uint64_t>& otherwise) {
  const char* text = getenv(name);
  if (!text || !*text) return otherwise;
  std::vector<uint64_t> found;
  for (char* end = nullptr;; text = end + 1) {
    found.push_back(parse_size(text, &end));
    if (end == text || (*end && *end != ',')) fail(std::string(name) + ": not a size: " + getenv(name));
    if (!*end) return found;
  }
}

uint64_t number(const char* name, uint64_t otherwise) { return sizes(name, {otherwise})[0]; }

// "cudaMalloc:3", "cuMemCreate:2-5", "cudaMemGetInfo:4-" or "cudaMalloc>1GiB", several separated by commas.
struct Refusal {
  std::string call;
  uint64_t from = 0, to = UINT64_MAX, larger = 0;
};

struct Device {
  uint64_t total, before, other, growth, used;
  bool touched;
};
struct Segment {
  int device;
  uint64_t size;
};
struct Pages {
  int device;
  uint64_t size;
  int references, maps;
};
struct Mapping {
  uint64_t size, handle;
};

struct Books {
  std::recursive_mutex mutex;
  std::vector<Device> devices;
  uint64_t reserve;
  bool backed, log, abort_on_unknown, mig;
  int capability;
  Addresses addresses;
  std::map<uint64_t, Segment> segments;
  std::map<uint64_t, uint64_t> reserved;
  std::map<uint64_t, Pages> pages;
  std::map<uint64_t, Mapping> mapped;
  uint64_t next_handle = 1;
  std::vector<std::pair<uint64_t, uint64_t>> forced;
  size_t next_forced = 0;
  std::vector<Refusal> refusals;
  std::map<std::string, uint64_t> calls;
  std::set<std::string> reported;
  bool pending;
  uint64_t last_point = 0;
  std::map<uint64_t, uint64_t> waiting;  // points that are not passed yet, and their streams

  Books()
      : reserve(number("FAKE_CUDA_RESERVE", GRID)),
        backed(number("FAKE_CUDA_BACKED", 0)),
        log(number("FAKE_CUDA_LOG", 0)),
        abort_on_unknown(number("FAKE_CUDA_ABORT", 0)),
        mig(number("FAKE_CUDA_MIG", 0)),
        capability(number("FAKE_CUDA_CAPABILITY", 90)),
        addresses(backed ? 0x600000000000 : 0x7f8000000000),
        pending(number("FAKE_CUDA_PENDING", 0)) {
    auto total = sizes("FAKE_CUDA_SIZE", {80ull << 30}), other = sizes("FAKE_CUDA_OTHER", {0});
    auto growth = sizes("FAKE_CUDA_GROWTH", {0}), before = sizes("FAKE_CUDA_FREE", {});
    auto of = [](const std::vector<uint64_t>& values, size_t i) { return values[std::min(i, values.size() - 1)]; };
    size_t count = number("FAKE_CUDA_DEVICES", std::max<size_t>(1, total.size()));
    for (size_t i = 0; i < count; i++) {
      uint64_t size = of(total, i), context = std::min(size / 4, CONTEXT);
      devices.push_back({size, before.empty() ? size - context : of(before, i), of(other, i), of(growth, i), 0, false});
    }
    if (const char* rules = getenv("FAKE_CUDA_REFUSE")) read_refusals(rules);
  }

  void read_refusals(const std::string& rules) {
    refusals.clear();
    calls.clear();
    for (size_t start = 0; start < rules.size();) {
      size_t stop = std::min(rules.find(',', start), rules.size()), mark = rules.find_first_of(":>", start);
      if (mark >= stop) fail("FAKE_CUDA_REFUSE: expected CALL:N, CALL:N-M or CALL>SIZE in " + rules);
      Refusal rule;
      rule.call = rules.substr(start, mark - start);
      std::string rest = rules.substr(mark + 1, stop - mark - 1);
      char* end = nullptr;
      if (rules[mark] == '>') {
        rule.larger = parse_size(rest.c_str(), &end);
      } else {
        rule.from = rule.to = strtoull(rest.c_str(), &end, 10);
        if (*end == '-') rule.to = end[1] ? strtoull(end + 1, &end, 10) : UINT64_MAX, end += *end == '-';
      }
      if (*end) fail("FAKE_CUDA_REFUSE: expected CALL:N, CALL:N-M or CALL>SIZE in " + rules);
      refusals.push_back(rule);
      start = stop + 1;
    }
  }

  Device& device(int index) {
    if (index < 0 || index >= (int)devices.size()) fail("there is no device " + std::to_string(index));
    return devices[index];
  }
  uint64_t free_of(const Device& d) const { return d.before - std::min(d.before, d.other + d.used); }
  // an H200's driver keeps the last whole 2 MiB (benchmarks/driver_reserve.py)
  bool has(const Device& d, uint64_t size) const {
    uint64_t free = free_of(d) / GRID * GRID;
    return size + reserve <= free;
  }
  uint64_t place(uint64_t size) {
    if (next_forced < forced.size()) {
      auto next = forced[next_forced++];
      if (next.second == size && addresses.take_at(next.first, size)) return next.first;
      fake_note("the forced addresses end: a segment of %lu bytes was expected, not %lu", next.second, size);
      forced.clear();
      next_forced = 0;
    }
    return addresses.take(size);
  }
  void back(uint64_t address, uint64_t size) {
    if (!backed) return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    if (mmap((void*)address, size, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) fail("cannot back device memory");
  }
  void unback(uint64_t address, uint64_t size) {
    if (backed) munmap((void*)address, size);
  }
  void drop_unused(std::map<uint64_t, Pages>::iterator it) {
    if (it->second.references > 0 || it->second.maps > 0) return;
    devices[it->second.device].used -= it->second.size;
    pages.erase(it);
  }
};

Books& books() {
  static Books* all = new Books;
  return *all;
}
thread_local int current_device = 0;
#define WITH_BOOKS   \
  Books& b = books(); \
  std::lock_guard<std::recursive_mutex> lock(b.mutex)
}  // namespace

extern "C" {
int fake_malloc(int device, size_t size, uint64_t* address) {
  WITH_BOOKS;
  Device& d = b.device(device);
  d.touched = true;
  *address = 0;
  if (!size) return FAKE_OK;
  size = round_up(size, GRID);
  if (!b.has(d, size)) return FAKE_OUT_OF_MEMORY;
  *address = b.place(size);
  d.used += size;
  b.segments[*address] = {device, size};
  b.back(*address, size);
  return FAKE_OK;
}

int fake_free(uint64_t address) {
  WITH_BOOKS;
  if (!address) return FAKE_OK;
  auto it = b.segments.find(address);
  if (it == b.segments.end()) return FAKE_INVALID;
  b.devices[it->second.device].used -= it->second.size;
  b.unback(address, it->second.size);
  b.segments.erase(it);
  b.addresses.give_back(address);
  return FAKE_OK;
}

int fake_reserve(size_t size, uint64_t* address) {
  WITH_BOOKS;
  *address = b.place(round_up(size, GRID));
  b.reserved[*address] = size;
  return FAKE_OK;
}

int fake_unreserve(uint64_t address, size_t size) {
  WITH_BOOKS;
  auto it = b.reserved.find(address);
  if (it == b.reserved.end() || it->second != size) return FAKE_INVALID;
  b.reserved.erase(it);
  b.addresses.give_back(address);
  return FAKE_OK;
}

int fake_create(int device, size_t size, uint64_t* handle) {
  WITH_BOOKS;
  Device& d = b.device(device);
  if (!size || size % GRID) return FAKE_INVALID;
  if (!b.has(d, size)) return FAKE_OUT_OF_MEMORY;
  d.used += size;
  d.touched = true;
  *handle = b.next_handle++;
  b.pages[*handle] = {device, size, 1, 0};
  return FAKE_OK;
}

int fake_release(uint64_t handle) {
  WITH_BOOKS;
  auto it = b.pages.find(handle);
  if (it == b.pages.end() || !it->second.references) return FAKE_INVALID;
  it->second.references--;
  b.drop_unused(it);
  return FAKE_OK;
}

int fake_retain(uint64_t address, uint64_t* handle) {
  WITH_BOOKS;
  auto it = b.mapped.upper_bound(address);
  if (it == b.mapped.begin() || address >= (--it)->first + it->second.size) return FAKE_INVALID;
  *handle = it->second.handle;
  b.pages[*handle].references++;
  return FAKE_OK;
}

int fake_map(uint64_t address, size_t size, uint64_t handle) {
  WITH_BOOKS;
  auto it = b.pages.find(handle);
  if (it == b.pages.end() || it->second.size != size || b.mapped.count(address)) return FAKE_INVALID;
  it->second.maps++;
  b.mapped[address] = {size, handle};
  b.back(address, size);
  return FAKE_OK;
}

int fake_unmap(uint64_t address, size_t size) {
  WITH_BOOKS;
  auto it = b.mapped.find(address);
  if (it == b.mapped.end() || it->second.size != size) return FAKE_INVALID;
  b.unback(address, size);
  auto pages = b.pages.find(it->second.handle);
  b.mapped.erase(it);
  pages->second.maps--;
  b.drop_unused(pages);
  return FAKE_OK;
}

void fake_memory(int device, size_t* free, size_t* total) {
  WITH_BOOKS;
  Device& d = b.device(device);
  if (free) {
    d.other = std::min(d.before, d.other + d.growth);
    *free = b.free_of(d);
  }
  if (total) *total = d.total;
}

size_t fake_used(int device) {
  WITH_BOOKS;
  return b.device(device).used;
}

size_t fake_context(int device) {
  WITH_BOOKS;
  Device& d = b.device(device);
  return d.touched ? std::min(d.total - d.before, CONTEXT) : 0;
}

size_t fake_other(int device) {
  WITH_BOOKS;
  return b.device(device).other;
}

bool fake_find(uint64_t address, int* device, uint64_t* base, size_t* size) {
  WITH_BOOKS;
  auto segment = b.segments.upper_bound(address);
  if (segment != b.segments.begin() && address < (--segment)->first + segment->second.size) {
    *device = segment->second.device, *base = segment->first, *size = segment->second.size;
    return true;
  }
  auto mapping = b.mapped.upper_bound(address);
  if (mapping == b.mapped.begin() || address >= (--mapping)->first + mapping->second.size) return false;
  *device = b.pages[mapping->second.handle].device, *base = mapping->first, *size = mapping->second.size;
  return true;
}

bool fake_is_backed() { return books().backed; }
int fake_device_count() { return books().devices.size(); }
int fake_current_device() { return current_device; }
void fake_set_current_device(int device) { current_device = device; }
int fake_capability() { return books().capability; }
bool fake_is_mig() { return books().mig; }

void fake_touch(int device) {
  WITH_BOOKS;
  b.device(device).touched = true;
}

bool fake_is_touched(int device) {
  WITH_BOOKS;
  return b.device(device).touched;
}

void fake_uuid(int device, unsigned char* bytes) {
  for (int i = 0; i < 16; i++) bytes[i] = i == 15 ? device : 0xfa;
}

uint64_t fake_record(uint64_t stream) {
  WITH_BOOKS;
  ++b.last_point;
  if (b.pending) b.waiting[b.last_point] = stream;
  return b.last_point;
}

bool fake_is_passed(uint64_t point) {
  WITH_BOOKS;
  return !b.waiting.count(point);
}

void fake_synchronize(uint64_t stream) {
  WITH_BOOKS;
  for (auto it = b.waiting.begin(); it != b.waiting.end();)
    it = stream == UINT64_MAX || it->second == stream ? b.waiting.erase(it) : std::next(it);
}

uint64_t fake_last_point() {
  WITH_BOOKS;
  return b.last_point;
}

void fake_set_device(int device, size_t total, size_t free_before) {
  WITH_BOOKS;
  Device& d = b.device(device);
  d.total = total;
  d.before = free_before;
}

void fake_set_other(int device, size_t bytes) {
  WITH_BOOKS;
  b.device(device).other = bytes;
}

void fake_set_growth(int device, size_t bytes) {
  WITH_BOOKS;
  b.device(device).growth = bytes;
}

void fake_set_pending(int pending) {
  WITH_BOOKS;
  b.pending = pending;
  if (!pending) b.waiting.clear();
}

void fake_pass(uint64_t point) {
  WITH_BOOKS;
  b.waiting.erase(point);
}

void fake_force_addresses(const uint64_t* pairs, size_t count) {
  WITH_BOOKS;
  b.forced.clear();
  b.next_forced = 0;
  for (size_t i = 0; i < count; i++) b.forced.emplace_back(pairs[2 * i], pairs[2 * i + 1]);
}

void fake_refuse(const char* rules) {
  WITH_BOOKS;
  b.read_refusals(rules);
}

int fake_refused(const char* call, size_t size) {
  WITH_BOOKS;
  if (b.refusals.empty()) return 0;
  uint64_t count = ++b.calls[call];
  for (auto& rule : b.refusals) {
    if (rule.call != call || count < rule.from || count > rule.to || size < rule.larger + (rule.larger > 0)) continue;
    fake_note("refused: call %lu of %s, %zu bytes", count, call, size);
    return size ? FAKE_OUT_OF_MEMORY : 999;
  }
  return 0;
}

void fake_note(const char* format, ...) {
  if (!books().log) return;
  va_list arguments;
  va_start(arguments, format);
  fputs("fake_cuda: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

int fake_unknown(const char* name) {
  WITH_BOOKS;
  if (b.reported.insert(name).second) {
    fprintf(stderr, "fake_cuda: %s is not part of the stub: it returns an error\n", name);
    fflush(stderr);
  }
  if (b.abort_on_unknown) abort();
  return NOT_SUPPORTED;
}

void* fake_symbol(const char* name) {
  static void* self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  for (const char* suffix : {"_v3", "_v2", ""})
    if (void* found = self ? dlsym(self, (std::string(name) + suffix).c_str()) : nullptr) return found;
  fake_unknown(name);
  return nullptr;
}
}
