/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/manifest.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/json.h"

#define VERSION 1
/* JSON numbers are exact up to here */
#define EXACT   (1ull << 53)

bool gpu_id_good(const char *id)
{
	size_t len = strnlen(id, GPU_ID_MAX + 1);

	if (!len || len > GPU_ID_MAX || id[0] == '.' || !strcmp(id, GPU_MANIFEST_NAME))
		return false;
	for (const char *p = id; *p; p++) {
		if (!isalnum((unsigned char)*p) && !strchr("._-", *p))
			return false;
	}
	return true;
}

struct gpu_buffer *gpu_manifest_add(struct gpu_manifest *m)
{
	struct gpu_buffer *bigger = m->buffers;

	/* doubled at each power of two */
	if (!(m->n_buffers & (m->n_buffers - 1)))
		bigger = reallocarray(m->buffers, m->n_buffers ? 2 * m->n_buffers : 1, sizeof(*bigger));
	if (!bigger)
		return NULL;
	m->buffers = bigger;
	memset(&bigger[m->n_buffers], 0, sizeof(*bigger));
	return &bigger[m->n_buffers++];
}

int gpu_manifest_add_gpu(struct gpu_manifest *m, const struct gpu_info *info)
{
	struct gpu_info *bigger;

	for (size_t i = 0; i < m->n_gpus; i++) {
		if (!memcmp(m->gpus[i].uuid, info->uuid, sizeof(info->uuid)))
			return (int)i;
	}
	if (m->n_gpus == GPU_MAX)
		return -E2BIG;
	bigger = reallocarray(m->gpus, m->n_gpus + 1, sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	m->gpus = bigger;
	bigger[m->n_gpus] = *info;
	return (int)m->n_gpus++;
}

void gpu_manifest_release(struct gpu_manifest *m)
{
	for (size_t i = 0; i < m->n_buffers; i++) {
		free(m->buffers[i].id);
		free(m->buffers[i].process);
		free(m->buffers[i].shared_with);
		free(m->buffers[i].file);
	}
	free(m->buffers);
	free(m->gpus);
	memset(m, 0, sizeof(*m));
}

/* -- writing ---------------------------------------------------------------------------------------- */

static void write_gpu(struct json *js, const struct gpu_info *info)
{
	char uuid[GPU_UUID_TEXT];

	json_object_line(js, NULL);
	json_string(js, "uuid", gpu_uuid_text(info->uuid, uuid));
	json_u64(js, "ordinal", info->ordinal);
	json_string(js, "name", info->name);
	json_format(js, "compute", "%u.%u", info->major, info->minor);
	json_u64(js, "total_bytes", info->total_bytes);
	json_close(js);
}

static void write_buffer(struct json *js, const struct gpu_buffer *b)
{
	char hex[33];

	json_object_line(js, NULL);
	json_string(js, "id", b->id);
	if (b->process)
		json_string(js, "process", b->process);
	json_u64(js, "gpu", b->gpu);
	json_string(js, "kind", b->kind == GPU_VMM ? "vmm" : "plain");
	json_format(js, "va", "0x%" PRIx64, b->va);
	json_u64(js, "size", b->size);
	json_u64(js, "mapped_size", b->mapped_size);
	json_format(js, "reserved_va", "0x%" PRIx64, b->reserved_va);
	json_u64(js, "reserved_size", b->reserved_size);
	json_u64(js, "granularity", b->granularity);
	json_bool(js, "exportable", b->exportable);
	json_bool(js, "discardable", b->discardable);
	json_array_line(js, "access");
	for (unsigned i = 0; i < GPU_MAX; i++) {
		if (b->access >> i & 1)
			json_u64(js, NULL, i);
	}
	json_close(js);
	if (b->shared_with)
		json_string(js, "shared_with", b->shared_with);
	json_string(js, "file", b->file);
	json_u64(js, "offset", b->offset);
	for (unsigned i = 0; i < sizeof(b->checksum); i++)
		snprintf(hex + 2 * i, 3, "%02x", b->checksum[i]);
	if (b->has_checksum)
		json_string(js, "xxh3_128", hex);
	json_close(js);
}

void gpu_manifest_write(const struct gpu_manifest *m, FILE *out)
{
	struct json js;

	json_begin(&js, out);
	json_object(&js, NULL);
	json_u64(&js, "version", VERSION);
	json_array(&js, "gpus");
	for (size_t i = 0; i < m->n_gpus; i++)
		write_gpu(&js, &m->gpus[i]);
	json_close(&js);
	json_array(&js, "buffers");
	for (size_t i = 0; i < m->n_buffers; i++)
		write_buffer(&js, &m->buffers[i]);
	json_close(&js);
	json_close(&js);
	json_end(&js);
}

/* -- reading ---------------------------------------------------------------------------------------- */

struct parser {
	const char *name;  /* of the manifest */
	const char *where; /* "GPU" or "buffer" */
	size_t index;
	int error;
};

__attribute__((format(printf, 2, 3))) static void bad(struct parser *p, const char *fmt, ...)
{
	char what[160];
	va_list ap;

	if (p->error)
		return;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	p->error = gpu_fail(-EBADMSG, "cannot use '%s': %s %zu: %s", p->name, p->where, p->index, what);
}

static uint64_t take_number(struct parser *p, const cJSON *in, const char *key, uint64_t max)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(in, key);

	if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0) || v->valuedouble > (double)max ||
	    v->valuedouble != (double)(uint64_t)v->valuedouble) {
		bad(p, "'%s' is missing or not a whole number up to %" PRIu64, key, max);
		return 0;
	}
	return (uint64_t)v->valuedouble;
}

