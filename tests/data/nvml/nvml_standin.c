/* A stand-in for NVIDIA's management library, so that the real nvidia-ml-py is tested without a GPU.
 *
 * It shows H100s that are busy, and does otherwise what the file named by NVML_STANDIN says. The file is read again
 * when it changes, also by a call that blocks. One rule a line, FUNCTION and DEVICE may be "*":
 *
 *   devices N                       how many there are (default 8)
 *   absent DEVICE                   this one is not listed, and those behind it move up
 *   process DEVICE PID BYTES        a compute process; BYTES -1 is "not available"
 *   graphics DEVICE PID BYTES       a graphics process
 *   error FUNCTION DEVICE CODE      the call fails with this nvmlReturn_t
 *   block FUNCTION DEVICE           the call does not return while this line stands
 *   value FUNCTION DEVICE A [B]     what the call gives instead of its usual answer
 *   crash FUNCTION DEVICE           the call ends the process by SIGSEGV
 *   event DEVICE TYPE DATA NUMBER   the driver tells of this once; numbers must go up
 *
 * A field value is asked for under the name "field:NUMBER", of one link "field:NUMBER:LINK". The threshold of slowing
 * down is "nvmlDeviceGetTemperatureThreshold", the memory's is its second value.
 *
 * Built with -DOLD_DRIVER it lacks the symbols that came after driver 450.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_DEVICES 64
#define MOST_RULES 128
#define ANY (-1)
#define RELOAD_NS 20000000LL

typedef int Return;
typedef struct { int number; } *Device;
typedef struct { char verb[16], function[64]; int device, fields; long long a, b, number; } Rule;

static struct { int number; } devices[MOST_DEVICES];
static Rule rules[MOST_RULES];
static int rule_count, field_rules, device_count = 8;
static long long checked_at = -1;
static struct timespec changed_at;

static long long now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int device_of(const char *text) { return strcmp(text, "*") ? atoi(text) : ANY; }

static void load(const char *path) {
  char line[256], verb[16], first[64], second[64], third[32], fourth[32];
  FILE *file = fopen(path, "r");
  rule_count = field_rules = 0;
  device_count = 8;
  if (!file) return;
  while (fgets(line, sizeof line, file) && rule_count < MOST_RULES) {
    Rule *rule = &rules[rule_count];
    int fields = sscanf(line, "%15s %63s %63s %31s %31s", verb, first, second, third, fourth);
    if (fields < 2 || verb[0] == '#') continue;
    if (!strcmp(verb, "devices")) { device_count = atoi(first); continue; }
    memset(rule, 0, sizeof *rule);
    strcpy(rule->verb, verb);
    if (!strcmp(verb, "absent")) {
      rule->device = device_of(first);
    } else if (!strcmp(verb, "process") || !strcmp(verb, "graphics")) {
      rule->device = device_of(first);
      rule->a = atoll(second);
      rule->b = atoll(third);
    } else if (!strcmp(verb, "event")) {
      rule->device = device_of(first);
      rule->a = atoll(second);
      rule->b = atoll(third);
      rule->number = fields > 4 ? atoll(fourth) : 1;
    } else {
      strcpy(rule->function, first);
      rule->device = device_of(second);
      rule->a = fields > 3 ? atoll(third) : 0;
      rule->b = fields > 4 ? atoll(fourth) : 0;
    }
    rule->fields = fields;
    field_rules += !strncmp(rule->function, "field:", 6);
    rule_count++;
  }
  fclose(file);
}

/* At most every 20 ms, so that what is measured is the caller and not this file. */
static void refresh(void) {
  struct stat status;
  const char *path;
  long long now = now_ns();
  if (checked_at >= 0 && now - checked_at < RELOAD_NS) return;
  checked_at = now;
  path = getenv("NVML_STANDIN");
  if (!path || stat(path, &status)) return;
  if (status.st_mtim.tv_sec == changed_at.tv_sec && status.st_mtim.tv_nsec == changed_at.tv_nsec) return;
  changed_at = status.st_mtim;
  load(path);
}

static Rule *find(const char *verb, const char *function, int device) {
  for (int i = 0; i < rule_count; i++) {
    Rule *rule = &rules[i];
    if (strcmp(rule->verb, verb)) continue;
    if (strcmp(rule->function, "*") && strcmp(rule->function, function)) continue;
    if (rule->device == ANY || rule->device == device) return rule;
  }
  return NULL;
}

static Return obey(const char *function, int device) {
  Rule *rule;
  refresh();
  if (!rule_count) return 0;
  if (find("crash", function, device)) raise(SIGSEGV);
  while (find("block", function, device)) { usleep(2000); refresh(); }
  rule = find("error", function, device);
  return rule ? (Return)rule->a : 0;
}

