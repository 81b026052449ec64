/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/describe.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/cleanup.h"

#define MAP_SHARED_FLAG  1u           /* MAP_SHARED, as the format has it */
#define MAPS_NAME_COLUMN 73           /* where /proc/PID/maps begins the name */
#define VIEW_END         (1ull << 63) /* a view has nothing at or above */

const char *describe_space_kind(uint32_t kind)
{
	static const char *const names[] = { "unknown", "dmtcp", "criu", "criu-shmem", "core" };

	return kind < ARRAY_SIZE(names) ? names[kind] : names[0];
}

const char *describe_file_format(uint32_t format)
{
	static const char *const names[] = { "plain", "dmtcp", "criu", "core", "dmtcp-gzip" };

	return format < ARRAY_SIZE(names) ? names[format] : "unknown";
}

/* cJSON wants terminated UTF-8; other bytes become U+FFFD, so that the output stays JSON */
static char *utf8_copy(const char *text, size_t len)
{
	char *out = malloc(len * 3 + 1), *w = out;
	const unsigned char *p = (const unsigned char *)text, *end = p + len;

	while (out && p < end) {
		size_t n = *p < 0x80                 ? 1
			   : *p >= 0xc2 && *p < 0xe0 ? 2
			   : (*p & 0xf0) == 0xe0     ? 3
			   : *p >= 0xf0 && *p < 0xf5 ? 4
						     : 0;
		bool good = n && n <= (size_t)(end - p) && *p;

		for (size_t i = 1; good && i < n; i++)
			good = (p[i] & 0xc0) == 0x80;
		if (good && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) ||
			     (*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f)))
			good = false;
		w = good ? (char *)memcpy(w, p, n) + n : stpcpy(w, "\xef\xbf\xbd");
		p += good ? n : 1;
	}
	if (out)
		*w = '\0';
	return out;
}

static void put_text(cJSON *to, const char *key, const char *text, size_t len)
{
	char *copy = utf8_copy(text, len);

	cJSON_AddStringToObject(to, key, copy ? copy : "");
	free(copy);
}

static void put(cJSON *to, const char *key, uint64_t value)
{
	char text[24];

	/* as text, because a double does not hold 64 bits */
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	cJSON_AddRawToObject(to, key, text);
}

