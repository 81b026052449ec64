/* SPDX-License-Identifier: Apache-2.0 */
/* See double.h. One lock over everything; a stream's thread copies without it. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "gpu/cuda_list.h"
#include "tests/double/double.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#define EXPORT                                     __attribute__((visibility("default")))
#define MAX_DEVICES                                16
#define GRANULARITY                                (2ul << 20)
/*
 * Addresses of the driver's choice: where no process has anything else, also under a sanitizer, so that what one was
 * given is free in another
 */
#define FIRST_ADDRESS                              0x7ea000000000ul
#define LAST_ADDRESS                               0x7ef000000000ul
#define MIDDLE_ADDRESS                             0x7ec800000000ul
#define RUBBISH                                    0xa5
/* so much of an allocation is filled with rubbish entirely, of larger ones a page in each 2 MiB */
#define RUBBISH_FULL                               (32ul << 20)

#define F(name, suffix, version, need, parameters) EXPORT cu_result cu##name##suffix parameters;
CUDA_FUNCTIONS(F)
#undef F
EXPORT thaw_double_fn thaw_double;
EXPORT cu_result cuGetProcAddress_v2(const char *name, void **ret, int version, uint64_t flags, int *status);

/* -- settings ---------------------------------------------------------------------------------------- */

#define SETTINGS(S)                     \
	S(devices, DEVICES, 1)          \
	S(capacity, CAPACITY, 4l << 30) \
	S(version, VERSION, 12080)      \
	S(rotate, ROTATE, 0)            \
	S(delay_us, DELAY_US, 0)        \
	S(mbps, MBPS, 0)                \
	S(nocopy, NOCOPY, 0)            \
	S(refuse, REFUSE, 0)            \
	S(chip, CHIP, 0)                \
	S(check, CHECK, 0)              \
	S(fail_at, FAIL_AT, 0)          \
	S(fail_code, FAIL_CODE, 0)      \
	S(async_at, ASYNC_AT, 0)        \
	S(async_code, ASYNC_CODE, 0)    \
	S(storage, STORAGE, 0)          \
	S(registering, REGISTER, 1)

static struct {
#define S(name, env, value) long name;
	SETTINGS(S)
#undef S
} set;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long n_calls, n_async, n_fired, n_violations;
static pid_t init_pid; /* 0: before cuInit */