static long long value_or(const char *function, int device, int second, long long usual) {
  Rule *rule = rule_count ? find("value", function, device) : NULL;
  return !rule || (second && rule->fields < 5) ? usual : second ? rule->b : rule->a;
}

static int is_absent(int device) {
  for (int i = 0; i < rule_count; i++)
    if (!strcmp(rules[i].verb, "absent") && rules[i].device == device) return 1;
  return 0;
}

#define SYSTEM() do { Return r_ = obey(__func__, ANY); if (r_) return r_; } while (0)
#define ON(d) do { Return r_ = obey(__func__, (d)->number); if (r_) return r_; } while (0)
#define VALUE(d, usual) value_or(__func__, (d)->number, 0, usual)
#define SECOND(d, usual) value_or(__func__, (d)->number, 1, usual)
#define NUMBER(name, type, usual) \
  Return name(Device d, type *out) { ON(d); *out = (type)VALUE(d, usual); return 0; }

Return nvmlInitWithFlags(unsigned flags) { (void)flags; SYSTEM(); return 0; }
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { SYSTEM(); return 0; }
const char *nvmlErrorString(Return code) { return code == 3 ? "Not Supported" : "made-up error"; }
Return nvmlSystemGetDriverVersion(char *out, unsigned n) { SYSTEM(); snprintf(out, n, "580.65.06"); return 0; }
Return nvmlSystemGetNVMLVersion(char *out, unsigned n) { SYSTEM(); snprintf(out, n, "13.580.65"); return 0; }
Return nvmlSystemGetCudaDriverVersion(int *out) { SYSTEM(); *out = 13000; return 0; }
Return nvmlSystemGetCudaDriverVersion_v2(int *out) { return nvmlSystemGetCudaDriverVersion(out); }

Return nvmlDeviceGetCount_v2(unsigned *out) {
  SYSTEM();
  *out = 0;
  for (int i = 0; i < device_count; i++) *out += !is_absent(i);
  return 0;
}
Return nvmlDeviceGetHandleByIndex_v2(unsigned place, Device *out) {
  Return refused;
  refresh();
  for (int i = 0; i < device_count; i++) {
    if (is_absent(i)) continue;
    if (place-- == 0) {
      devices[i].number = i;
      *out = (Device)&devices[i];
      refused = obey(__func__, i);
      return refused;
    }
  }
  return 2;
}
Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *out) {
  int number = atoi(uuid + strlen(uuid) - 2);
  devices[number].number = number;
  *out = (Device)&devices[number];
  return 0;
}
Return nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *out) {
  int number = (int)strtol(bus + 9, NULL, 16) - 0x10;
  devices[number].number = number;
  *out = (Device)&devices[number];
  return 0;
}

Return nvmlDeviceGetName(Device d, char *out, unsigned n) { ON(d); snprintf(out, n, "NVIDIA H100 80GB HBM3"); return 0; }
Return nvmlDeviceGetUUID(Device d, char *out, unsigned n) {
  ON(d);
  snprintf(out, n, "GPU-00000000-0000-0000-0000-0000000000%02d", d->number);
  return 0;
}
Return nvmlDeviceGetSerial(Device d, char *out, unsigned n) { ON(d); snprintf(out, n, "16543210%02d", d->number); return 0; }
NUMBER(nvmlDeviceGetIndex, unsigned, d->number)
NUMBER(nvmlDeviceGetMinorNumber, unsigned, d->number)

typedef struct { unsigned gpu, memory; } Utilization;
Return nvmlDeviceGetUtilizationRates(Device d, Utilization *out) {
  ON(d);
  out->gpu = (unsigned)VALUE(d, 90 + d->number);
  out->memory = (unsigned)SECOND(d, 40 + d->number);
  return 0;
}

