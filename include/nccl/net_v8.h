/*
 * The ncclNet v8 plugin interface, as NCCL 2.20 and later read it.
 *
 * Written for Ferrite from the binary interface's facts: slot order, argument
 * types, sizes and offsets on LP64. `tests/layouts` compares every size and
 * offset below with what the C compiler and Rust's bindings see.
 *
 * NCCL looks up the data symbol `ncclNetPlugin_v8` (type ncclNet_v8_t) and reads
 * it for the life of the process.
 */
#ifndef FERRITE_NCCL_NET_V8_H
#define FERRITE_NCCL_NET_V8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes that listen() may write into the handle NCCL carries to the peer. */
#define NCCL_NET_HANDLE_MAXSIZE 128

/* Kinds of memory: bits in ncclNetProperties_v8_t.ptrSupport, and the `type` of regMr. */
#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4

/* Requests that may be outstanding on a communicator, per grouped receive. */
#define NCCL_NET_MAX_REQUESTS 32

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,     /* the operating system or the hardware failed */
  ncclInternalError = 3,   /* a bug, here or in the caller */
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,    /* the user's mistake */
  ncclRemoteError = 6,     /* the peer or the network is gone */
  ncclInProgress = 7
} ncclResult_t;

typedef enum {
  NCCL_LOG_NONE = 0,
  NCCL_LOG_VERSION = 1,
  NCCL_LOG_WARN = 2,
  NCCL_LOG_INFO = 3,
  NCCL_LOG_ABORT = 4,
  NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Subsystem bits of a log line; NCCL shows INIT and ENV by default. */
#define NCCL_SUBSYS_INIT 1UL
#define NCCL_SUBSYS_NET 16UL
#define NCCL_SUBSYS_ENV 128UL

/* printf-like; callable from any thread. */
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                  int line, const char *fmt, ...);

typedef enum { NCCL_NET_DEVICE_HOST = 0, NCCL_NET_DEVICE_UNPACK = 1 } ncclNetDeviceType;

/* Version of a device-side network; 0 when the host drives it. */
#define NCCL_NET_DEVICE_INVALID_VERSION 0

typedef struct {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void *handle;
  size_t size;
  int needsProxyProgress;
} ncclNetDeviceHandle_v8_t;

typedef struct {
  char *name;           /* unique per device; used for logs and as a topology key */
  char *pciPath;        /* /sys path of the PCI function, or NULL */
  uint64_t guid;        /* identity of the card; equal for the ports of one card */
  int ptrSupport;       /* NCCL_PTR_* bits */
  int regIsGlobal;      /* 1: a registration is valid for every communicator of the device */
  int speed;            /* Mbit/s */
  int port;             /* with guid: identity of the port */
  float latency;        /* microseconds; 0: unknown */
  int maxComms;
  int maxRecvs;         /* largest n of irecv */
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
} ncclNetProperties_v8_t;

typedef struct {
  const char *name;
  ncclResult_t (*init)(ncclDebugLogger_t logger);
  ncclResult_t (*devices)(int *count);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v8_t *props);
  ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
  /* *sendComm == NULL with ncclSuccess: call again. */
  ncclResult_t (*connect)(int dev, void *handle, void **sendComm,
                          ncclNetDeviceHandle_v8_t **sendDevComm);
  ncclResult_t (*accept)(void *listenComm, void **recvComm, ncclNetDeviceHandle_v8_t **recvDevComm);
  ncclResult_t (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
  ncclResult_t (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                              void **mhandle);
  ncclResult_t (*deregMr)(void *comm, void *mhandle);
  /* *request == NULL with ncclSuccess: call again. */
  ncclResult_t (*isend)(void *sendComm, void *data, int size, int tag, void *mhandle,
                        void **request);
  ncclResult_t (*irecv)(void *recvComm, int n, void **data, int *sizes, int *tags, void **mhandles,
                        void **request);
  ncclResult_t (*iflush)(void *recvComm, int n, void **data, int *sizes, void **mhandles,
                         void **request);
  ncclResult_t (*test)(void *request, int *done, int *sizes);
  ncclResult_t (*closeSend)(void *sendComm);
  ncclResult_t (*closeRecv)(void *recvComm);
  ncclResult_t (*closeListen)(void *listenComm);
  ncclResult_t (*getDeviceMr)(void *comm, void *mhandle, void **dptr_mhandle);        /* may be NULL */
  ncclResult_t (*irecvConsumed)(void *recvComm, int n, void *request);                /* may be NULL */
} ncclNet_v8_t;

#endif