__attribute__((constructor)) static void read_settings(void)
{
#define S(name, env, value)                                        \
	{                                                          \
		const char *text = getenv("THAW_DOUBLE_" #env);    \
		set.name = text ? strtol(text, NULL, 0) : (value); \
	}
	SETTINGS(S)
#undef S
	if (set.devices > MAX_DEVICES)
		set.devices = MAX_DEVICES;
}

/* -- what there is ----------------------------------------------------------------------------------- */

struct cu_context_data {
	int refs;
	int sticky; /* the code that everything returns from now on */
};

struct memory {
	struct memory *next;
	unsigned card; /* where it is, however ordinals are moved */
	size_t size;
	int fd;
	int handles, maps;
	bool imported, exportable;
};

/* reserved addresses; mappings lie inside */
struct range {
	struct range *next;
	cu_ptr addr;
	size_t size;
};

struct mapping {
	struct mapping *next;
	cu_ptr addr;
	size_t size;
	struct memory *memory;
	uint8_t *alias; /* the same memory, for the streams */
	bool access, plain;
	int in_flight;
};

struct host {
	struct host *next;
	uint8_t *ptr;
	size_t size;
	bool registered;
	int in_flight;
};

enum op_kind { OP_IN, OP_OUT, OP_SET, OP_EVENT };

struct op {
	struct op *next;
	enum op_kind kind;
	struct mapping *mapping;
	struct host *host;
	size_t off, len;
	void *ptr;
	unsigned char value;
	uint64_t sum; /* of the source, when it was put in */
	struct cu_event_data *event;
	uint64_t turn;
};

struct cu_stream_data {
	struct cu_stream_data *next;
	unsigned card;
	pthread_t thread;
	pthread_cond_t work;
	struct op *first, **last;
	bool quit, busy;
};

struct cu_event_data {
	struct cu_event_data *next;
	uint64_t put, reached;
	unsigned card;
};

static struct cu_context_data contexts[MAX_DEVICES];
static size_t used[MAX_DEVICES];
static struct memory *memories;
static struct range *ranges;
static struct mapping *mappings;
static struct host *hosts;
static cu_stream streams;
static cu_event events;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* a stream has done something */
static __thread cu_context current;

#define UNLINK(list, item)                      \
	do {                                    \
		__typeof__(list) *p_ = &(list); \
		while (*p_ && *p_ != (item))    \
			p_ = &(*p_)->next;      \
		if (*p_)                        \
			*p_ = (item)->next;     \
	} while (0)

static FILE *report_to(void)
{
	const char *path = getenv("THAW_DOUBLE_REPORT");

	return path ? fopen(path, "ae") : stderr;
}

__attribute__((format(printf, 1, 2))) static void violation(const char *fmt, ...)
{
	FILE *out = report_to();
	va_list ap;

	n_violations++;
	if (!out)
		return;
	fprintf(out, "violation in %d: ", (int)getpid());
	va_start(ap, fmt);
	vfprintf(out, fmt, ap);
	va_end(ap);
	putc('\n', out);
	if (out != stderr)
		fclose(out);
}

/* prints and counts what is not given back */
static long leaks(FILE *out)
{
	long n = 0;

#define LEAK(...)                                            \
	do {                                                 \
		n++;                                         \
		fprintf(out, "leak in %d: ", (int)getpid()); \
		fprintf(out, __VA_ARGS__);                   \
		putc('\n', out);                             \
	} while (0)
	for (struct memory *m = memories; m; m = m->next)
		LEAK("%zu bytes on card %u: %d handles, %d mappings", m->size, m->card, m->handles, m->maps);
	for (struct range *r = ranges; r; r = r->next)
		LEAK("%zu addresses at 0x%llx", r->size, r->addr);
	for (struct mapping *m = mappings; m; m = m->next)
		LEAK("a mapping at 0x%llx", m->addr);
	for (struct host *h = hosts; h; h = h->next)
		LEAK("%zu pinned bytes", h->size);
	for (cu_stream s = streams; s; s = s->next)
		LEAK("a stream");
	for (cu_event e = events; e; e = e->next)
		LEAK("an event");
	for (unsigned i = 0; i < MAX_DEVICES; i++) {
		if (contexts[i].refs)
			LEAK("card %u retained %d times", i, contexts[i].refs);
	}
#undef LEAK
	return n;
}

__attribute__((destructor)) static void last_report(void)
{
	FILE *out = getenv("THAW_DOUBLE_REPORT") ? report_to() : NULL;
	long n;

	if (!out || init_pid != getpid())
		return;
	n = leaks(out);
	fprintf(out, "%s %d: %ld calls, %ld injected\n", n || n_violations ? "unclean" : "clean", (int)getpid(),
		n_calls, n_fired);
	fclose(out);
}

long thaw_double(const char *name, long value)
{
	long before = -1;

	pthread_mutex_lock(&lock);
#define S(field, env, start)         \
	if (!strcmp(name, #field)) { \
		before = set.field;  \
		set.field = value;   \
	}
	SETTINGS(S)
#undef S
	if (!strcmp(name, "calls"))
		before = n_calls;
	if (!strcmp(name, "fired"))
		before = n_fired;
	if (!strcmp(name, "problems"))
		before = leaks(stderr) + n_violations;
	if (!strcmp(name, "reset")) {
		before = 0;
		n_calls = n_async = n_fired = n_violations = 0;
		set.fail_at = set.async_at = 0;
		for (unsigned i = 0; i < MAX_DEVICES; i++)
			contexts[i].sticky = 0;
	}
	pthread_mutex_unlock(&lock);
	return before;
}

/* -- how a call begins -------------------------------------------------------------------------------- */

static bool sticky(cu_result code)
{
	return code == CU_ECC_UNCORRECTABLE || code == CU_NVLINK_UNCORRECTABLE || code == CU_ILLEGAL_ADDRESS ||
	       code == CU_LAUNCH_FAILED || code == CU_UNKNOWN;
}

static unsigned card_of(cu_context context)
{
	return (unsigned)(context - contexts);
}

enum needs { NEEDS_NOTHING, NEEDS_INIT, NEEDS_CONTEXT };

/* takes the lock; what the call is to return, CU_SUCCESS if it is to be done */
static cu_result begin(enum needs needs)
{
	pthread_mutex_lock(&lock);
	n_calls++;
	if (init_pid && init_pid != getpid()) {
		violation("a call in a process that was forked after cuInit");
		return CU_NOT_INITIALIZED;
	}
	if (set.fail_at && n_calls == set.fail_at) {
		n_fired++;
		if (sticky((cu_result)set.fail_code) && current)
			current->sticky = (int)set.fail_code;
		return (cu_result)set.fail_code;
	}
	if (needs >= NEEDS_INIT && !init_pid)
		return CU_NOT_INITIALIZED;
	if (needs >= NEEDS_CONTEXT) {
		if (!current || !current->refs)
			return CU_INVALID_CONTEXT;
		if (current->sticky)
			return current->sticky;
	}
	return CU_SUCCESS;
}

static cu_result end(cu_result code)
{
	pthread_mutex_unlock(&lock);
	return code;
}

#define BEGIN(needs)                            \
	do {                                    \
		cu_result code_ = begin(needs); \
		if (code_)                      \
			return end(code_);      \
	} while (0)

/* calls that give something back do so even when they report an error of something before */
#define BEGIN_RELEASE(code)                                           \
	cu_result code = begin(NEEDS_CONTEXT);                        \
	if (code == CU_NOT_INITIALIZED || code == CU_INVALID_CONTEXT) \
	return end(code)

/* -- library and devices ------------------------------------------------------------------------------ */

cu_result cuDriverGetVersion(int *version)
{
	BEGIN(NEEDS_NOTHING);
	*version = (int)set.version;
	return end(CU_SUCCESS);
}

cu_result cuInit(unsigned flags)
{
	BEGIN(NEEDS_NOTHING);
	if (flags)
		return end(CU_INVALID_VALUE);
	if (set.devices <= 0)
		return end(CU_NO_DEVICE);
	init_pid = getpid();
	return end(CU_SUCCESS);
}

static const struct {
	cu_result code;
	const char *name, *text;
} codes[] = {
	{ CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "a parameter is wrong" },
	{ CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "not initialized" },
	{ CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "there is no device" },
	{ CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "there is no such device" },
	{ CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "no device is current" },
	{ CU_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "a memory error that could not be corrected" },
	{ CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "there is no such thing" },
	{ CU_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "pinned already" },
	{ CU_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "not in this state" },
	{ CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "not found" },
	{ CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal access to memory" },
	{ CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "a kernel failed" },
	{ CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown" },
};

cu_result cuGetErrorName(cu_result code, const char **text)
{
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		if (codes[i].code == code) {
			*text = codes[i].name;
			return CU_SUCCESS;
		}
	}
	*text = NULL;
	return CU_INVALID_VALUE;
}

cu_result cuGetErrorString(cu_result code, const char **text)
{
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		if (codes[i].code == code) {
			*text = codes[i].text;
			return CU_SUCCESS;
		}
	}
	*text = NULL;
	return CU_INVALID_VALUE;
}

cu_result cuGetProcAddress_v2(const char *name, void **ret, int version, uint64_t flags, int *status)
{
	static const struct {
		const char *name;
		int version;
		void *fn;
	} table[] = {
#define F(fn, suffix, since, need, parameters) { "cu" #fn, since, (void *)cu##fn##suffix },
		CUDA_FUNCTIONS(F)
#undef F
	};

	(void)flags;
	*ret = NULL;
	*status = 1;
	if (set.version < 12000)
		return CU_NOT_FOUND;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		/* as the real one: another version of the interface is another function, or none */
		if (!strcmp(table[i].name, name) && table[i].version <= version && version <= set.version) {
			*ret = table[i].fn;
			*status = 0;
		}
	}
	return CU_SUCCESS;
}

cu_result cuDeviceGetCount(int *count)
{
	BEGIN(NEEDS_INIT);
	*count = (int)set.devices;
	return end(CU_SUCCESS);
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
	BEGIN(NEEDS_INIT);
	if (ordinal < 0 || ordinal >= set.devices)
		return end(CU_INVALID_DEVICE);
	*device = ordinal;
	return end(CU_SUCCESS);
}

static bool is_device(cu_device device)
{
	return device >= 0 && device < set.devices;
}

static unsigned card(cu_device device)
{
	return (unsigned)((device + set.rotate) % set.devices);
}

cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device)
{
	BEGIN(NEEDS_INIT);
	if (!is_device(device))
		return end(CU_INVALID_DEVICE);
	for (unsigned i = 0; i < sizeof(uuid->bytes); i++)
		uuid->bytes[i] = (char)(0x10 + i);
	uuid->bytes[15] = (char)card(device);
	return end(CU_SUCCESS);
}

