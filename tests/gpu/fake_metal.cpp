/* libobjc and Metal for the tests, on a machine without either: the functions and messages that
 * lumc uses, executing kernels on the emulator. It is strict: what Metal leaves undefined ends the
 * process with a message.
 *
 * A selector points at its implementation, so objc_msgSend is one jump and every argument lies
 * where the caller's prototype put it. Environment: LUMC_FAKE_METAL_BUILD is the command that
 * compiles a text (its arguments: the file, the folder to build in; it prints the library),
 * LUMC_FAKE_METAL_FAMILY the family of the GPU (9; 0: no GPU).
 */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

#if defined(__x86_64__)
__asm__(".globl objc_msgSend\n.type objc_msgSend,@function\nobjc_msgSend:\n  jmp *(%rsi)\n");
#elif defined(__aarch64__)
__asm__(".globl objc_msgSend\n.type objc_msgSend,@function\n"
        "objc_msgSend:\n  ldr x16, [x1]\n  br x16\n");
#endif

namespace {
[[noreturn]] void die(const std::string &what) {
  std::fprintf(stderr, "fake Metal: %s\n", what.c_str());
  std::abort();
}
void require(bool good, const char *what) {
  if (!good) die(what);
}
double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

// ---- objects: those that a "new" method gave are released by the caller, the others by a pool

struct Object {
  virtual ~Object() = default;
};
int live; // objects that nobody has released yet
std::vector<std::vector<std::unique_ptr<Object>>> pools;

template <class T> T *owned(T *object) {
  ++live;
  return object;
}
template <class T> T *pooled(T *object) {
  require(!pools.empty(), "an object without an autorelease pool leaks");
  pools.back().emplace_back(object);
  return object;
}

struct Selector {
  void *method; // first: objc_msgSend jumps there
  std::string name;
};
struct Size {
  uint64_t width, height, depth;
};
struct String : Object {
  std::string text;
  explicit String(std::string t) : text(std::move(t)) {}
};
struct Error : Object {
  std::string text;
  explicit Error(std::string t) : text(std::move(t)) {}
};
struct Class : Object {
  std::string name;
};
struct Device : Object {};
struct Queue : Object {};
struct Options : Object {
  bool fast = true;
  uint64_t version = 0;
};
struct Library : Object {
  void *handle;
};
struct Function : Object {
  std::string name;
  void *handle;
};
struct Range { // as runtime.h of the emulator
  const char *name;
  char *begin;
  size_t bytes, element;
};
typedef const char *Run(const char *, unsigned, unsigned, size_t, void *const *, unsigned,
                        const Range *, int, unsigned);
struct Pipeline : Object {
  std::string name;
  Run *run;
  unsigned buffers;
  uint32_t threads, shared;
};
struct Buffer : Object {
  char *data;
  uint64_t bytes;
  bool mine;
  ~Buffer() override {
    if (mine) std::free(data);
  }
};
struct Bound {
  Buffer *buffer;
  uint64_t offset;
};
struct Dispatch {
  Pipeline *pipeline;
  std::map<uint64_t, Bound> bound;
  Size groups, threads;
};
struct Commands : Object {
  std::vector<Dispatch> dispatches;
  bool encoding = false, committed = false, waited = false;
  std::string fault;
  double started = 0, ended = 0;
};
struct Encoder : Object {
  Commands *commands;
  Dispatch next{};
  bool ended = false;
};

template <class T> T *as(Object *o, const char *what) {
  auto *out = dynamic_cast<T *>(o);
  require(out != nullptr, what);
  return out;
}
uint64_t family() {
  const char *text = std::getenv("LUMC_FAKE_METAL_FAMILY");
  return text ? uint64_t(std::atoi(text)) : 9;
}

// ---- methods

Object *string(Object *c, Selector *, const char *text) {
  require(as<Class>(c, "a message to no class")->name == "NSString", "stringWithUTF8String:");
  return pooled(new String(text));
}
const char *utf8(Object *s, Selector *) { return as<String>(s, "UTF8String")->text.c_str(); }
Object *description(Object *e, Selector *) {
  return pooled(new String(as<Error>(e, "localizedDescription")->text));
}
Object *make(Object *c, Selector *) {
  require(as<Class>(c, "a message to no class")->name == "MTLCompileOptions", "new");
  return owned(new Options);
}
void release(Object *o, Selector *) {
  require(o != nullptr, "release of nil");
  --live;
  delete o;
}
Object *name(Object *, Selector *) { return pooled(new String("lumc emulator")); }
bool supports(Object *, Selector *, long wanted) {
  return wanted > 1000 && uint64_t(wanted) <= 1000 + family();
}
uint64_t working_set(Object *, Selector *) { return uint64_t(8) << 30; }
uint64_t longest(Object *, Selector *) { return uint64_t(4) << 30; }
bool unified(Object *, Selector *) { return true; }
Object *queue(Object *, Selector *) { return owned(new Queue); }
void set_fast(Object *o, Selector *, bool fast) { as<Options>(o, "options")->fast = fast; }
void set_version(Object *o, Selector *, uint64_t v) { as<Options>(o, "options")->version = v; }

std::string read(FILE *f) {
  std::string out;
  char part[4096];
  for (size_t n; (n = std::fread(part, 1, sizeof part, f)) > 0;) out.append(part, n);
  return out;
}
std::string replaced(std::string text, const std::string &from, const std::string &to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}
Object *library(Object *, Selector *, Object *source, Object *o, Object **error) {
  auto *options = as<Options>(o, "compile options");
  require(!options->fast, "fast math is on: NaN and infinities are undefined");
  const std::string &text = as<String>(source, "source")->text;
  const uint64_t least = text.find("bfloat") == std::string::npos ? 3 << 16 : 3 << 16 | 1;
  require(options->version >= least, "the text needs a newer version of the language");
  const char *command = std::getenv("LUMC_FAKE_METAL_BUILD");
  require(command != nullptr, "LUMC_FAKE_METAL_BUILD is not set");
  char folder[] = "/tmp/lumc-fake-metal-XXXXXX";
  require(mkdtemp(folder) != nullptr, "no temporary folder");
  const std::string file = std::string(folder) + "/kernels.metal";
  FILE *f = std::fopen(file.c_str(), "w");
  require(f && std::fputs(text.c_str(), f) >= 0 && !std::fclose(f), "cannot write the text");
  FILE *pipe = popen((std::string(command) + " " + file + " " + folder).c_str(), "r");
  require(pipe != nullptr, "cannot start LUMC_FAKE_METAL_BUILD");
  std::string said = read(pipe);
  const bool good = !pclose(pipe);
  void *handle = good ? dlopen(said.substr(0, said.find('\n')).c_str(), RTLD_NOW) : nullptr;
  const std::string cleanup = std::string("rm -r ") + folder;
  require(!std::system(cleanup.c_str()), "cannot remove the temporary folder");
  if (!handle) {
    if (error) *error = pooled(new Error(replaced(said, "kernels.metal:", "program_source:")));
    return nullptr;
  }
  auto *out = owned(new Library);
  out->handle = handle;
  return out;
}
Object *function(Object *l, Selector *, Object *n) {
  auto *from = as<Library>(l, "library");
  const std::string &wanted = as<String>(n, "name")->text;
  if (!dlsym(from->handle, ("lumc_msl_threads_" + wanted).c_str())) return nullptr;
  auto *out = owned(new Function);
  out->name = wanted;
  out->handle = from->handle;
  return out;
}
Object *pipeline(Object *, Selector *, Object *f, Object **) {
  auto *from = as<Function>(f, "function");
  auto *out = owned(new Pipeline);
  auto count = (int (*)(const char *))dlsym(from->handle, "lumc_emu_parameters");
  out->name = from->name;
  out->run = (Run *)dlsym(from->handle, "lumc_emu_run");
  out->buffers = unsigned(count(from->name.c_str()));
  out->threads = *(uint32_t *)dlsym(from->handle, ("lumc_msl_threads_" + from->name).c_str());
  out->shared = *(uint32_t *)dlsym(from->handle, ("lumc_msl_shared_" + from->name).c_str());
  return out;
}
uint64_t most_threads(Object *p, Selector *) { return as<Pipeline>(p, "pipeline")->threads; }
uint64_t width(Object *, Selector *) { return 32; }
uint64_t threadgroup(Object *p, Selector *) { return as<Pipeline>(p, "pipeline")->shared; }

Object *allocate(Object *, Selector *, uint64_t bytes, uint64_t options) {
  require(bytes > 0 && bytes <= longest(nullptr, nullptr), "a buffer of this size");
  require(options == 0, "a buffer that is not shared");
  auto *out = owned(new Buffer);
  out->data = (char *)std::aligned_alloc(16384, (bytes + 16383) / 16384 * 16384);
  std::memset(out->data, 0xff, bytes);
  out->bytes = bytes;
  out->mine = true;
  return out;
}
Object *wrap(Object *, Selector *, void *data, uint64_t bytes, uint64_t options, Object *done) {
  require(!((uintptr_t)data % uintptr_t(sysconf(_SC_PAGESIZE))) && bytes && !(bytes % 16384),
          "memory without whole pages");
  require(options == 0 && !done, "a buffer that is not shared");
  auto *out = owned(new Buffer);
  out->data = (char *)data;
  out->bytes = bytes;
  out->mine = false;
  return out;
}
void *contents(Object *b, Selector *) { return as<Buffer>(b, "buffer")->data; }
uint64_t length(Object *b, Selector *) { return as<Buffer>(b, "buffer")->bytes; }

Object *commands(Object *q, Selector *) {
  as<Queue>(q, "queue");
  return pooled(new Commands);
}
Object *encoder(Object *c, Selector *) {
  auto *to = as<Commands>(c, "command buffer");
  require(!to->encoding && !to->committed, "an encoder while another one is open");
  to->encoding = true;
  auto *out = pooled(new Encoder);
  out->commands = to;
  return out;
}
Encoder *open(Object *e) {
  auto *out = as<Encoder>(e, "encoder");
  require(!out->ended, "an encoder that has ended");
  return out;
}
void set_pipeline(Object *e, Selector *, Object *p) {
  open(e)->next.pipeline = as<Pipeline>(p, "pipeline");
}
void set_buffer(Object *e, Selector *, Object *b, uint64_t offset, uint64_t index) {
  auto *buffer = as<Buffer>(b, "buffer");
  require(index < 31, "a buffer index above 30");
  require(offset % 4 == 0 && offset < buffer->bytes, "an offset outside of the buffer");
  open(e)->next.bound[index] = {buffer, offset};
}
void set_bytes(Object *e, Selector *, const void *data, uint64_t length, uint64_t index) {
  require(index < 31, "a buffer index above 30");
  require(data && length && length <= 4096, "bytes that fit into a command");
  auto *copy = pooled(new Buffer);
  copy->bytes = length;
  copy->data = (char *)std::malloc(length);
  copy->mine = true;
  std::memcpy(copy->data, data, length);
  open(e)->next.bound[index] = {copy, 0};
}
void dispatch(Object *e, Selector *, Size groups, Size threads) {
  auto *to = open(e);
  require(to->next.pipeline != nullptr, "a dispatch without a pipeline");
  require(groups.width && groups.height == 1 && groups.depth == 1, "a grid of one dimension");
  require(threads.width && threads.height == 1 && threads.depth == 1, "threads of one dimension");
  require(threads.width <= to->next.pipeline->threads, "more threads than the pipeline takes");
  for (unsigned i = 0; i < to->next.pipeline->buffers; ++i)
    require(to->next.bound.count(i) != 0, "a buffer that is not set");
  to->next.groups = groups;
  to->next.threads = threads;
  to->commands->dispatches.push_back(to->next);
}
void end(Object *e, Selector *) {
  open(e)->ended = true;
  as<Encoder>(e, "encoder")->commands->encoding = false;
}
std::string execute(const Dispatch &d) {
  std::vector<void *> arguments;
  std::vector<Range> ranges;
  for (unsigned i = 0; i < d.pipeline->buffers; ++i) {
    const Bound &b = d.bound.at(i);
    arguments.push_back(b.buffer->data + b.offset);
    ranges.push_back({"buffer", b.buffer->data, size_t(b.buffer->bytes), 1});
  }
  const Pipeline &p = *d.pipeline;
  return p.run(p.name.c_str(), unsigned(d.groups.width), unsigned(d.threads.width), p.shared,
               arguments.data(), unsigned(ranges.size()), ranges.data(), 0, 0);
}
void commit(Object *c, Selector *) {
  auto *what = as<Commands>(c, "command buffer");
  require(!what->encoding && !what->committed, "commit needs an encoder that has ended, once");
  what->committed = true;
  what->started = now();
  for (const Dispatch &d : what->dispatches)
    if (what->fault.empty()) what->fault = execute(d);
  what->ended = now();
}
void wait(Object *c, Selector *) {
  auto *what = as<Commands>(c, "command buffer");
  require(what->committed, "waiting for what was not committed");
  what->waited = true;
}
Commands *done(Object *c) {
  auto *what = as<Commands>(c, "command buffer");
  require(what->waited, "a question before waitUntilCompleted");
  return what;
}
uint64_t status(Object *c, Selector *) { return done(c)->fault.empty() ? 4 : 5; }
Object *error(Object *c, Selector *) {
  return done(c)->fault.empty() ? nullptr : pooled(new Error(done(c)->fault));
}
double started(Object *c, Selector *) { return done(c)->started; }
double ended(Object *c, Selector *) { return done(c)->ended; }

const std::map<std::string, void *> methods = {
    {"stringWithUTF8String:", (void *)string},
    {"UTF8String", (void *)utf8},
    {"localizedDescription", (void *)description},
    {"new", (void *)make},
    {"release", (void *)release},
    {"name", (void *)name},
    {"supportsFamily:", (void *)supports},
    {"recommendedMaxWorkingSetSize", (void *)working_set},
    {"maxBufferLength", (void *)longest},
    {"hasUnifiedMemory", (void *)unified},
    {"newCommandQueue", (void *)queue},
    {"setFastMathEnabled:", (void *)set_fast},
    {"setLanguageVersion:", (void *)set_version},
    {"newLibraryWithSource:options:error:", (void *)library},
    {"newFunctionWithName:", (void *)function},
    {"newComputePipelineStateWithFunction:error:", (void *)pipeline},
    {"maxTotalThreadsPerThreadgroup", (void *)most_threads},
    {"threadExecutionWidth", (void *)width},
    {"staticThreadgroupMemoryLength", (void *)threadgroup},
    {"newBufferWithLength:options:", (void *)allocate},
    {"newBufferWithBytesNoCopy:length:options:deallocator:", (void *)wrap},
    {"contents", (void *)contents},
    {"length", (void *)length},
    {"commandBuffer", (void *)commands},
    {"computeCommandEncoder", (void *)encoder},
    {"setComputePipelineState:", (void *)set_pipeline},
    {"setBuffer:offset:atIndex:", (void *)set_buffer},
    {"setBytes:length:atIndex:", (void *)set_bytes},
    {"dispatchThreadgroups:threadsPerThreadgroup:", (void *)dispatch},
    {"endEncoding", (void *)end},
    {"commit", (void *)commit},
    {"waitUntilCompleted", (void *)wait},
    {"status", (void *)status},
    {"error", (void *)error},
    {"GPUStartTime", (void *)started},
    {"GPUEndTime", (void *)ended},
};
void unknown(Object *, Selector *s) { die("no method " + s->name); }
} // namespace

// ---- the C functions

API Selector *sel_registerName(const char *name) {
  static std::map<std::string, Selector> known;
  auto found = methods.find(name);
  void *method = found == methods.end() ? (void *)unknown : found->second;
  return &known.emplace(name, Selector{method, name}).first->second;
}
API Object *objc_getClass(const char *name) {
  static std::map<std::string, Class> known;
  Class &c = known[name];
  c.name = name;
  return &c;
}
API void *objc_autoreleasePoolPush() {
  pools.emplace_back();
  return (void *)pools.size();
}
API void objc_autoreleasePoolPop(void *pool) {
  require((size_t)pool == pools.size(), "pools are not popped in order");
  pools.pop_back();
}
API Object *MTLCreateSystemDefaultDevice() {
  static Device device;
  return family() ? &device : nullptr;
}
/* for the tests: what the program still has */
API int lumc_fake_metal_live() { return live + int(pools.size()); }
