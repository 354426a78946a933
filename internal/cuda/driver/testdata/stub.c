// A libcuda of version VERSION without the function MISSING. The other functions
// return CUDA_SUCCESS and do nothing.
#include <string.h>

static int ok(void) { return 0; }

int cuDriverGetVersion(int *v) {
  *v = VERSION;
  return 0;
}

int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, int *status) {
  if (version > VERSION || strcmp(name, MISSING) == 0) return 500;
  *p = strcmp(name, "cuDriverGetVersion") == 0 ? (void *)cuDriverGetVersion : (void *)ok;
  return 0;
}