cu_result cuDeviceGetName(char *name, int len, cu_device device)
{
	BEGIN(NEEDS_INIT);
	if (!is_device(device))
		return end(CU_INVALID_DEVICE);
	snprintf(name, (size_t)len, "Double %s", set.chip ? "Two" : "One");
	return end(CU_SUCCESS);
}

cu_result cuDeviceGetPCIBusId(char *text, int len, cu_device device)
{
	BEGIN(NEEDS_INIT);
	if (!is_device(device))
		return end(CU_INVALID_DEVICE);
	snprintf(text, (size_t)len, "0000:%02x:00.0", 0x10 + card(device));
	return end(CU_SUCCESS);
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
	BEGIN(NEEDS_INIT);
	if (!is_device(device))
		return end(CU_INVALID_DEVICE);
	*bytes = (size_t)set.capacity;
	return end(CU_SUCCESS);
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
	BEGIN(NEEDS_INIT);
	if (!is_device(device))
		return end(CU_INVALID_DEVICE);
	switch (attribute) {
	case CU_ATTR_CC_MAJOR:
		*value = set.chip ? 10 : 9;
		return end(CU_SUCCESS);
	case CU_ATTR_CC_MINOR:
		*value = 0;
		return end(CU_SUCCESS);
	case CU_ATTR_VMM:
		*value = 1;
		return end(CU_SUCCESS);
	default:
		return end(CU_INVALID_VALUE);
	}
}

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
	BEGIN(NEEDS_INIT);
	if (!is_device(device))
		return end(CU_INVALID_DEVICE);
	*context = &contexts[card(device)];
	(*context)->refs++;
	return end(CU_SUCCESS);
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	cu_result code = begin(NEEDS_INIT);

	if (!is_device(device) || !contexts[card(device)].refs)
		return end(CU_INVALID_CONTEXT);
	contexts[card(device)].refs--;
	return end(code);
}

cu_result cuCtxSetCurrent(cu_context context)
{
	BEGIN(NEEDS_INIT);
	current = context;
	return end(CU_SUCCESS);
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	BEGIN(NEEDS_CONTEXT);
	*total = (size_t)set.capacity;
	*free_bytes = *total - used[card_of(current)];
	return end(CU_SUCCESS);
}

/* -- device memory ------------------------------------------------------------------------------------ */

cu_result cuMemGetAllocationGranularity(size_t *bytes, const struct cu_prop *prop, int option)
{
	BEGIN(NEEDS_INIT);
	if (prop->type != CU_ALLOCATION_PINNED || prop->location.type != CU_LOCATION_DEVICE ||
	    !is_device(prop->location.id) || option < 0 || option > 1)
		return end(CU_INVALID_VALUE);
	*bytes = GRANULARITY;
	return end(CU_SUCCESS);
}

