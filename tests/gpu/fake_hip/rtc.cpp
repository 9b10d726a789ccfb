/* A libhiprtc.so: compiles by the command LUMC_FAKE_HIPRTC, which takes the words of clang. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#define API(name, ...) extern "C" __attribute__((visibility("default"))) int name(__VA_ARGS__)

namespace {
enum { SUCCESS, OUT_OF_MEMORY, INVALID_INPUT = 3, COMPILATION = 6 };
struct Program {
    std::string folder, log, code;
};
std::string read(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
void write(const std::string &path, const char *text) { std::ofstream(path) << text; }
} /* namespace */

API(hiprtcCreateProgram, Program **out, const char *text, const char *name, int n,
    const char *const *headers, const char *const *names)
{
    char folder[] = "/tmp/lumc-fake-hiprtc-XXXXXX";
    if (!text || !mkdtemp(folder) || strcmp(name, "kernels.hip"))
        return INVALID_INPUT;
    *out = new Program{folder, "", ""};
    write((*out)->folder + "/kernels.hip", text);
    for (int i = 0; i < n; i++)
        write((*out)->folder + "/" + names[i], headers[i]);
    return SUCCESS;
}
API(hiprtcCompileProgram, Program *p, int n, const char *const *options)
{
    const char *compiler = getenv("LUMC_FAKE_HIPRTC");
    std::string command = "cd " + p->folder + " && " + (compiler ? compiler : "false");
    for (int i = 0; i < n; i++)
        command += std::string(" '") + options[i] + "'";
    const bool failed = system((command + " kernels.hip -o image 2> log").c_str());
    p->code = failed ? "" : read(p->folder + "/image");
    p->log = read(p->folder + "/log") + '\0';
    return failed ? COMPILATION : SUCCESS;
}
API(hiprtcGetProgramLogSize, Program *p, size_t *size) { return *size = p->log.size(), SUCCESS; }
API(hiprtcGetProgramLog, Program *p, char *to) { return p->log.copy(to, p->log.size()), SUCCESS; }
API(hiprtcGetCodeSize, Program *p, size_t *size) { return *size = p->code.size(), SUCCESS; }
API(hiprtcGetCode, Program *p, char *to) { return p->code.copy(to, p->code.size()), SUCCESS; }
API(hiprtcDestroyProgram, Program **p)
{
    const std::string remove = "rm -r " + (*p)->folder;
    delete *p;
    *p = nullptr;
    return system(remove.c_str()) ? INVALID_INPUT : SUCCESS;
}
extern "C" __attribute__((visibility("default"))) const char *hiprtcGetErrorString(int code)
{
    return code == COMPILATION ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR";
}