static const char *take_string(struct parser *p, const cJSON *in, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(in, key);

	if (!cJSON_IsString(v)) {
		bad(p, "'%s' is missing or not a text", key);
		return "";
	}
	return v->valuestring;
}

static uint64_t take_address(struct parser *p, const cJSON *in, const char *key)
{
	const char *text = take_string(p, in, key);
	char *end = NULL;
	uint64_t v = 0;

	errno = 0;
	if (!strncmp(text, "0x", 2) && isxdigit((unsigned char)text[2]))
		v = strtoull(text, &end, 16);
	if (!end || *end || errno)
		bad(p, "'%s' is not an address", key);
	return v;
}

static bool take_bool(struct parser *p, const cJSON *in, const char *key)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(in, key);

	if (!cJSON_IsBool(v))
		bad(p, "'%s' is missing or neither true nor false", key);
	return cJSON_IsTrue(v);
}

static char *take_copy(struct parser *p, const char *text)
{
	char *copy = strdup(text);

	if (!copy && !p->error)
		p->error = gpu_fail(-ENOMEM, "cannot use '%s': out of memory", p->name);
	return copy;
}

static char *take_id(struct parser *p, const cJSON *in, const char *key)
{
	const char *text = take_string(p, in, key);

	if (!gpu_id_good(text))
		bad(p, "'%s' is not 1 to %u letters, digits, '.', '_' or '-'", key, GPU_ID_MAX);
	return take_copy(p, text);
}

static void parse_gpu(struct parser *p, const cJSON *in, struct gpu_manifest *m)
{
	struct gpu_info info = { 0 };
	int r;

	if (gpu_uuid_parse(take_string(p, in, "uuid"), info.uuid))
		bad(p, "'uuid' is not like GPU-01234567-89ab-cdef-0123-456789abcdef");
	info.ordinal = (unsigned)take_number(p, in, "ordinal", 1 << 20);
	info.total_bytes = take_number(p, in, "total_bytes", EXACT);
	strncpy(info.name, take_string(p, in, "name"), sizeof(info.name) - 1);
	if (sscanf(take_string(p, in, "compute"), "%4u.%4u", &info.major, &info.minor) != 2)
		bad(p, "'compute' is not like 9.0");
	if (p->error)
		return;
	r = gpu_manifest_add_gpu(m, &info);
	if (r == -ENOMEM)
		p->error = gpu_fail(r, "cannot use '%s': out of memory", p->name);
	else if (r != (int)p->index)
		bad(p, "it is there twice, or there are more than %u", GPU_MAX);
}

static void parse_access(struct parser *p, const cJSON *in, struct gpu_buffer *b, const struct gpu_manifest *m)
{
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(in, "access"), *v;

	if (!cJSON_IsArray(list))
		bad(p, "'access' is missing or not a list");
	cJSON_ArrayForEach(v, list)
	{
		if (!cJSON_IsNumber(v) || v->valueint < 0 || (size_t)v->valueint >= m->n_gpus)
			bad(p, "'access' has what is not a GPU of this manifest");
		else
			b->access |= 1ull << v->valueint;
	}
}

static void parse_checksum(struct parser *p, const cJSON *in, struct gpu_buffer *b)
{
	const cJSON *v = cJSON_GetObjectItemCaseSensitive(in, "xxh3_128");

	b->has_checksum = v != NULL;
	if (!v)
		return;
	if (!cJSON_IsString(v) || strlen(v->valuestring) != 32 || strspn(v->valuestring, "0123456789abcdef") != 32) {
		bad(p, "'xxh3_128' is not 32 hexadecimal digits");
		return;
	}
	for (unsigned i = 0; i < sizeof(b->checksum); i++)
		sscanf(v->valuestring + 2 * i, "%2hhx", &b->checksum[i]);
}

/* sizes and addresses have to be possible before anybody computes with them */
static void check_buffer(struct parser *p, const struct gpu_buffer *b, const struct gpu_manifest *m)
{
	uint64_t end;

	if (b->gpu >= m->n_gpus)
		bad(p, "'gpu' is not a GPU of this manifest");
	if (b->mapped_size && b->mapped_size < b->size)
		bad(p, "'mapped_size' is less than 'size'");
	if (add_overflows(b->va, b->mapped_size, &end) || add_overflows(b->reserved_va, b->reserved_size, &end))
		bad(p, "it ends behind the last address");
	if (b->reserved_size &&
	    (b->va < b->reserved_va || !range_inside(b->va - b->reserved_va, b->mapped_size, b->reserved_size)))
		bad(p, "it is not inside the range reserved for it");
	if (b->granularity & (b->granularity - 1))
		bad(p, "'granularity' is not a power of two");
	if (b->offset > EXACT - b->size)
		bad(p, "it ends behind the end of any file");
}