/* PROT_NONE addresses, aligned; at @hint if that can be */
static cu_ptr take_addresses(size_t size, cu_ptr hint)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	static uintptr_t next;
	uint8_t *p;

	if (hint && !set.refuse) {
		p = mmap((void *)(uintptr_t)hint, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
		if (p != MAP_FAILED)
			return (cu_ptr)(uintptr_t)p;
	}
	for (unsigned tries = 0; tries < 100000; tries++) {
		/* what is refused is not given by chance either */
		if (set.refuse && next < MIDDLE_ADDRESS)
			next = MIDDLE_ADDRESS;
		if (next < FIRST_ADDRESS || next + size > LAST_ADDRESS)
			next = FIRST_ADDRESS;
		p = mmap((void *)next, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
		next += size;
		if (p != MAP_FAILED)
			return (cu_ptr)(uintptr_t)p;
		next = next - size + GRANULARITY;
	}
	return 0;
}

static struct range *add_range(size_t size, cu_ptr hint)
{
	struct range *r = calloc(1, sizeof(*r));

	r->size = size;
	r->addr = take_addresses(size, hint);
	if (!r->addr) {
		free(r);
		return NULL;
	}
	r->next = ranges;
	ranges = r;
	return r;
}

cu_result cuMemAddressReserve(cu_ptr *ptr, size_t size, size_t align, cu_ptr addr, unsigned long long flags)
{
	struct range *r;

	BEGIN(NEEDS_CONTEXT);
	if (!size || size % GRANULARITY || align % GRANULARITY || addr % 4096 || flags)
		return end(CU_INVALID_VALUE);
	r = add_range(size, addr % GRANULARITY ? 0 : addr);
	if (!r)
		return end(CU_OUT_OF_MEMORY);
	*ptr = r->addr;
	return end(CU_SUCCESS);
}

static struct mapping *mapping_at(cu_ptr addr, size_t len)
{
	for (struct mapping *m = mappings; m; m = m->next) {
		if (addr >= m->addr && addr - m->addr <= m->size && len <= m->size - (addr - m->addr))
			return m;
	}
	return NULL;
}

static bool anything_mapped(cu_ptr addr, size_t size)
{
	for (struct mapping *m = mappings; m; m = m->next) {
		if (m->addr < addr + size && addr < m->addr + m->size)
			return true;
	}
	return false;
}

cu_result cuMemAddressFree(cu_ptr ptr, size_t size)
{
	struct range *r;

	BEGIN_RELEASE(code);
	for (r = ranges; r && (r->addr != ptr || r->size != size); r = r->next)
		;
	if (!r)
		return end(CU_INVALID_VALUE);
	if (anything_mapped(ptr, size))
		violation("addresses at 0x%llx given back with memory mapped there", ptr);
	munmap((void *)(uintptr_t)ptr, size);
	UNLINK(ranges, r);
	free(r);
	return end(code);
}

static void fill_with_rubbish(int fd, size_t size)
{
	static const size_t step = 1 << 16;
	uint8_t *buf = malloc(step);

	memset(buf, RUBBISH, step);
	for (size_t off = 0; off < size; off += size <= RUBBISH_FULL ? step : GRANULARITY) {
		if (pwrite(fd, buf, size <= RUBBISH_FULL ? step : 4096, (off_t)off) < 0)
			abort();
	}
	free(buf);
}

static cu_result new_memory(unsigned where, size_t size, bool exportable, struct memory **ret)
{
	struct memory *m;
	char name[64];

	if (size > (size_t)set.capacity || used[where] > (size_t)set.capacity - size)
		return CU_OUT_OF_MEMORY;
	m = calloc(1, sizeof(*m));
	snprintf(name, sizeof(name), "thaw-double-%u", where);
	m->fd = memfd_create(name, MFD_CLOEXEC);
	if (m->fd < 0 || ftruncate(m->fd, (off_t)size))
		abort();
	if (!set.nocopy)
		fill_with_rubbish(m->fd, size);
	m->card = where;
	m->size = size;
	m->exportable = exportable;
	m->handles = 1;
	m->next = memories;
	memories = m;
	used[where] += size;
	*ret = m;
	return CU_SUCCESS;
}

static void drop_memory(struct memory *m)
{
	if (m->handles || m->maps)
		return;
	if (!m->imported)
		used[m->card] -= m->size;
	close(m->fd);
	UNLINK(memories, m);
	free(m);
}

static struct memory *memory_of(cu_handle handle)
{
	for (struct memory *m = memories; m; m = m->next) {
		if ((cu_handle)(uintptr_t)m == handle && m->handles)
			return m;
	}
	return NULL;
}

cu_result cuMemCreate(cu_handle *handle, size_t size, const struct cu_prop *prop, unsigned long long flags)
{
	struct memory *m;
	cu_result code;

	BEGIN(NEEDS_CONTEXT);
	if (!size || size % GRANULARITY || prop->type != CU_ALLOCATION_PINNED ||
	    prop->location.type != CU_LOCATION_DEVICE || !is_device(prop->location.id) || flags)
		return end(CU_INVALID_VALUE);
	code = new_memory(card(prop->location.id), size, prop->handle_types == CU_HANDLE_POSIX_FD, &m);
	if (!code)
		*handle = (cu_handle)(uintptr_t)m;
	return end(code);
}

cu_result cuMemRelease(cu_handle handle)
{
	struct memory *m;

	BEGIN_RELEASE(code);
	m = memory_of(handle);
	if (!m)
		return end(CU_INVALID_VALUE);
	m->handles--;
	drop_memory(m);
	return end(code);
}

static struct mapping *add_mapping(cu_ptr addr, struct memory *m)
{
	struct mapping *map = calloc(1, sizeof(*map));

	map->addr = addr;
	map->size = m->size;
	map->memory = m;
	map->alias = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (map->alias == MAP_FAILED)
		abort();
	m->maps++;
	map->next = mappings;
	mappings = map;
	return map;
}

cu_result cuMemMap(cu_ptr ptr, size_t size, size_t off, cu_handle handle, unsigned long long flags)
{
	struct memory *m;
	struct range *r;

	BEGIN(NEEDS_CONTEXT);
	m = memory_of(handle);
	for (r = ranges; r && (ptr < r->addr || ptr - r->addr > r->size || size > r->size - (ptr - r->addr));
	     r = r->next)
		;
	if (!m || !r || off || flags || size != m->size || ptr % GRANULARITY || anything_mapped(ptr, size))
		return end(CU_INVALID_VALUE);
	add_mapping(ptr, m);
	return end(CU_SUCCESS);
}

static void drop_mapping(struct mapping *m)
{
	if (m->in_flight && !contexts[m->memory->card].sticky)
		violation("memory at 0x%llx unmapped with %d copies in flight", m->addr, m->in_flight);
	/* those copies still find it: better a late answer than a crash in a thread of ours */
	while (m->in_flight)
		pthread_cond_wait(&moved, &lock);
	munmap(m->alias, m->size);
	m->memory->maps--;
	drop_memory(m->memory);
	UNLINK(mappings, m);
	free(m);
}

cu_result cuMemUnmap(cu_ptr ptr, size_t size)
{
	struct mapping *m;

	BEGIN_RELEASE(code);
	m = mapping_at(ptr, size);
	if (!m || m->addr != ptr || m->size != size || m->plain)
		return end(CU_INVALID_VALUE);
	drop_mapping(m);
	return end(code);
}

cu_result cuMemSetAccess(cu_ptr ptr, size_t size, const struct cu_access *access, size_t n)
{
	struct mapping *m;

	BEGIN(NEEDS_CONTEXT);
	m = mapping_at(ptr, size);
	if (!m || n != 1 || access->location.type != CU_LOCATION_DEVICE || !is_device(access->location.id) ||
	    access->flags != CU_ACCESS_READ_WRITE)
		return end(CU_INVALID_VALUE);
	m->access = true;
	return end(CU_SUCCESS);
}

cu_result cuMemExportToShareableHandle(void *shareable, cu_handle handle, int type, unsigned long long flags)
{
	struct memory *m;
	int fd;

	BEGIN(NEEDS_CONTEXT);
	m = memory_of(handle);
	if (!m || !m->exportable || type != CU_HANDLE_POSIX_FD || flags)
		return end(CU_INVALID_VALUE);
	fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return end(CU_OUT_OF_MEMORY);
	*(int *)shareable = fd;
	return end(CU_SUCCESS);
}

cu_result cuMemImportFromShareableHandle(cu_handle *handle, void *shareable, int type)
{
	int fd = (int)(uintptr_t)shareable;
	char path[64], target[128] = "";
	struct memory *m;
	struct stat st;
	unsigned where;

	BEGIN(NEEDS_CONTEXT);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (type != CU_HANDLE_POSIX_FD || readlink(path, target, sizeof(target) - 1) < 0 ||
	    sscanf(target, "/memfd:thaw-double-%u", &where) != 1 || fstat(fd, &st))
		return end(CU_INVALID_VALUE);
	if (where != card_of(current))
		return end(CU_INVALID_DEVICE);
	m = calloc(1, sizeof(*m));
	m->card = where;
	m->size = (size_t)st.st_size;
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	m->handles = 1;
	m->imported = m->exportable = true;
	m->next = memories;
	memories = m;
	*handle = (cu_handle)(uintptr_t)m;
	return end(CU_SUCCESS);
}

cu_result cuMemAlloc_v2(cu_ptr *ptr, size_t size)
{
	size_t whole = (size + GRANULARITY - 1) & ~(GRANULARITY - 1);
	struct memory *m;
	struct mapping *map;
	struct range *r;
	cu_result code;

	BEGIN(NEEDS_CONTEXT);
	if (!size)
		return end(CU_INVALID_VALUE);
	code = new_memory(card_of(current), whole, false, &m);
	if (code)
		return end(code);
	r = add_range(whole, 0);
	if (!r)
		abort();
	map = add_mapping(r->addr, m);
	map->access = map->plain = true;
	m->handles = 0;
	*ptr = r->addr;
	return end(CU_SUCCESS);
}

cu_result cuMemFree_v2(cu_ptr ptr)
{
	struct mapping *m;
	struct range *r;

	BEGIN_RELEASE(code);
	m = mapping_at(ptr, 1);
	if (!m || m->addr != ptr || !m->plain)
		return end(CU_INVALID_VALUE);
	for (r = ranges; r && r->addr != ptr; r = r->next)
		;
	munmap((void *)(uintptr_t)ptr, m->size);
	drop_mapping(m);
	UNLINK(ranges, r);
	free(r);
	return end(code);
}

/* -- pinned host memory ------------------------------------------------------------------------------- */

static struct host *host_at(const void *ptr, size_t len)
{
	const uint8_t *p = ptr;

	for (struct host *h = hosts; h; h = h->next) {
		if (p >= h->ptr && (size_t)(p - h->ptr) <= h->size && len <= h->size - (size_t)(p - h->ptr))
			return h;
	}
	return NULL;
}

static void add_host(void *ptr, size_t size, bool registered)
{
	struct host *h = calloc(1, sizeof(*h));

	h->ptr = ptr;
	h->size = size;
	h->registered = registered;
	h->next = hosts;
	hosts = h;
}

static void drop_host(struct host *h)
{
	if (h->in_flight && !(current && current->sticky))
		violation("pinned memory given back with %d copies in flight", h->in_flight);
	while (h->in_flight)
		pthread_cond_wait(&moved, &lock);
	UNLINK(hosts, h);
	free(h);
}

cu_result cuMemHostAlloc(void **ptr, size_t size, unsigned flags)
{
	void *p;

	BEGIN(NEEDS_CONTEXT);
	(void)flags;
	p = size ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
	if (p == MAP_FAILED)
		return end(size ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE);
	add_host(p, size, false);
	*ptr = p;
	return end(CU_SUCCESS);
}

cu_result cuMemFreeHost(void *ptr)
{
	struct host *h;
	size_t size;

	BEGIN_RELEASE(code);
	h = host_at(ptr, 1);
	if (!h || h->ptr != ptr || h->registered)
		return end(CU_INVALID_VALUE);
	size = h->size;
	drop_host(h);
	munmap(ptr, size);
	return end(code);
}

/* does anything in a range come from a file that is not a memfd? */
static bool has_file_pages(const void *ptr, size_t size)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t from = (uintptr_t)ptr, to = from + size;
	char line[512];
	bool found = false;

	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long start, stop, inode;
		char path[256] = "";

		if (sscanf(line, "%lx-%lx %*s %*s %*s %lu %255s", &start, &stop, &inode, path) < 3)
			continue;
		if (start < to && from < stop && inode && strncmp(path, "/memfd:", 7) != 0)
			found = true;
	}
	if (maps)
		fclose(maps);
	return found;
}

