// A library with NCCL's functions, as nccl.h declares them, that prints its arguments to a file
// instead of computing: TestArguments compares them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char internal[128]; } ncclUniqueId;

static int say(const char *text) {
  FILE *f = fopen(getenv("PWC_TEST_NCCL_LOG"), "a");
  if (!f) return 2;
  fprintf(f, "%s\n", text);
  fclose(f);
  return 0;
}

#define SAY(...) char text[256]; snprintf(text, sizeof text, __VA_ARGS__); return say(text)

int ncclGetVersion(int *version) { *version = VERSION; return 0; }
int ncclGetUniqueId(ncclUniqueId *id) { memset(id->internal, 7, 128); return 0; }

int ncclCommInitRankScalable(void **comm, int nranks, int myrank, int nId, ncclUniqueId *ids, void *config) {
  *comm = (void *)0x77;
  int sum = 0;
  for (int i = 0; i < 128; i++) sum += ids->internal[i];
  SAY("init %d %d %d %d %p", nranks, myrank, nId, sum, config);
}

int ncclCommGetAsyncError(void *comm, int *state) { *state = comm == (void *)0x77 ? 7 : 6; return 0; }
int ncclCommAbort(void *comm) { SAY("abort %p", comm); }
int ncclCommDestroy(void *comm) { return comm == (void *)0x77 ? 0 : 4; }

int ncclAllReduce(const void *src, void *dst, size_t n, int type, int op, void *comm, void *stream) {
  SAY("all_reduce %p %p %zu %d %d %p %p", src, dst, n, type, op, comm, stream);
}
int ncclReduceScatter(const void *src, void *dst, size_t n, int type, int op, void *comm, void *stream) {
  SAY("reduce_scatter %p %p %zu %d %d %p %p", src, dst, n, type, op, comm, stream);
}
int ncclAllGather(const void *src, void *dst, size_t n, int type, void *comm, void *stream) {
  SAY("all_gather %p %p %zu %d %p %p", src, dst, n, type, comm, stream);
}
int ncclBroadcast(const void *src, void *dst, size_t n, int type, int root, void *comm, void *stream) {
  SAY("broadcast %p %p %zu %d %d %p %p", src, dst, n, type, root, comm, stream);
}
