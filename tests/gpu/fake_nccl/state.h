/* A libnccl.so.2 for machines without a GPU: processes with the fake libcuda exchange what is in its
 * memory, through memory that they share.
 *
 * It is as strict as NCCL may be, and more: buffers lie in the memory of the device and do not overlap
 * but where NCCL says how, ranks that exchange different things fail where NCCL hangs, work happens
 * when the stream comes to it, and a rank that is gone is waited for until the communicator is aborted.
 * What is reduced is added from the last rank on, and a maximum passes NaN over, as in NCCL.
 * LUMC_FAKE_NCCL_ERROR is the asynchronous error of a communicator whose work then never ends. */
#pragma once
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

enum { DONE = 0, NOT_READY = 600, LAUNCH_FAILED = 719 }; /* CUresult */
constexpr int MOST_RANKS = 16, PATIENCE_S = 60;
constexpr size_t CHUNK = 16 << 10;

/* the way from one rank to another: one chunk of a message at a time */
struct Slot {
    std::atomic<uint64_t> sent, taken;
    uint64_t what, total; /* of the message */
    char data[CHUNK];
};
struct Shared {
    std::atomic<int> ranks, joined;
    std::atomic<int> seen[MOST_RANKS];
    Slot slots[MOST_RANKS][MOST_RANKS];
};
struct Transfer {
    bool in;
    int peer;
    char *data;
    size_t total, done;
    uint64_t what;
    bool over;
};
enum Kind { POINT_TO_POINT, BROADCAST, ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER };
struct Point {
    bool in;
    char *data;
    size_t bytes;
    int peer;
};
struct Work { /* on a stream, done as often as its graph is launched */
    ncclComm *comm;
    Kind kind;
    std::vector<Point> points;
    const char *from;
    char *to;
    size_t count, bytes; /* of what a rank has */
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
};
struct Run { /* once */
    std::vector<Transfer> transfers;
    std::vector<std::vector<char>> parts; /* of each rank */
};

struct ncclComm {
    Shared *shared;
    int rank, ranks;
    ncclResult_t error;
    bool aborted, destroyed;
    std::vector<std::unique_ptr<Work>> works;
};

/* ---- work.cpp */
ncclResult_t say(ncclResult_t, const char *why); /* to the standard error, too */
int step(void *work, void **run); /* of the stream of the fake driver: as far as it goes; a CUresult */