cu_result cuMemHostRegister_v2(void *ptr, size_t size, unsigned flags)
{
	BEGIN(NEEDS_CONTEXT);
	(void)flags;
	if (!set.registering)
		return end(CU_NOT_PERMITTED);
	if (!size || has_file_pages(ptr, size))
		return end(CU_INVALID_VALUE);
	for (struct host *h = hosts; h; h = h->next) {
		if (h->ptr < (uint8_t *)ptr + size && (uint8_t *)ptr < h->ptr + h->size)
			return end(CU_HOST_MEMORY_ALREADY_REGISTERED);
	}
	/* real pinning brings the pages in; where time is measured, that is to happen here too */
	if (set.nocopy)
		madvise(ptr, size, MADV_POPULATE_WRITE);
	add_host(ptr, size, true);
	return end(CU_SUCCESS);
}

cu_result cuMemHostUnregister(void *ptr)
{
	struct host *h;

	BEGIN_RELEASE(code);
	h = host_at(ptr, 1);
	if (!h || h->ptr != ptr || !h->registered)
		return end(CU_INVALID_VALUE);
	drop_host(h);
	return end(code);
}

/* -- streams ------------------------------------------------------------------------------------------ */

static uint64_t sum_of(const void *ptr, size_t len)
{
	const uint8_t *p = ptr;
	uint64_t sum = len;

	for (; len >= 8; p += 8, len -= 8) {
		uint64_t v;

		memcpy(&v, p, 8);
		sum = (sum ^ v) * 0x9e3779b97f4a7c15u;
	}
	while (len--)
		sum = (sum ^ *p++) * 0x9e3779b97f4a7c15u;
	return sum;
}

