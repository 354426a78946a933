// A library with NVML's functions and structures, as nvml.h declares them, of a machine with three GPUs: the first two
// have two links to each other, and the first also has one to a switch; the third has no NVLink.
#include <stdint.h>
#include <string.h>

typedef struct {
  char busIdLegacy[16];
  unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
} nvmlPciInfo_t;

typedef struct {
  unsigned int fieldId, scopeId;
  long long timestamp, latencyUsec;
  int valueType, nvmlReturn;
  union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; } value;
} nvmlFieldValue_t;

int nvmlInit_v2(void) { return START; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) {
  if (strcmp(id, "0000:06:00.0") == 0) *device = (void *)1;
  else if (strcmp(id, "0000:07:00.0") == 0) *device = (void *)2;
  else if (strcmp(id, "0000:08:00.0") == 0) *device = (void *)3;
  else return 6;
  return 0;
}

int nvmlDeviceGetFieldValues(void *device, int count, nvmlFieldValue_t *values) {
  if (count != 1 || values->fieldId != 164) return 2;
  values->nvmlReturn = values->scopeId < 3 ? 0 : 3;
  values->value.ull = 0xffffffff00000000ull;
  values->value.ui = 26562;
  return 0;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned int link, int *active) {
  if (device == (void *)3) return 3;
  if (link >= 6) return 2;
  *active = link < 3 && !(device == (void *)2 && link == 1);
  return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned int link, unsigned int *type) {
  *type = device == (void *)1 && link == 1 ? 2 : 0;
  return 0;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned int link, nvmlPciInfo_t *pci) {
  if (device == (void *)1 && link == 1) return 3;
  memset(pci, 0xaa, sizeof *pci);
  pci->domain = 0;
  pci->bus = device == (void *)1 ? 7 : 6;
  pci->device = 0;
  strcpy(pci->busId, device == (void *)1 ? "00000000:07:00.0" : "00000000:06:00.0");
  return 0;
}
