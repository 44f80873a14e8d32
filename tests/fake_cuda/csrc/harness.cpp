// Runs programs of allocations on a release's own caching allocator and writes what the allocator recorded.
//
//     harness OUTPUT_FOLDER < programs
//
// Each program runs in a child process, so each begins with a fresh allocator. One line is one instruction; `program`
// begins the next one. Numbers name blocks, streams and pools; a stream or a pool is made at its first use.
//     program NAME [total=BYTES] [free=BYTES] [limit=BYTES] [other=BYTES] [history=0]
//     malloc BLOCK BYTES [STREAM]   free BLOCK   share BLOCK STREAM     empty_cache
//     pending 0|1    events stay pending: blocks used on two streams wait
//     pass           all of them complete;   pass BLOCK   those of this block
//     other BYTES    another process holds this much;   growth BYTES   it takes more at every look
//     limit BYTES    0: no limit;   refuse RULES   as FAKE_CUDA_REFUSE
//     address ADDRESS BYTES   of the next segment
//     pool POOL [use_on_oom] [no_split]   make a MemPool;   use POOL   allocate in it;   unuse POOL;   drop POOL
//     capture POOL STREAM   begin a graph in a pool of its own;   captured POOL   end it;   drop POOL
//     largest [STREAM]   find by bisection the largest request that succeeds now (to 512 bytes), and
//     try BYTES [STREAM]  find whether this one does; both leave the allocator as it is
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu.h"

namespace A = c10::cuda::CUDACachingAllocator;
using Id = std::pair<unsigned long long, unsigned long long>;

// libtorch_cuda.so does these when it is loaded; the harness runs without it.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*)(c10::DeviceIndex));
}
namespace c10::cuda::detail {
void init_p2p_access_cache(int64_t);
}

namespace {
void stand_in_for_libtorch_cuda() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
#if TORCH_MINOR >= 11
  c10::cuda::detail::init_p2p_access_cache(c10::cuda::device_count());
#endif
}

void record_history() {
  constexpr size_t entries = 1ull << 40;
#if TORCH_MINOR >= 11
  A::recordHistory(true, nullptr, entries, A::RecordContext::NEVER, false, {});
#elif TORCH_MINOR >= 8
  A::recordHistory(true, nullptr, entries, A::RecordContext::NEVER, false);
#else
  A::recordHistory(true, nullptr, entries, A::RecordContext::NEVER);
#endif
}

// What each release calls the functions of its pools.
template <class T>
auto make_pool(T* a, Id id, int) -> decltype(a->createOrIncrefPool(0, id)) { return a->createOrIncrefPool(0, id); }
template <class T>
auto make_pool(T* a, Id id, long) -> decltype(a->ensureExistsAndIncrefPool(0, id)) { return a->ensureExistsAndIncrefPool(0, id); }
template <class T>
void make_pool(T*, Id, ...) {}  // until 2.5 a pool begins with its first use
template <class T>
auto set_use_on_oom(T* a, Id id, bool on, int) -> decltype(a->setUseOnOOM(0, id, on)) { return a->setUseOnOOM(0, id, on); }
template <class T>
auto set_use_on_oom(T* a, Id id, bool on, long) -> decltype(a->setUseOnOOM(0, id)) {
  if (on) a->setUseOnOOM(0, id);  // releases before 2.11 cannot turn it off
}
template <class T>
void set_use_on_oom(T*, Id, bool, ...) { throw std::runtime_error("this release has no use_on_oom"); }
template <class T>
auto set_no_split(T* a, Id id, int) -> decltype(a->setNoSplit(0, id)) { return a->setNoSplit(0, id); }
template <class T>
void set_no_split(T*, Id, ...) { throw std::runtime_error("this release has no no_split"); }
template <class T>
auto empty_pool(T* a, Id id, int) -> decltype(a->emptyCache(id)) { return a->emptyCache(id); }
template <class T>
void empty_pool(T*, Id, ...) {}
template <class T>
auto capture_begins(T* a, int) -> decltype(a->markCaptureBegin(0)) { return a->markCaptureBegin(0); }
template <class T>
void capture_begins(T*, ...) {}
template <class T>
auto capture_ends(T* a, int) -> decltype(a->markCaptureEnd(0)) { return a->markCaptureEnd(0); }
template <class T>
void capture_ends(T*, ...) {}
using Filter = std::function<bool(cudaStream_t)>;
template <class T>
auto begin_pool(T* a, Id id, Filter filter, cudaStream_t, int) -> decltype(a->beginAllocateToPool(0, id, filter)) {
  return a->beginAllocateToPool(0, id, filter);
}
template <class T>
auto begin_pool(T* a, Id id, Filter, cudaStream_t stream, long) -> decltype(a->beginAllocateStreamToPool(0, stream, id)) {
  return a->beginAllocateStreamToPool(0, stream, id);
}
template <class T>
auto end_pool(T* a, Id id, cudaStream_t, int) -> decltype(a->endAllocateToPool(0, id)) { return a->endAllocateToPool(0, id); }
template <class T>
auto end_pool(T* a, Id, cudaStream_t stream, long) -> decltype(a->endAllocateStreamToPool(0, stream)) {
  return a->endAllocateStreamToPool(0, stream);
}
template <class E>
auto pool_of(const E& entry, int) -> decltype(Id(entry.mempool_)) { return entry.mempool_; }
template <class E>
Id pool_of(const E&, long) { return {0, 0}; }
template <class E>
constexpr auto has_pool(const E& entry, int) -> decltype(entry.mempool_, true) { return true; }
template <class E>
constexpr bool has_pool(const E&, long) { return false; }

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

