/* A CUDA driver and an NCCL in one library, without a GPU and without a network, for tests of scripts/matrix.py.
 *
 * Device memory is ordinary memory, a stream is always idle, and ranks meet in a file in shared memory. The log, and what the software
 * device would say, are what a good run leaves; FAKE names what goes wrong.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 8, SLOT = 80 << 20, FLOAT_BYTES = 4, NOT_READY = 600, REMOTE_ERROR = 6, OPERATIONS = 64 };
struct room { atomic_int arrived, round, pid[RANKS]; struct { long used; char data[SLOT]; } slot[RANKS]; };
struct comm { struct room *room; const char *net; int rank, world, is_broken, calls; };
struct receive { char *into; size_t bytes; int peer; };
typedef struct { char bytes[128]; } unique_id;

static struct comm *current;
static struct receive receives[OPERATIONS];
static int receive_count, depth, registered_mib;
static float passed_ms;

/* FAKE is a list with commas. */
static int is_faked(const char *name)
{
    char list[256], all[256];
    snprintf(list, sizeof list, ",%s,", getenv("FAKE") ? getenv("FAKE") : "");
    snprintf(all, sizeof all, ",%s,", name);
    return strstr(list, all) != NULL;
}
static int is_set(const char *name, const char *value) { const char *set = getenv(name); return set && !strcmp(set, value); }

/* The driver. */
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = is_faked("no-gpu") ? 0 : is_faked("four-gpus") ? 4 : 1; return 0; }
int cuDeviceGetPCIBusId(char *text, int length, int device) { snprintf(text, length, "0000:%02X:00.0", device + 1); return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int length, int device) { (void)device; snprintf(name, length, "fake GPU"); return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = &depth; return 0; }
int cuCtxSetCurrent(void *context) { return context != &depth; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = &depth; return 0; }
int cuStreamQuery(void *stream) { (void)stream; return current && current->is_broken ? NOT_READY : 0; }
int cuGetErrorName(int code, const char **name) { (void)code; *name = "CUDA_ERROR"; return 0; }
int cuMemAlloc_v2(uint64_t *at, size_t bytes) { *at = (uint64_t)malloc(bytes); return !*at; }
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { (void)flags; *at = malloc(bytes); return !*at; }
int cuMemsetD8Async(uint64_t at, unsigned char byte, size_t bytes, void *s) { (void)s; memset((void *)at, byte, bytes); return 0; }
static int copy(uint64_t to, uint64_t from, size_t bytes) { memmove((void *)to, (void *)from, bytes); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *s) { (void)s; return copy(to, from, bytes); }
int cuMemcpyDtoHAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *s) { (void)s; return copy(to, from, bytes); }
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *s) { (void)s; return copy(to, from, bytes); }

/* An event is the time so far: an operation takes 20 ms, over Ferrite times FAKE_B. */
int cuEventCreate(void **event, unsigned flags) { (void)flags; *event = calloc(1, sizeof(float)); return !*event; }
int cuEventRecord(float *event, void *stream) { (void)stream; *event = passed_ms; return 0; }
int cuEventElapsedTime(float *ms, const float *begin, const float *end) { *ms = *end - *begin; return 0; }
static void pass_time(struct comm *comm)
{
    const char *slower = getenv("FAKE_B");
    current = comm;
    comm->calls++;
    passed_ms += 20.0f * (slower && !strcmp(comm->net, "Ferrite") ? (float)atof(slower) : 1.0f);
}

