/* CUDA's driver interface on the CPU, as far as `driver.py` uses it. The "module" is a word that says what the kernel
   does with a, b and out of 1000 floats each. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRIDE (3 * 4352 / 4) /* floats of a launch's tensors with their gaps */

static char module[64];
static int broken, launches;
static char *end; /* of the memory that was allocated last */

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = module; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuEventCreate(void **event, unsigned flags) { *event = module; return 0; }
int cuEventRecord(void *event, void *stream) { return broken; }
int cuEventElapsedTime(float *ms, void *start, void *end) { *ms = 0.5f; return 0; }
int cuGetErrorName(int code, const char **text) { *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "a CPU", size); return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuModuleLoadData(void **loaded, const char *image) {
  if (!strcmp(image, "other gpu")) return 209;
  if (!strcmp(image, "too large")) return 2;
  strncpy(module, image, sizeof module - 1);
  launches = 0;
  *loaded = module;
  return 0;
}
int cuModuleUnload(void *loaded) { return broken; }
int cuModuleGetFunction(void **function, void *loaded, const char *name) { *function = module; return strcmp(name, "add") ? 500 : 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return value > 1 << 20 ? 1 : 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
  char *memory = malloc(size);
  end = memory + size;
  *pointer = (uint64_t)(uintptr_t)memory;
  return memory ? 0 : 2;
}
int cuMemFree_v2(uint64_t pointer) { free((void *)(uintptr_t)pointer); return broken; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { memcpy((void *)(uintptr_t)to, from, size); return broken; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { memcpy(to, (void *)(uintptr_t)from, size); return broken; }
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) { return broken; } /* only memory that is never read */
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) { return cuMemsetD8_v2(to, value, size); }
int cuCtxSynchronize(void) { return broken; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  float *a = (float *)(uintptr_t)*(uint64_t *)arguments[0], *b = (float *)(uintptr_t)*(uint64_t *)arguments[1];
  float *out = (float *)(uintptr_t)*(uint64_t *)arguments[2];
  if (!strcmp(module, "faults")) broken = 700;
  if (!strcmp(module, "hangs")) pause();
  if (!strcmp(module, "crashes")) abort();
  if (!strcmp(module, "writes beside")) out[1000] = 0;
  int sets = 1;
  launches++;
  if (!strcmp(module, "works for later")) sets = launches == 1 ? 1 : launches == 2 ? 16 : 0; /* the first is a warm-up */
  for (; sets && (char *)(out + 1000) <= end; sets--, a += STRIDE, b += STRIDE, out += STRIDE)
    for (int i = 0; i < 1000; i++) out[i] = strcmp(module, "wrong") ? a[i] + b[i] : a[i] - b[i];
  return broken;
}