struct Pool {
  Id id;
  bool is_graph;
  size_t stream;
  bool use_on_oom = false;
};

struct Program {
  std::string name;
  size_t total = 80ull << 30, free = 0, limit = 0, other = 0, history = 1;
  std::vector<std::string> lines;
};

class Run {
 public:
  explicit Run(const Program& program) : program_(program) {
    fake_set_device(0, program.total, program.free);
    fake_set_other(0, program.other);
    std::vector<uint64_t> forced;
    for (auto& line : program.lines) {
      unsigned long address, size;
      if (sscanf(line.c_str(), "address %lu %lu", &address, &size) == 2) forced.insert(forced.end(), {address, size});
    }
    fake_force_addresses(forced.data(), forced.size() / 2);
    stand_in_for_libtorch_cuda();
    A::init(c10::cuda::device_count());
    allocator_ = A::get();
    if (program.limit) set_limit(program.limit);
    streams_.push_back(c10::cuda::getDefaultCUDAStream(0));
    if (program.history) record_history();
  }

  void all() {
    for (auto& line : program_.lines) {
      std::istringstream words(line);
      std::string action;
      words >> action;
      if (action == "address") continue;
      does(action, words);
      if (program_.history) note_call();
    }
  }

  void write(const std::string& path);

 private:
  void does(const std::string& action, std::istringstream& words) {
    unsigned long a = 0, b = 0, c = 0;
    if (action == "refuse") {
      std::string rules;
      words >> rules;
      return fake_refuse(rules.c_str());
    }
    words >> a;
    if (action == "pool") return make(a, words);
    words >> b >> c;
    if (action == "malloc") allocate(a, b, c);
    else if (action == "free") release(a);
    else if (action == "share") share(a, b);
    else if (action == "empty_cache") A::emptyCache();
    else if (action == "pending") fake_set_pending(a);
    else if (action == "pass") pass(words.str().find(' ') == std::string::npos ? ~0ul : a);
    else if (action == "other") fake_set_other(0, a);
    else if (action == "growth") fake_set_growth(0, a);
    else if (action == "limit") set_limit(a);
    else if (action == "use") enter(a);
    else if (action == "unuse") leave(a);
    else if (action == "capture") capture(a, b);
    else if (action == "captured") end_capture(a);
    else if (action == "drop") drop(a);
    else if (action == "largest") find_largest(a);
    else if (action == "try") tried_.push_back(succeeds(a, b));
    else throw std::runtime_error("unknown instruction: " + action);
  }

  c10::cuda::CUDAStream stream(size_t number) {
    while (streams_.size() <= number) streams_.push_back(c10::cuda::getStreamFromPool(false, 0));
    return streams_[number];
  }

  void set_stream(size_t number) {
    if (number == current_) return;
    c10::cuda::setCurrentCUDAStream(stream(number));
    current_ = number;
  }