/* What a good run leaves. */
static void tell_usage(void)
{
    const char *gpu = getenv("SOFTRNIC_GPU");
    int is_flushing = is_set("NCCL_NET_FORCE_FLUSH", "1"), is_mixed = is_faked("wrong-way");
    int by_address = gpu && (strcmp(gpu, "peermem") == 0) != is_mixed ? 6 : gpu && !strcmp(gpu, "both");
    int by_dmabuf = gpu && ((strcmp(gpu, "dmabuf") == 0) != is_mixed || !strcmp(gpu, "both")) ? 6 : 0;
    if (gpu)
        fprintf(stderr, "softrnic: at most %d queue pairs, 4 completion queues, 9 memory regions of %d bytes; GPU memory %d by address, "
                        "%d by dma-buf\n", 4 + (is_flushing && !is_faked("flush-queue")), registered_mib << 20, by_address, by_dmabuf);
    const char *trace = getenv("SOFTRNIC_TRACE");
    const char *faults = getenv("SOFTRNIC_FAULTS");
    int is_faulty = faults && strstr(faults, "drop");
    if (trace && (is_faulty || (is_flushing && !is_faked("no-flush")))) {
        FILE *file = fopen(trace, "a");
        const char *done[] = {"delay=1us", "drop", "qp-error", is_faked("no-port-down") ? "drop" : "port-down=200ms"};
        for (int i = is_faulty; i < (is_faulty ? 4 : 1); i++)
            fprintf(file, "softrnic0/1 > softrnic0/1 flow 0 message 1 transmission 1: %s\n", done[i]);
        fclose(file);
    }
}
static FILE *log_file(void) { return fopen(getenv("NCCL_DEBUG_FILE"), "a"); }
static void tell_network(const char *net)
{
    int has_way = getenv("SOFTRNIC_GPU") && !is_set("SOFTRNIC_GPU", "none"), is_gdr = has_way && is_set("NCCL_NET_GDR_LEVEL", "SYS");
    FILE *file = log_file();
    net = is_faked("fallback") ? "Socket" : net;
    fprintf(file, "h:1:1 [0] NCCL INFO NCCL version 2.99.1+cuda12.4\nh:1:1 [0] NCCL INFO Using network %s\n", net);
    if (!has_way && !is_faked("silent"))
        fprintf(file, "h:1:1 [0] NCCL WARN NET/Ferrite : no GPUDirect RDMA: messages take a detour\n");
    fprintf(file, "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/%s/0%s\n", net, is_gdr != is_faked("no-gdr") ? "/GDRDMA" : "");
    if (is_gdr && getenv("NCCL_TOPO_FILE") && !is_faked("no-pxn"))
        fprintf(file, "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 3[1] [send] via NET/%s/1(1)/GDRDMA/Shared\n", net);
    fclose(file);
    static int is_told;
    if (!is_told++)
        atexit(tell_usage);
}
static void tell_choice(const char *algo)
{
    FILE *file = log_file();
    fprintf(file, "h:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo %s proto %s channel{Lo..Hi}={0..1}\n", algo, getenv("NCCL_PROTO"));
    fclose(file);
}

/* Until all are here, or one of them is dead. */
static int meet(struct comm *comm)
{
    struct room *room = comm->room;
    int round = room->round;
    if (atomic_fetch_add(&room->arrived, 1) == comm->world - 1) {
        room->arrived = 0;
        room->round = round + 1;
        return 0;
    }
    while (room->round == round) {
        for (int rank = 0; rank < comm->world; rank++)
            if (kill(room->pid[rank], 0) && !comm->is_broken) {
                FILE *file = log_file();
                comm->is_broken = 1;
                if (is_faked("dropped"))
                    fprintf(file, "h:1:1 [0] NCCL WARN Ferrite: NCCL 2.26 and 2.27 do not report this error\n");
                if (!is_faked("mute"))
                    fprintf(file, "h:1:1 [0] NCCL WARN NET/Ferrite : no acknowledgement, peer softrnic0 port 1 of process %d on h\n",
                            room->pid[rank]);
                fclose(file);
            }
        if (comm->is_broken)
            return 0; /* as an operation that has begun: the error comes later */
        usleep(100);
    }
    return 0;
}

int ncclGetVersion(int *version) { *version = is_faked("endless-abort") ? 22501 : 29901; return 0; }
const char *ncclGetErrorString(int code) { (void)code; return "an error"; }
int ncclGetUniqueId(unique_id *id)
{
    static int count;
    memset(id, 0, sizeof *id);
    snprintf(id->bytes, sizeof id->bytes, "/fake-nccl-%d-%d", getpid(), count++);
    return 0;
}
static int join(struct comm **out, int world, unique_id id, int rank, const char *net)
{
    struct comm *comm = current = calloc(1, sizeof *comm);
    int fd = shm_open(id.bytes, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct room)) || world > RANKS)
        return 2;
    comm->room = mmap(NULL, sizeof(struct room), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    comm->net = strdup(net);
    comm->rank = rank;
    comm->world = world;
    comm->room->pid[rank] = getpid();
    for (int other = 0; other < world; other++)
        while (!comm->room->pid[other])
            usleep(100);
    meet(comm);
    shm_unlink(id.bytes);
    tell_network(net);
    *out = comm;
    return 0;
}
int ncclCommInitRank(struct comm **out, int world, unique_id id, int rank) { return join(out, world, id, rank, getenv("NCCL_NET")); }
/* NCCL_NET would come before the name, and both would be the same network. */
struct config { size_t size; unsigned magic, version; int blocking, cluster, least, most; const char *net; int share; };
int ncclCommInitRankConfig(struct comm **out, int world, unique_id id, int rank, const struct config *config)
{
    if (config->magic != 0xcafebeef || config->size != sizeof *config || config->version < 21700)
        return 4;
    return join(out, world, id, rank, getenv("NCCL_NET") ? getenv("NCCL_NET") : config->net);
}
int ncclCommDestroy(struct comm *comm) { munmap(comm->room, sizeof(struct room)); current = NULL; return 0; }
int ncclCommAbort(struct comm *comm)
{
    if (is_faked("endless-abort"))
        pause();
    return ncclCommDestroy(comm);
}

