/* As much of libnvidia-ml.so.1 as Trainshed asks of it: two GPUs, of which the second does not say how busy it is.
   As the real one it takes its time when it is first asked. */
#include <string.h>
#include <unistd.h>

typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;

static int gpus[2];

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    if (strcmp(uuid, "GPU-a") == 0) *handle = &gpus[0];
    else if (strcmp(uuid, "MIG-b") == 0) *handle = &gpus[1];
    else return 6; /* not found */
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, utilization *rates)
{
    static int asked;

    if (!asked++) usleep(30000);
    if (handle != &gpus[0]) return 3; /* not supported */
    rates->gpu = 75;
    rates->memory = 10;
    return 0;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *degrees)
{
    if (handle != &gpus[0] || sensor) return 3;
    *degrees = 61;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, memory *info)
{
    info->total = 16ULL << 30;
    info->used = handle == &gpus[0] ? 5ULL << 30 : 1ULL << 30;
    info->free = info->total - info->used;
    return 0;
}