static void parse_buffer(struct parser *p, const cJSON *in, struct gpu_manifest *m)
{
	struct gpu_buffer *b = gpu_manifest_add(m);
	const char *kind = take_string(p, in, "kind");

	if (!b) {
		p->error = gpu_fail(-ENOMEM, "cannot use '%s': out of memory", p->name);
		return;
	}
	b->id = take_id(p, in, "id");
	b->file = take_id(p, in, "file");
	if (cJSON_GetObjectItemCaseSensitive(in, "process"))
		b->process = take_copy(p, take_string(p, in, "process"));
	if (cJSON_GetObjectItemCaseSensitive(in, "shared_with"))
		b->shared_with = take_id(p, in, "shared_with");
	if (strcmp(kind, "vmm") != 0 && strcmp(kind, "plain") != 0)
		bad(p, "'kind' is neither \"vmm\" nor \"plain\"");
	b->kind = strcmp(kind, "vmm") == 0 ? GPU_VMM : GPU_PLAIN;
	b->gpu = (uint32_t)take_number(p, in, "gpu", GPU_MAX);
	b->va = take_address(p, in, "va");
	b->size = take_number(p, in, "size", EXACT);
	b->mapped_size = take_number(p, in, "mapped_size", EXACT);
	b->reserved_va = take_address(p, in, "reserved_va");
	b->reserved_size = take_number(p, in, "reserved_size", EXACT);
	b->granularity = take_number(p, in, "granularity", 1ull << 40);
	b->exportable = take_bool(p, in, "exportable");
	b->discardable = take_bool(p, in, "discardable");
	b->offset = take_number(p, in, "offset", EXACT);
	parse_access(p, in, b, m);
	parse_checksum(p, in, b);
	check_buffer(p, b, m);
}

static int by_id(const void *a, const void *b)
{
	return strcmp((*(struct gpu_buffer *const *)a)->id, (*(struct gpu_buffer *const *)b)->id);
}

static void check_ids(struct parser *p, const struct gpu_manifest *m)
{
	struct gpu_buffer **sorted = calloc(m->n_buffers + 1, sizeof(*sorted));

	if (!sorted) {
		p->error = gpu_fail(-ENOMEM, "cannot use '%s': out of memory", p->name);
		return;
	}
	for (size_t i = 0; i < m->n_buffers; i++)
		sorted[i] = &m->buffers[i];
	qsort(sorted, m->n_buffers, sizeof(*sorted), by_id);
	for (size_t i = 1; i < m->n_buffers; i++) {
		p->index = (size_t)(sorted[i] - m->buffers);
		if (!strcmp(sorted[i - 1]->id, sorted[i]->id))
			bad(p, "the id '%s' is there twice", sorted[i]->id);
	}
	free(sorted);
}

static void parse_list(struct parser *p, const cJSON *json, const char *key, const char *where, size_t max,
		       void (*one)(struct parser *p, const cJSON *in, struct gpu_manifest *m), struct gpu_manifest *m)
{
	const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, key), *v;

	p->where = where;
	p->index = 0;
	if (!cJSON_IsArray(list))
		bad(p, "there is no list '%s'", key);
	cJSON_ArrayForEach(v, list)
	{
		if (p->error)
			return;
		if (p->index >= max)
			bad(p, "there are more than %zu", max);
		else
			one(p, v, m);
		p->index++;
	}
}

int gpu_manifest_parse(const char *name, const char *json, size_t len, struct gpu_manifest *ret)
{
	struct parser p = { .name = name, .where = "version" };
	struct gpu_manifest m = { 0 };
	cJSON *root;

	if (len > GPU_MANIFEST_MAX)
		return gpu_fail(-EBADMSG, "cannot use '%s': %zu bytes are too many", name, len);
	root = cJSON_ParseWithLength(json, len);
	if (!cJSON_IsObject(root)) {
		cJSON_Delete(root);
		return gpu_fail(-EBADMSG, "cannot use '%s': it is not a JSON object", name);
	}
	if (take_number(&p, root, "version", EXACT) > VERSION && !p.error)
		p.error = gpu_fail(-EPROTONOSUPPORT, "cannot use '%s': it is of a later version", name);
	if (!p.error)
		parse_list(&p, root, "gpus", "GPU", GPU_MAX, parse_gpu, &m);
	if (!p.error)
		parse_list(&p, root, "buffers", "buffer", GPU_MANIFEST_MAX_BUFFERS, parse_buffer, &m);
	if (!p.error)
		check_ids(&p, &m);
	cJSON_Delete(root);
	if (p.error) {
		gpu_manifest_release(&m);
		return p.error;
	}
	*ret = m;
	return 0;
}