int ncclCommGetAsyncError(struct comm *comm, int *code) { *code = comm->is_broken && !is_faked("no-error") ? REMOTE_ERROR : 0; return 0; }
int ncclMemAlloc(void **at, size_t bytes) { *at = malloc(bytes); return !*at; }
int ncclMemFree(void *at) { free(at); return 0; }
int ncclCommRegister(struct comm *comm, void *at, size_t bytes, void **handle)
{
    if (is_faked("stuck"))
        pause();
    (void)comm, *handle = at, registered_mib += is_faked("unregistered") ? 0 : (bytes >> 20) + 1;
    return 0;
}
int ncclCommDeregister(struct comm *comm, void *handle) { (void)comm; return !handle; }

/* Shows everybody our data; then does `work` with what all show. */
static float *shown(struct comm *comm, int rank) { return (float *)comm->room->slot[rank].data; }
static int show(struct comm *comm, const void *given, size_t count)
{
    if (count * FLOAT_BYTES > SLOT)
        return 4;
    memcpy(shown(comm, comm->rank), given, count * FLOAT_BYTES);
    pass_time(comm);
    return meet(comm);
}
static int add(struct comm *comm, float *got, size_t from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        got[i] = 0;
        for (int rank = 0; rank < comm->world; rank++)
            got[i] += shown(comm, rank)[from + i];
    }
    if (is_faked("wrong") && comm->rank == 1 && count > 20000)
        got[20000] += 1;
    return meet(comm);
}
int ncclAllReduce(const void *given, float *got, size_t count, int type, int op, struct comm *comm, void *stream)
{
    (void)type, (void)op, (void)stream;
    tell_choice(is_faked("other-algo") ? "Tree" : getenv("NCCL_ALGO") ? getenv("NCCL_ALGO") : "Ring");
    if (comm->calls > 2 && !getenv("FAKE_B"))
        usleep(50000); /* long enough to die in */
    return show(comm, given, count) || add(comm, got, 0, count);
}
int ncclReduce(const void *given, float *got, size_t count, int type, int op, int root, struct comm *comm, void *stream)
{
    (void)type, (void)op, (void)stream;
    return show(comm, given, count) || (comm->rank == root ? add(comm, got, 0, count) : meet(comm));
}
int ncclBroadcast(const void *given, void *got, size_t count, int type, int root, struct comm *comm, void *stream)
{
    (void)type, (void)stream;
    if (show(comm, given, count))
        return 2;
    memcpy(got, shown(comm, root), count * FLOAT_BYTES);
    return meet(comm);
}
int ncclAllGather(const void *given, float *got, size_t count, int type, struct comm *comm, void *stream)
{
    (void)type, (void)stream;
    if (show(comm, given, count))
        return 2;
    for (int rank = 0; rank < comm->world; rank++)
        memcpy(got + rank * count, shown(comm, is_faked("misplaced") ? 0 : rank), count * FLOAT_BYTES);
    return meet(comm);
}
int ncclReduceScatter(const void *given, float *got, size_t count, int type, int op, struct comm *comm, void *stream)
{
    (void)type, (void)op, (void)stream;
    return show(comm, given, count * comm->world) || add(comm, got, comm->rank * count, count);
}

/* Sends lie in the sender's slot: peer, bytes, data. */
int ncclGroupStart(void) { receive_count = depth = 0; return 0; }
int ncclSend(const void *given, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    long head[2] = { peer, (long)(count * FLOAT_BYTES) };
    long *used = &comm->room->slot[comm->rank].used;
    (void)type, (void)stream;
    if (!depth++)
        *used = 0;
    current = comm;
    if (*used + (long)sizeof head + head[1] > SLOT)
        return 4;
    memcpy(comm->room->slot[comm->rank].data + *used, head, sizeof head);
    memcpy(comm->room->slot[comm->rank].data + *used + sizeof head, given, head[1]);
    *used += (long)sizeof head + head[1];
    return 0;
}
int ncclRecv(void *got, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    (void)type, (void)comm, (void)stream;
    receives[receive_count++] = (struct receive){ got, count * FLOAT_BYTES, peer };
    return 0;
}
int ncclGroupEnd(void)
{
    struct comm *comm = current;
    pass_time(comm);
    meet(comm);
    for (int i = 0; i < receive_count; i++) {
        const char *at = comm->room->slot[receives[i].peer].data;
        long head[2];
        for (;; at += sizeof head + head[1]) {
            memcpy(head, at, sizeof head);
            if (head[0] == comm->rank)
                break;
        }
        memcpy(receives[i].into, at + sizeof head, receives[i].bytes);
    }
    return meet(comm);
}