  void allocate(unsigned long block, size_t size, size_t on) {
    set_stream(on);
    try {
      live_.emplace(block, allocator_->allocate(size));
    } catch (const c10::OutOfMemoryError&) {
      ooms_++;
    }
  }

  void release(unsigned long block) {
    uint64_t before = fake_last_point();
    live_.erase(block);
    if (fake_last_point() > before) points_[block] = {before + 1, fake_last_point()};
  }

  void share(unsigned long block, size_t with) {
    auto it = live_.find(block);
    if (it != live_.end()) A::recordStream(it->second, stream(with));
  }

  void pass(unsigned long block) {
    if (block == ~0ul) return fake_synchronize(UINT64_MAX);
    auto it = points_.find(block);
    if (it == points_.end()) return;
    for (uint64_t point = it->second.first; point <= it->second.second; point++) fake_pass(point);
  }

  void set_limit(size_t limit) {
    // the next float above limit / total, so that torch's own rounding gives exactly `limit`
    double fraction = limit ? (limit + 0.25) / (double)program_.total : 1.0;
    A::setMemoryFraction(fraction, 0);
  }

  void make(unsigned long number, std::istringstream& words) {
    pools_[number] = {{0, ++pool_count_}, false, 0};
    Id id = pools_[number].id;
    make_pool(allocator_, id, 0);
    for (std::string option; words >> option;) {
      if (option == "use_on_oom") set_use_on_oom(allocator_, id, pools_[number].use_on_oom = true, 0);
      else if (option == "no_split") set_no_split(allocator_, id, 0);
      else throw std::runtime_error("unknown option of a pool: " + option);
    }
  }

  void enter(unsigned long number) {
    begin_pool(allocator_, pools_.at(number).id, [](cudaStream_t) { return true; }, nullptr, 0);
  }

  void leave(unsigned long number) {
    end_pool(allocator_, pools_.at(number).id, nullptr, 0);
#if TORCH_MINOR >= 6
    allocator_->releasePool(0, pools_.at(number).id);  // use_mem_pool() gives up what beginAllocateToPool took
#endif
  }

  // As torch.cuda.graph(): a capture on a stream of its own into a pool of its own.
  void capture(unsigned long number, size_t on) {
    if (!on) throw std::runtime_error("the default stream cannot capture");
    pools_[number] = {{++pool_count_, 0}, true, on};  // the second number is that of a pool which the user made
    set_stream(on);
    cudaStream_t handle = stream(on).stream();
    begin_pool(allocator_, pools_[number].id, [](cudaStream_t used) {
      cudaStreamCaptureStatus status;
      cudaStreamIsCapturing(used, &status);
      return status == cudaStreamCaptureStatusActive;
    }, handle, 0);
    cudaStreamBeginCapture(handle, cudaStreamCaptureModeGlobal);
    capture_begins(allocator_, 0);
  }

  void end_capture(unsigned long number) {
    cudaGraph_t graph;
    capture_ends(allocator_, 0);
    cudaStream_t handle = stream(pools_.at(number).stream).stream();
    if (cudaStreamEndCapture(handle, &graph)) throw std::runtime_error("the capture was lost");
    end_pool(allocator_, pools_[number].id, handle, 0);
    set_stream(0);
  }

  void drop(unsigned long number) {
    if (pools_.at(number).use_on_oom) set_use_on_oom(allocator_, pools_[number].id, false, 0);
    allocator_->releasePool(0, pools_.at(number).id);
    if (!pools_[number].is_graph) empty_pool(allocator_, pools_[number].id, 0);
    pools_.erase(number);
  }

  bool succeeds(size_t size, size_t on) {
    fflush(nullptr);
    pid_t child = fork();
    if (!child) {
      set_stream(on);
      try {
        allocator_->allocate(size).release_context();
      } catch (const c10::OutOfMemoryError&) {
        _exit(1);
      }
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) throw std::runtime_error("a probe crashed");
    return !WEXITSTATUS(status);
  }

  void find_largest(size_t on) {
    size_t low = 0, high = program_.total / 512 + 1;
    while (high - low > 1) {
      size_t middle = low + (high - low) / 2;
      (succeeds(middle * 512, on) ? low : high) = middle;
    }
    largest_.push_back(low * 512);
  }