#define TOTAL_MEMORY 85899345920ULL
#define RESERVED_MEMORY (500ULL << 20)
#define USED_MEMORY(d) ((unsigned long long)(40 + (d)->number) << 30)
typedef struct { unsigned long long total, free, used; } Memory;
Return nvmlDeviceGetMemoryInfo(Device d, Memory *out) {
  ON(d);
  out->total = (unsigned long long)VALUE(d, TOTAL_MEMORY);
  out->used = (unsigned long long)SECOND(d, USED_MEMORY(d)) + RESERVED_MEMORY;
  out->free = out->total - out->used;
  return 0;
}
Return nvmlDeviceGetBAR1MemoryInfo(Device d, Memory *out) {
  ON(d);
  out->total = 137438953472ULL;
  out->used = 1 << 20;
  out->free = out->total - out->used;
  return 0;
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned, 600000 + d->number * 1000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, 700000)
Return nvmlDeviceGetTemperature(Device d, unsigned sensor, unsigned *out) {
  (void)sensor;
  ON(d);
  *out = (unsigned)VALUE(d, 55 + d->number);
  return 0;
}
Return nvmlDeviceGetClockInfo(Device d, unsigned kind, unsigned *out) {
  ON(d);
  *out = kind == 2 ? 2619 : 1980;
  return 0;
}
Return nvmlDeviceGetMaxClockInfo(Device d, unsigned kind, unsigned *out) {
  ON(d);
  *out = kind == 2 ? 2619 : 1980;
  return 0;
}
Return nvmlDeviceGetFanSpeed(Device d, unsigned *out) { (void)d; (void)out; return 3; }
NUMBER(nvmlDeviceGetPerformanceState, unsigned, 0)
Return nvmlDeviceGetPcieThroughput(Device d, unsigned counter, unsigned *out) { ON(d); *out = 1234 * (counter + 1); return 0; }
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 4)
Return nvmlDeviceGetTotalEccErrors(Device d, unsigned kind, unsigned counter, unsigned long long *out) {
  (void)counter;
  ON(d);
  *out = (unsigned long long)(kind ? SECOND(d, 0) : VALUE(d, 2));
  return 0;
}
Return nvmlDeviceGetEccMode(Device d, unsigned *now, unsigned *later) { ON(d); *now = *later = 1; return 0; }
Return nvmlDeviceGetRemappedRows(Device d, unsigned *a, unsigned *b, unsigned *c, unsigned *e) {
  ON(d);
  *a = *b = *c = *e = 0;
  return 0;
}
Return nvmlDeviceGetTemperatureThreshold(Device d, unsigned kind, unsigned *out) {
  ON(d);
  if (kind != 1 && kind != 2) return 3;
  *out = (unsigned)(kind == 1 ? VALUE(d, 87) : SECOND(d, 95));
  return 0;
}
Return nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *out) {
  ON(d);
  if (link >= 18) return 2;
  *out = (unsigned)VALUE(d, 1);
  return 0;
}

typedef struct {
  unsigned field, scope;
  long long at, latency;
  int kind, code;
  union { unsigned long long whole; double real; unsigned small; } value;
} FieldValue;
static int usual_field(unsigned field, int device, unsigned *usual) {
  switch (field) {
    case 3: *usual = 2; return 1;
    case 4: case 94: case 142: case 143: case 144: case 145: *usual = 0; return 1;
    case 82: *usual = 63 + (unsigned)device; return 1;
    case 91: *usual = 18; return 1;
#ifdef OLD_DRIVER
    case 38: case 52: case 59: *usual = 0; return 1;
#else
    case 165: *usual = 1; return 1;
    case 161: case 162: case 163: case 230: *usual = 0; return 1;
#endif
  }
  return 0;
}
Return nvmlDeviceGetFieldValues(Device d, int count, FieldValue *values) {
  ON(d);
  for (int i = 0; i < count; i++) {
    FieldValue *value = &values[i];
    char name[64], of_link[64];
    unsigned usual = 0;
    int known = usual_field(value->field, d->number, &usual);
    Rule *error = NULL, *set = NULL;
    if (field_rules) {
      snprintf(name, sizeof name, "field:%u", value->field);
      snprintf(of_link, sizeof of_link, "field:%u:%u", value->field, value->scope);
      error = find("error", of_link, d->number);
      if (!error) error = find("error", name, d->number);
      set = find("value", of_link, d->number);
      if (!set) set = find("value", name, d->number);
    }
    value->kind = 1;
    value->value.whole = 0;
    value->value.small = set ? (unsigned)set->a : usual;
    value->code = error ? (int)error->a : known || set ? 0 : 3;
  }
  return 0;
}