static void sleep_us(uint64_t us)
{
	struct timespec t = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };

	while (us && nanosleep(&t, &t) && errno == EINTR)
		;
}

static void set_bytes(struct op *op)
{
	uint8_t *to = op->mapping->alias + op->off;
	size_t head = -(uintptr_t)to & 4095, len = op->len;

	/* whole pages of zeros cost nothing */
	if (op->value || len < head + (1 << 20)) {
		memset(to, op->value, len);
		return;
	}
	memset(to, 0, head);
	if (fallocate(op->mapping->memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(op->off + head),
		      (off_t)((len - head) & ~4095ul)))
		abort();
	memset(to + head + ((len - head) & ~4095ul), 0, (len - head) & 4095);
}

static void execute(struct op *op)
{
	if (op->kind == OP_EVENT)
		return;
	sleep_us((uint64_t)set.delay_us);
	if (set.mbps && op->kind != OP_SET)
		sleep_us(op->len / (uint64_t)set.mbps);
	if (op->kind == OP_IN && set.check && op->sum && sum_of(op->ptr, op->len) != op->sum) {
		pthread_mutex_lock(&lock);
		violation("the source of a copy of %zu bytes changed before it was made", op->len);
		pthread_mutex_unlock(&lock);
	}
	if (set.nocopy)
		return;
	if (op->kind == OP_IN)
		memcpy(op->mapping->alias + op->off, op->ptr, op->len);
	else if (op->kind == OP_OUT)
		memcpy(op->ptr, op->mapping->alias + op->off, op->len);
	else
		set_bytes(op);
}

static void finish(cu_stream s, struct op *op)
{
	if (op->kind == OP_EVENT) {
		if (op->turn > op->event->reached)
			op->event->reached = op->turn;
	} else {
		op->mapping->in_flight--;
		if (op->host)
			op->host->in_flight--;
		n_async++;
		if (set.async_at && n_async == set.async_at) {
			n_fired++;
			contexts[s->card].sticky = (int)set.async_code;
		}
	}
	free(op);
	pthread_cond_broadcast(&moved);
}