  struct Call {
    size_t events;
    long retries, syncs;
  };
  void note_call() {
    auto stats = A::getDeviceStats(0);
    size_t events = 0;
    auto count = [&](const auto& stat) { events += stat[0].allocated + stat[0].freed; };
    count(stats.allocation);
    events += stats.active[0].freed;
    Call call{events, stats.num_alloc_retries, 0};
#if TORCH_MINOR >= 3
    call.syncs = stats.num_sync_all_streams;
    call.events += stats.num_device_alloc + stats.num_device_free;
#endif
    call.events += stats.num_ooms;
    calls_.push_back(call);
  }

  const Program& program_;
  A::CUDAAllocator* allocator_;
  std::vector<c10::cuda::CUDAStream> streams_;
  std::unordered_map<unsigned long, at::DataPtr> live_;
  std::unordered_map<unsigned long, std::pair<uint64_t, uint64_t>> points_;
  std::map<unsigned long, Pool> pools_;
  std::vector<size_t> largest_;
  std::vector<bool> tried_;
  std::vector<Call> calls_;
  unsigned long long pool_count_ = 0;
  size_t current_ = 0;
  long ooms_ = 0;
};

const char* action_name(int action) {
  static const char* names[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
                                "segment_map", "segment_unmap", "snapshot", "oom"};
  return action >= 0 && action < 9 ? names[action] : "annotate";
}

void Run::write(const std::string& path) {
  auto snapshot = A::snapshot();
  auto stats = A::getDeviceStats(0);
  size_t free, total;
  fake_memory(0, &free, &total);
  const char* conf = getenv("PYTORCH_CUDA_ALLOC_CONF");
  if (!conf) conf = "";
  std::ofstream out(path);
  out << "{\"workload\": " << quoted(program_.name) << ", \"torch\": \"" TORCH_RELEASE "\", \"conf\": " << quoted(conf)
      << ", \"settings\": {\"PYTORCH_CUDA_ALLOC_CONF\": " << quoted(conf);
#if TORCH_MINOR >= 3
  auto& settings = snapshot.config_metadata;
  out << ", \"max_split_size\": " << (long)settings.max_split_size
      << ", \"garbage_collection_threshold\": " << settings.garbage_collection_threshold
      << ", \"expandable_segments\": " << (settings.expandable_segments ? "true" : "false") << ", \"roundup_power2_divisions\": {";
  size_t power = 1;
  for (size_t divisions : settings.roundup_power2_divisions) {
    out << (power > 1 ? ", \"" : "\"") << power << "\": " << divisions;
    power *= 2;
  }
  out << "}";
#endif
  out << "}, \"cap_bytes\": " << program_.limit << ", \"driver_total\": " << total << ", \"driver_free_before\": "
      << program_.free - program_.other << ", \"driver_free\": " << free << ", \"ooms\": " << ooms_ << ", \"largest_request_that_succeeds\": "
      << (largest_.empty() ? std::string("null") : std::to_string(largest_.back()))
      << ", \"largest\": [";
  for (size_t i = 0; i < largest_.size(); i++) out << (i ? ", " : "") << largest_[i];
  out << "], \"tried\": [";
  for (size_t i = 0; i < tried_.size(); i++) out << (i ? ", " : "") << (tried_[i] ? "true" : "false");
  out << "], \"calls\": [";
  for (size_t i = 0; i < calls_.size(); i++)
    out << (i ? ", [" : "[") << calls_[i].events << ", " << calls_[i].retries << ", " << calls_[i].syncs << "]";
  out << "],\n\"stats\": {\"num_alloc_retries\": " << stats.num_alloc_retries << ", \"num_ooms\": " << stats.num_ooms;
#if TORCH_MINOR >= 3
  out << ", \"num_sync_all_streams\": " << stats.num_sync_all_streams << ", \"num_device_alloc\": " << stats.num_device_alloc
      << ", \"num_device_free\": " << stats.num_device_free;
#endif
  out << ", \"reserved_bytes.all.peak\": " << stats.reserved_bytes[0].peak << ", \"active_bytes.all.peak\": " << stats.active_bytes[0].peak
      << ", \"allocated_bytes.all.peak\": " << stats.allocated_bytes[0].peak << ", \"reserved_bytes.all.current\": " << stats.reserved_bytes[0].current
      << ", \"active_bytes.all.current\": " << stats.active_bytes[0].current << ", \"allocated_bytes.all.current\": " << stats.allocated_bytes[0].current
      << ", \"requested_bytes.all.current\": " << stats.requested_bytes[0].current << ", \"inactive_split_bytes.all.current\": "
      << stats.inactive_split_bytes[0].current << "},\n";
  bool pooled = false, first = true;
  std::ostringstream events;
  if (!snapshot.device_traces.empty())
    for (auto& entry : snapshot.device_traces[0]) {
      std::string action = action_name((int)entry.action_);
      if (action == "snapshot") continue;
      pooled = has_pool(entry, 0);
      Id pool = pool_of(entry, 0);
      events << (first ? "\n[\"" : ",\n[\"") << action << "\", " << (unsigned long long)entry.addr_ << ", " << entry.size_ << ", "
             << (unsigned long long)entry.stream_;
      if (pooled) events << ", [" << pool.first << ", " << pool.second << "]";
      events << "]";
      first = false;
    }
  out << "\"events_columns\": [\"action\", \"addr\", \"size\", \"stream\"" << (pooled ? ", \"pool_id\"" : "") << "], \"events\": ["
      << events.str() << "],\n\"segments\": [";
  first = true;
  for (auto& segment : snapshot.segments) {
    out << (first ? "\n" : ",\n") << "{\"device\": " << (int)segment.device << ", \"address\": " << (unsigned long long)segment.address
        << ", \"total_size\": " << segment.total_size << ", \"allocated_size\": " << segment.allocated_size << ", \"active_size\": "
        << segment.active_size << ", \"requested_size\": " << segment.requested_size << ", \"stream\": " << (unsigned long long)segment.stream
        << ", \"segment_type\": \"" << (segment.is_large ? "large" : "small") << "\", \"segment_pool_id\": ["
        << segment.owner_private_pool_id.first << ", " << segment.owner_private_pool_id.second << "], \"is_expandable\": "
        << (segment.is_expandable ? "true" : "false") << ", \"blocks\": [";
    first = false;
    unsigned long long address = (unsigned long long)segment.address;
    const char* comma = "";
    for (auto& block : segment.blocks) {
      const char* state = block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive";
      out << comma << "{\"address\": " << address << ", \"size\": " << block.size << ", \"requested_size\": " << block.requested_size
          << ", \"state\": \"" << state << "\"}";
      address += block.size;
      comma = ", ";
    }
    out << "]}";
  }
  out << "]}\n";
}