static void put_numbers(cJSON *root, const struct image_info *info)
{
	const struct {
		const char *key;
		uint64_t value;
	} rows[] = {
		{ "version", info->version },
		{ "incompat_flags", info->incompat },
		{ "compat_flags", info->compat },
		{ "chunk_size", info->chunk_size },
		{ "file_size", info->file_size },
		{ "index_bytes", info->index_bytes },
		{ "logical_bytes", info->logical_bytes },
		{ "hole_bytes", info->hole_bytes },
		{ "chunk_bytes", info->chunk_bytes },
		{ "stored_bytes", info->stored_bytes },
		{ "base_bytes", info->base_bytes },
		{ "dup_bytes", info->dup_bytes },
		{ "n_files", info->n_files },
		{ "n_dirs", info->n_dirs },
		{ "n_inodes", info->n_inodes },
		{ "n_names", info->n_names },
		{ "n_extents", info->n_extents },
		{ "n_spaces", info->n_spaces },
		{ "n_regions", info->n_regions },
		{ "n_segments", info->n_segments },
		{ "n_chunks", info->n_chunks },
		{ "n_chunks_raw", info->n_chunks_raw },
		{ "n_chunks_zstd", info->n_chunks_zstd },
		{ "n_chunks_lz4", info->n_chunks_lz4 },
		{ "n_chunks_shuffled", info->n_chunks_shuffled },
		{ "n_chunks_base", info->n_chunks_base },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
		put(root, rows[i].key, rows[i].value);
}

static int put_bases(cJSON *root, struct image *img)
{
	cJSON *list = cJSON_AddArrayToObject(root, "bases");
	uint64_t n = image_info(img)->n_bases;

	for (uint32_t i = 0; i < n; i++) {
		struct image_base base;
		char id[33];
		int err = image_base(img, i, &base);
		cJSON *o = cJSON_CreateObject();

		if (!o || !cJSON_AddItemToArray(list, o)) {
			cJSON_Delete(o);
			return -ENOMEM;
		}
		if (err)
			return err;
		image_id_text(base.id, id);
		cJSON_AddStringToObject(o, "id", id);
		put_text(o, "name", base.name, base.name_len);
	}
	return 0;
}

static int put_space(cJSON *list, struct image *img, uint32_t index)
{
	_cleanup_free_ char *member = NULL;
	struct image_space space;
	cJSON *o = cJSON_CreateObject();
	int err = image_space(img, index, &space);

	if (!o || !cJSON_AddItemToArray(list, o)) {
		cJSON_Delete(o);
		return -ENOMEM;
	}
	if (!err)
		err = image_inode_path(img, space.ino, &member);
	if (err)
		return err;
	put_text(o, "name", space.name, space.name_len);
	cJSON_AddStringToObject(o, "kind", describe_space_kind(space.kind));
	put_text(o, "member", member, strlen(member));
	put(o, "pid", space.pid);
	put(o, "n_regions", space.n_regions);
	put(o, "n_segments", space.n_segments);
	return 0;
}

static int put_spaces(cJSON *root, struct image *img)
{
	cJSON *list = cJSON_AddArrayToObject(root, "spaces");
	uint64_t n = min_u64(image_info(img)->n_spaces, DESCRIBE_SPACES);

	for (uint32_t i = 0; i < n; i++) {
		int err = put_space(list, img, i);

		if (err)
			return err;
	}
	return 0;
}

static int put_properties(cJSON *root, struct image *img)
{
	const char *json;
	size_t len;
	cJSON *o;
	int err = image_properties(img, &json, &len);

	if (err)
		return err;
	o = len ? cJSON_ParseWithLength(json, len) : NULL;
	if (!cJSON_IsObject(o)) {
		cJSON_Delete(o);
		o = cJSON_CreateObject();
	}
	if (!cJSON_AddItemToObject(root, "properties", o))
		cJSON_Delete(o);
	return 0;
}

static void json_free(cJSON **json)
{
	cJSON_Delete(*json);
}

int describe_info_json(struct image *img, char **ret, size_t *ret_len)
{
	_cleanup_(json_free) cJSON *root = cJSON_CreateObject();
	_cleanup_free_ char *text = NULL;
	char id[33], *p;
	size_t len;
	int err;

	image_id_text(image_info(img)->id, id);
	put_text(root, "path", image_path(img), strlen(image_path(img)));
	cJSON_AddStringToObject(root, "id", id);
	put_numbers(root, image_info(img));
	err = put_properties(root, img);
	if (!err)
		err = put_bases(root, img);
	if (!err)
		err = put_spaces(root, img);
	if (err)
		return err;
	text = cJSON_Print(root);
	if (!text)
		return -ENOMEM;
	len = strlen(text);
	if (len > DESCRIBE_MAX)
		return -EFBIG;
	p = realloc(text, len + 2);
	if (!p)
		return -ENOMEM;
	text = NULL;
	p[len++] = '\n';
	p[len] = '\0';
	*ret = p;
	*ret_len = len;
	return 0;
}

static int add_stored(const struct image_run *run, struct describe_region *sum)
{
	struct image_chunk chunk;
	struct image *img;
	uint32_t index;
	int err = image_chunk_resolve(run->img, run->chunk, &img, &index);

	if (!err)
		err = image_chunk(img, index, &chunk);
	if (!err && chunk.logical_len)
		sum->stored_bytes += run->len * chunk.stored_len / chunk.logical_len;
	return err == -ENOENT ? 0 : err; /* a base is missing: its share is not known */
}

int describe_region(struct image *img, const struct image_space *space, const struct image_region *region,
		    struct describe_region *ret)
{
	struct describe_region sum = { 0 };
	uint64_t end = region->addr + region->len;

	if (region->addr >= VIEW_END) {
		sum.zero_bytes = region->len;
		*ret = sum;
		return 0;
	}
	if (end < region->addr || end > VIEW_END)
		end = VIEW_END;
	for (uint64_t at = region->addr; at < end;) {
		struct image_run run;
		int err = image_map_view(img, space, at, &run);

		if (err)
			return err;
		run.len = min_u64(run.len, end - at);
		if (run.kind == RUN_HOLE)
			sum.zero_bytes += run.len;
		else if (run.kind == RUN_ABSENT)
			sum.absent_bytes += run.len;
		else
			sum.data_bytes += run.len;
		err = run.kind == RUN_DATA ? add_stored(&run, &sum) : 0;
		if (err)
			return err;
		at += run.len;
	}
	*ret = sum;
	return 0;
}

static void put_name(FILE *f, const char *name, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)name[i];

		if (c < 0x20 || c == 0x7f || c == '\\')
			fprintf(f, "\\%03o", c);
		else
			putc(c, f);
	}
}

void describe_put_region(FILE *f, const struct image_region *region)
{
	unsigned long long end = region->addr + region->len;
	int width = fprintf(f, "%08llx-%08llx %c%c%c%c %08llx 00:00 0 ", (unsigned long long)region->addr, end,
			    region->prot & 1 ? 'r' : '-', region->prot & 2 ? 'w' : '-', region->prot & 4 ? 'x' : '-',
			    region->flags & MAP_SHARED_FLAG ? 's' : 'p', (unsigned long long)region->pgoff);

	if (region->name_len) {
		fprintf(f, "%*s", width < MAPS_NAME_COLUMN ? MAPS_NAME_COLUMN - width : 0, "");
		put_name(f, region->name, region->name_len);
	}
}

static int put_region(FILE *f, struct image *img, const struct image_space *space, uint32_t index)
{
	struct image_region region;
	struct describe_region sum;
	int err = image_region(img, space, index, &region);

	if (!err)
		err = describe_region(img, space, &region, &sum);
	if (err)
		return err;
	describe_put_region(f, &region);
	fprintf(f, "\tstored=%llu zero=%llu absent=%llu\n", (unsigned long long)sum.stored_bytes,
		(unsigned long long)sum.zero_bytes, (unsigned long long)sum.absent_bytes);
	return 0;
}

int describe_maps_text(struct image *img, uint32_t space_index, char **ret, size_t *ret_len)
{
	_cleanup_free_ char *text = NULL;
	struct image_space space;
	size_t len = 0;
	FILE *f;
	int err = image_space(img, space_index, &space);

	if (err)
		return err;
	f = open_memstream(&text, &len);
	if (!f)
		return -ENOMEM;
	for (uint32_t i = 0; !err && i < space.n_regions; i++) {
		err = put_region(f, img, &space, i);
		if (!err && ftell(f) > (long)DESCRIBE_MAX)
			err = -EFBIG;
	}
	if (fclose(f) && !err)
		err = -ENOMEM;
	if (err)
		return err;
	*ret = steal_ptr(&text);
	*ret_len = len;
	return 0;
}