static void *serve_stream(void *arg)
{
	cu_stream s = arg;

	pthread_mutex_lock(&lock);
	for (;;) {
		struct op *op;
		bool failed;

		while (!s->first && !s->quit)
			pthread_cond_wait(&s->work, &lock);
		op = s->first;
		if (!op)
			break;
		s->first = op->next;
		if (!s->first)
			s->last = &s->first;
		s->busy = true;
		failed = contexts[s->card].sticky != 0;
		pthread_mutex_unlock(&lock);
		/* a lost device does nothing any more, but comes to an end of it */
		if (!failed)
			execute(op);
		pthread_mutex_lock(&lock);
		s->busy = false;
		finish(s, op);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

cu_result cuStreamCreate(cu_stream *stream, unsigned flags)
{
	cu_stream s;

	BEGIN(NEEDS_CONTEXT);
	if (flags > CU_FLAG_NON_BLOCKING)
		return end(CU_INVALID_VALUE);
	s = calloc(1, sizeof(*s));
	s->card = card_of(current);
	s->last = &s->first;
	pthread_cond_init(&s->work, NULL);
	if (pthread_create(&s->thread, NULL, serve_stream, s))
		abort();
	s->next = streams;
	streams = s;
	*stream = s;
	return end(CU_SUCCESS);
}

static bool is_stream(cu_stream stream)
{
	cu_stream s = streams;

	while (s && s != stream)
		s = s->next;
	return s && s->card == card_of(current);
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
	BEGIN_RELEASE(code);
	if (!is_stream(stream))
		return end(CU_INVALID_HANDLE);
	UNLINK(streams, stream);
	stream->quit = true;
	pthread_cond_signal(&stream->work);
	pthread_mutex_unlock(&lock);
	pthread_join(stream->thread, NULL);
	pthread_cond_destroy(&stream->work);
	free(stream);
	return code;
}

cu_result cuStreamSynchronize(cu_stream stream)
{
	/* an error of something before is reported after the wait */
	BEGIN_RELEASE(code);
	if (!is_stream(stream))
		return end(CU_INVALID_HANDLE);
	while (stream->first || stream->busy)
		pthread_cond_wait(&moved, &lock);
	return end(code ? code : current->sticky);
}

static void put(cu_stream s, struct op op)
{
	struct op *copy = malloc(sizeof(*copy));

	*copy = op;
	*s->last = copy;
	s->last = &copy->next;
	pthread_cond_signal(&s->work);
}

/* a copy or a fill, after the checks that all have in common; @op.ptr: host memory, or NULL */
static cu_result put_copy(cu_stream stream, cu_ptr addr, struct op op)
{
	if (!is_stream(stream))
		return CU_INVALID_HANDLE;
	op.mapping = mapping_at(addr, op.len);
	if (!op.len || !op.mapping || !op.mapping->access || op.mapping->memory->card != stream->card)
		return CU_INVALID_VALUE;
	op.off = (size_t)(addr - op.mapping->addr);
	if (op.ptr) {
		op.host = host_at(op.ptr, op.len);
		if (!op.host)
			violation("a copy of %zu bytes with memory that is not pinned", op.len);
		else
			op.host->in_flight++;
	}
	if (op.ptr && op.kind == OP_IN && set.check)
		op.sum = sum_of(op.ptr, op.len);
	op.mapping->in_flight++;
	put(stream, op);
	return CU_SUCCESS;
}

cu_result cuMemcpyHtoDAsync_v2(cu_ptr to, const void *from, size_t len, cu_stream stream)
{
	BEGIN(NEEDS_CONTEXT);
	return end(put_copy(stream, to, (struct op){ .kind = OP_IN, .ptr = (void *)from, .len = len }));
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_ptr from, size_t len, cu_stream stream)
{
	BEGIN(NEEDS_CONTEXT);
	return end(put_copy(stream, from, (struct op){ .kind = OP_OUT, .ptr = to, .len = len }));
}

cu_result cuMemsetD8Async(cu_ptr to, unsigned char value, size_t len, cu_stream stream)
{
	BEGIN(NEEDS_CONTEXT);
	return end(put_copy(stream, to, (struct op){ .kind = OP_SET, .value = value, .len = len }));
}

cu_result cuEventCreate(cu_event *event, unsigned flags)
{
	cu_event e;

	BEGIN(NEEDS_CONTEXT);
	if (flags & ~3u)
		return end(CU_INVALID_VALUE);
	e = calloc(1, sizeof(*e));
	e->card = card_of(current);
	e->next = events;
	events = e;
	*event = e;
	return end(CU_SUCCESS);
}

static bool is_event(cu_event event)
{
	cu_event e = events;

	while (e && e != event)
		e = e->next;
	return e && e->card == card_of(current);
}

cu_result cuEventDestroy_v2(cu_event event)
{
	BEGIN_RELEASE(code);
	if (!is_event(event))
		return end(CU_INVALID_HANDLE);
	while (event->reached < event->put)
		pthread_cond_wait(&moved, &lock);
	UNLINK(events, event);
	free(event);
	return end(code);
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
	BEGIN(NEEDS_CONTEXT);
	if (!is_event(event) || !is_stream(stream))
		return end(CU_INVALID_HANDLE);
	event->put++;
	put(stream, (struct op){ .kind = OP_EVENT, .event = event, .turn = event->put });
	return end(CU_SUCCESS);
}

cu_result cuEventSynchronize(cu_event event)
{
	uint64_t turn;

	BEGIN_RELEASE(code);
	if (!is_event(event))
		return end(CU_INVALID_HANDLE);
	turn = event->put;
	while (event->reached < turn)
		pthread_cond_wait(&moved, &lock);
	return end(code ? code : current->sticky);
}

/* -- checkpoints --------------------------------------------------------------------------------------- */

/*
 * A process that can be checkpointed is a file of $THAW_DOUBLE_STATE with its number as name: "state storage rss",
 * where storage are the bytes of its device memory on each card, and rss is what was resident when it was restored.
 */
struct process {
	int state;
	long storage, rss;
};

/* what was handed out by a restore: one at a time is enough */
static struct {
	struct cu_storage head;
	struct cu_storage_device devices[MAX_DEVICES];
	struct mapping *maps[MAX_DEVICES];
	int pid;
	bool used;
} handed_out;

static bool process_path(int pid, const char *suffix, char path[256])
{
	const char *dir = getenv("THAW_DOUBLE_STATE");

	return dir && snprintf(path, 256, "%s/%d%s", dir, pid, suffix) < 256;
}

static cu_result load_process(int pid, struct process *ret)
{
	char path[256];
	FILE *f = process_path(pid, "", path) ? fopen(path, "re") : NULL;
	int n;

	if (!f)
		return CU_INVALID_VALUE;
	n = fscanf(f, "%d %ld %ld", &ret->state, &ret->storage, &ret->rss);
	fclose(f);
	return n == 3 ? CU_SUCCESS : CU_INVALID_VALUE;
}

static void store_process(int pid, const struct process *p)
{
	char path[256];
	FILE *f = process_path(pid, "", path) ? fopen(path, "we") : NULL;

	if (!f)
		abort();
	fprintf(f, "%d %ld %ld\n", p->state, p->storage, p->rss);
	fclose(f);
}

static long resident_kib(int pid)
{
	char path[64];
	long total = 0, resident = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%ld %ld", &total, &resident) != 2)
		resident = 0;
	if (f)
		fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

cu_result cuCheckpointProcessGetState(int pid, int *state)
{
	struct process p;
	cu_result code;

	BEGIN(NEEDS_INIT);
	code = load_process(pid, &p);
	if (!code)
		*state = p.state;
	return end(code);
}

static cu_result change_state(int pid, int from, int to)
{
	struct process p;
	cu_result code = load_process(pid, &p);

	if (code)
		return code;
	if (p.state != from)
		return CU_ILLEGAL_STATE;
	p.state = to;
	store_process(pid, &p);
	return CU_SUCCESS;
}

cu_result cuCheckpointProcessLock(int pid, struct cu_lock_args *args)
{
	(void)args;
	BEGIN(NEEDS_INIT);
	return end(change_state(pid, CU_PROCESS_RUNNING, CU_PROCESS_LOCKED));
}

cu_result cuCheckpointProcessCheckpoint(int pid, struct cu_checkpoint_args *args)
{
	(void)args;
	BEGIN(NEEDS_INIT);
	return end(change_state(pid, CU_PROCESS_LOCKED, CU_PROCESS_CHECKPOINTED));
}

cu_result cuCheckpointProcessUnlock(int pid, struct cu_unlock_args *args)
{
	(void)args;
	BEGIN(NEEDS_INIT);
	return end(change_state(pid, CU_PROCESS_LOCKED, CU_PROCESS_RUNNING));
}

/* each card of this machine is the target of one entry of the map */
static bool map_is_whole(const struct cu_restore_args *args)
{
	unsigned seen = 0;

	for (unsigned i = 0; i < args->n_pairs; i++) {
		unsigned c = (unsigned char)args->pairs[i].after.bytes[15];

		if (c >= (unsigned)set.devices || args->pairs[i].after.bytes[0] != 0x10)
			return false;
		seen |= 1u << c;
	}
	return seen == (1u << set.devices) - 1;
}

static cu_result hand_out(const struct process *p, int pid, struct cu_storage **ret)
{
	size_t size = ((size_t)p->storage + GRANULARITY - 1) & ~(GRANULARITY - 1);

	if (handed_out.used)
		return CU_ILLEGAL_STATE;
	for (int i = 0; i < set.devices; i++) {
		struct memory *m;
		struct range *r;
		cu_result code = new_memory(card(i), size, false, &m);

		if (code)
			return code;
		r = add_range(size, 0);
		handed_out.maps[i] = add_mapping(r->addr, m);
		handed_out.maps[i]->access = handed_out.maps[i]->plain = true;
		m->handles = 0;
		handed_out.devices[i] = (struct cu_storage_device){ .ptr = r->addr, .size = (size_t)p->storage };
	}
	handed_out.head.handle = &handed_out;
	handed_out.head.devices = handed_out.devices;
	handed_out.head.n_devices = (unsigned)set.devices;
	handed_out.pid = pid;
	handed_out.used = true;
	*ret = &handed_out.head;
	return CU_SUCCESS;
}

cu_result cuCheckpointProcessRestore(int pid, struct cu_restore_args *args)
{
	struct process p;
	cu_result code;

	BEGIN(NEEDS_INIT);
	code = load_process(pid, &p);
	if (code)
		return end(code);
	if (p.state != CU_PROCESS_CHECKPOINTED)
		return end(CU_ILLEGAL_STATE);
	if (args->n_pairs && !map_is_whole(args))
		return end(CU_INVALID_VALUE);
	if (set.storage && args->storage)
		code = hand_out(&p, pid, args->storage);
	if (code)
		return end(code);
	p.state = CU_PROCESS_LOCKED;
	p.rss = resident_kib(pid);
	store_process(pid, &p);
	return end(CU_SUCCESS);
}

/* what was put into the storage is left in files, for a test to look at */
cu_result cuCheckpointOperationComplete(void *handle)
{
	cu_result code = begin(NEEDS_INIT);

	if (handle != &handed_out || !handed_out.used)
		return end(CU_INVALID_HANDLE);
	for (unsigned i = 0; i < handed_out.head.n_devices; i++) {
		struct mapping *m = handed_out.maps[i];
		char path[256], suffix[16];
		struct range *r;
		FILE *f;

		snprintf(suffix, sizeof(suffix), ".%u", i);
		f = process_path(handed_out.pid, suffix, path) ? fopen(path, "we") : NULL;
		if (!f || fwrite(m->alias, 1, handed_out.devices[i].size, f) != handed_out.devices[i].size)
			abort();
		fclose(f);
		for (r = ranges; r && r->addr != m->addr; r = r->next)
			;
		munmap((void *)(uintptr_t)m->addr, m->size);
		drop_mapping(m);
		UNLINK(ranges, r);
		free(r);
	}
	handed_out.used = false;
	return end(code);
}