bool run_in_child(const Program& program, const std::string& folder) {
  fflush(nullptr);
  pid_t child = fork();
  if (!child) {
    try {
      Run run(program);
      run.all();
      run.write(folder + "/" + program.name + ".json");
    } catch (const std::exception& error) {
      fprintf(stderr, "%s: %.300s\n", program.name.c_str(), error.what());
      _exit(3);
    }
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) fprintf(stderr, "%s: signal %d\n", program.name.c_str(), WTERMSIG(status));
  return !status;
}

Program read_header(std::istringstream& words) {
  Program program;
  words >> program.name;
  for (std::string word; words >> word;) {
    size_t mark = word.find('=');
    size_t value = std::stoull(word.substr(mark + 1));
    std::string key = word.substr(0, mark);
    if (key == "total") program.total = value;
    else if (key == "free") program.free = value;
    else if (key == "limit") program.limit = value;
    else if (key == "other") program.other = value;
    else if (key == "history") program.history = value;
    else throw std::runtime_error("unknown key: " + key);
  }
  if (!program.free) program.free = program.total - (527ull << 20);
  return program;
}
}  // namespace

int main(int count, char** arguments) {
  std::string folder = count > 1 ? arguments[1] : ".", line;
  Program program;
  long failed = 0;
  auto finish = [&] { failed += !program.name.empty() && !run_in_child(program, folder); };
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string action;
    if (!(words >> action) || action[0] == '#') continue;
    if (action == "program") {
      finish();
      program = read_header(words);
    } else {
      program.lines.push_back(line);
    }
  }
  finish();
  return failed ? 1 : 0;
}