typedef struct { unsigned long long wanted[MOST_DEVICES]; } *EventSet;
typedef struct { Device device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
static long long told;
Return nvmlEventSetCreate(EventSet *out) { SYSTEM(); *out = calloc(1, sizeof **out); return 0; }
Return nvmlEventSetFree(EventSet set) { SYSTEM(); free(set); return 0; }
NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long, 0x20f)
Return nvmlDeviceRegisterEvents(Device d, unsigned long long types, EventSet set) {
  ON(d);
  set->wanted[d->number] |= types;
  return 0;
}
Return nvmlEventSetWait_v2(EventSet set, EventData *out, unsigned milliseconds) {
  (void)milliseconds;
  SYSTEM();
  for (int i = 0; i < rule_count; i++) {
    Rule *rule = &rules[i];
    if (strcmp(rule->verb, "event") || rule->number <= told) continue;
    told = rule->number;
    if (!(set->wanted[rule->device] & (unsigned long long)rule->a)) continue;
    memset(out, 0, sizeof *out);
    out->device = (Device)&devices[rule->device];
    out->type = (unsigned long long)rule->a;
    out->data = (unsigned long long)rule->b;
    return 0;
  }
  return 10;
}
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 123456789)
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, 1)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, 0)
NUMBER(nvmlDeviceGetComputeMode, unsigned, 0)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned, 0)
Return nvmlDeviceGetMigMode(Device d, unsigned *now, unsigned *later) {
  ON(d);
  *now = (unsigned)VALUE(d, 0);
  *later = (unsigned)SECOND(d, 0);
  return 0;
}
Return nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) { ON(d); *major = 9; *minor = 0; return 0; }
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
Return nvmlDeviceGetPciInfo_v3(Device d, Pci *out) {
  ON(d);
  memset(out, 0, sizeof *out);
  out->bus = 0x10 + d->number;
  snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
  snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
  return 0;
}
Return nvmlDeviceGetEncoderUtilization(Device d, unsigned *a, unsigned *b) { ON(d); *a = 0; *b = 1000; return 0; }
Return nvmlDeviceGetDecoderUtilization(Device d, unsigned *a, unsigned *b) { ON(d); *a = 0; *b = 1000; return 0; }

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Holder;
static Return holders(const char *verb, Device d, unsigned *count, Holder *out) {
  unsigned room = *count, found = 0;
  for (int i = 0; i < rule_count; i++) {
    Rule *rule = &rules[i];
    if (strcmp(rule->verb, verb) || rule->device != d->number) continue;
    if (out && found < room) {
      out[found].pid = (unsigned)rule->a;
      out[found].memory = (unsigned long long)rule->b;
      out[found].gpu_instance = out[found].compute_instance = ~0u;
    }
    found++;
  }
  *count = found;
  return found > room || (found && !out) ? 7 : 0;
}
Return nvmlDeviceGetComputeRunningProcesses_v2(Device d, unsigned *count, Holder *out) {
  ON(d);
  return holders("process", d, count, out);
}
Return nvmlDeviceGetGraphicsRunningProcesses_v2(Device d, unsigned *count, Holder *out) {
  ON(d);
  return holders("graphics", d, count, out);
}

typedef struct { unsigned pid; unsigned long long at; unsigned sm, memory, encoder, decoder; } HolderUse;
Return nvmlDeviceGetProcessUtilization(Device d, HolderUse *out, unsigned *count, unsigned long long since) {
  unsigned found = 0;
  (void)since;
  ON(d);
  for (int i = 0; i < rule_count; i++) {
    if (strcmp(rules[i].verb, "process") || rules[i].device != d->number) continue;
    if (out && found < *count) out[found] = (HolderUse){(unsigned)rules[i].a, 0, 90, 40, 0, 0};
    found++;
  }
  *count = found;
  return found && !out ? 7 : 0;
}

#ifndef OLD_DRIVER
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
Return nvmlDeviceGetMemoryInfo_v2(Device d, MemoryV2 *out) {
  ON(d);
  out->total = (unsigned long long)VALUE(d, TOTAL_MEMORY);
  out->reserved = RESERVED_MEMORY;
  out->used = (unsigned long long)SECOND(d, USED_MEMORY(d));
  out->free = out->total - out->used - out->reserved;
  return 0;
}
typedef struct { unsigned version; int sensor, celsius; } TemperatureV1;
Return nvmlDeviceGetTemperatureV(Device d, TemperatureV1 *out) { ON(d); out->celsius = (int)VALUE(d, 55 + d->number); return 0; }
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 4)
typedef struct {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique, state, mask;
  unsigned char summary;
} FabricInfo;
Return nvmlDeviceGetGpuFabricInfoV(Device d, FabricInfo *out) {
  ON(d);
  out->status = 0;
  out->state = (unsigned)VALUE(d, 3);
  out->mask = (unsigned)value_or("mask", d->number, 0, 0);
  if (out->version == 0x3000028) out->summary = (unsigned char)SECOND(d, 1);
  return 0;
}
Return nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, Holder *out) {
  ON(d);
  return holders("process", d, count, out);
}
Return nvmlDeviceGetGraphicsRunningProcesses_v3(Device d, unsigned *count, Holder *out) {
  ON(d);
  return holders("graphics", d, count, out);
}
#endif
