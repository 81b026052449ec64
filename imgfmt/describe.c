/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/describe.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/json.h"

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

static void put_numbers(struct json *js, const struct image_info *info)
{
	json_u64(js, "version", info->version);
	json_u64(js, "incompat_flags", info->incompat);
	json_u64(js, "compat_flags", info->compat);
	json_u64(js, "chunk_size", info->chunk_size);
	json_u64(js, "file_size", info->file_size);
	json_u64(js, "index_bytes", info->index_bytes);
	json_u64(js, "logical_bytes", info->logical_bytes);
	json_u64(js, "hole_bytes", info->hole_bytes);
	json_u64(js, "chunk_bytes", info->chunk_bytes);
	json_u64(js, "stored_bytes", info->stored_bytes);
	json_u64(js, "base_bytes", info->base_bytes);
	json_u64(js, "dup_bytes", info->dup_bytes);
	json_u64(js, "n_files", info->n_files);
	json_u64(js, "n_dirs", info->n_dirs);
	json_u64(js, "n_inodes", info->n_inodes);
	json_u64(js, "n_names", info->n_names);
	json_u64(js, "n_extents", info->n_extents);
	json_u64(js, "n_spaces", info->n_spaces);
	json_u64(js, "n_regions", info->n_regions);
	json_u64(js, "n_segments", info->n_segments);
	json_u64(js, "n_chunks", info->n_chunks);
	json_u64(js, "n_chunks_raw", info->n_chunks_raw);
	json_u64(js, "n_chunks_zstd", info->n_chunks_zstd);
	json_u64(js, "n_chunks_lz4", info->n_chunks_lz4);
	json_u64(js, "n_chunks_shuffled", info->n_chunks_shuffled);
	json_u64(js, "n_chunks_base", info->n_chunks_base);
}

static int put_bases(struct json *js, struct image *img)
{
	uint64_t n = image_info(img)->n_bases;
	int err = 0;

	json_array(js, "bases");
	for (uint32_t i = 0; i < n && !err; i++) {
		struct image_base base;
		char id[33];

		err = image_base(img, i, &base);
		if (err)
			break;
		image_id_text(base.id, id);
		json_object_line(js, NULL);
		json_string(js, "id", id);
		json_bytes(js, "name", base.name, base.name_len);
		json_close(js);
	}
	json_close(js);
	return err;
}

static int put_space(struct json *js, struct image *img, uint32_t index)
{
	_cleanup_free_ char *member = NULL;
	struct image_space space;
	int err = image_space(img, index, &space);

	if (!err)
		err = image_inode_path(img, space.ino, &member);
	if (err)
		return err;
	json_object_line(js, NULL);
	json_bytes(js, "name", space.name, space.name_len);
	json_string(js, "kind", describe_space_kind(space.kind));
	json_string(js, "member", member);
	json_u64(js, "pid", space.pid);
	json_u64(js, "n_regions", space.n_regions);
	json_u64(js, "n_segments", space.n_segments);
	json_close(js);
	return 0;
}

static int put_spaces(struct json *js, struct image *img)
{
	uint64_t n = min_u64(image_info(img)->n_spaces, DESCRIBE_SPACES);
	int err = 0;

	json_array(js, "spaces");
	for (uint32_t i = 0; i < n && !err; i++)
		err = put_space(js, img, i);
	json_close(js);
	return err;
}

static void json_free(cJSON **json)
{
	cJSON_Delete(*json);
}

/* parsed and printed anew, so that whatever the image has there the whole stays JSON */
static int put_properties(struct json *js, struct image *img)
{
	_cleanup_(json_free) cJSON *o = NULL;
	_cleanup_free_ char *text = NULL;
	const char *json;
	size_t len;
	int err = image_properties(img, &json, &len);

	if (err)
		return err;
	o = len ? cJSON_ParseWithLength(json, len) : NULL;
	if (cJSON_IsObject(o))
		text = cJSON_PrintUnformatted(o);
	json_raw(js, "properties", text ? text : "{}");
	return 0;
}

static int put_info(struct json *js, struct image *img)
{
	char id[33];
	int err;

	image_id_text(image_info(img)->id, id);
	json_object(js, NULL);
	json_string(js, "path", image_path(img));
	json_string(js, "id", id);
	put_numbers(js, image_info(img));
	err = put_properties(js, img);
	if (!err)
		err = put_bases(js, img);
	if (!err)
		err = put_spaces(js, img);
	json_close(js);
	if (!err)
		json_end(js);
	return err;
}

int describe_info_json(struct image *img, char **ret, size_t *ret_len)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	struct json js;
	FILE *f = open_memstream(&text, &len);
	int err;

	if (!f)
		return -ENOMEM;
	json_begin(&js, f);
	err = put_info(&js, img);
	if (fclose(f) && !err)
		err = -ENOMEM;
	if (!err && len > DESCRIBE_MAX)
		err = -EFBIG;
	if (err)
		return err;
	*ret = steal_ptr(&text);
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

void describe_put_name(FILE *f, const char *name, size_t len)
{
	const uint8_t *p = (const uint8_t *)name;

	for (size_t i = 0, n; i < len; i += n) {
		bool plain;

		n = utf8_sequence(p + i, len - i);
		/* U+0080 to U+009F are control characters too: a terminal may take them for commands */
		plain = n == 1 ? p[i] >= 0x20 && p[i] != 0x7f && p[i] != '\\' : n && !(p[i] == 0xc2 && p[i + 1] < 0xa0);
		n = n ? n : 1;
		for (size_t k = i; k < i + n; k++) {
			if (plain)
				putc(p[k], f);
			else
				fprintf(f, "\\%03o", p[k]);
		}
	}
}

const char *describe_perms(const struct image_region *region, char ret[5])
{
	ret[0] = region->prot & 1 ? 'r' : '-';
	ret[1] = region->prot & 2 ? 'w' : '-';
	ret[2] = region->prot & 4 ? 'x' : '-';
	ret[3] = region->flags & MAP_SHARED_FLAG ? 's' : 'p';
	ret[4] = '\0';
	return ret;
}

const char *describe_range(const struct image_region *region, char ret[40])
{
	unsigned long long end = region->addr + region->len;

	if (end)
		snprintf(ret, 40, "%08llx-%08llx", (unsigned long long)region->addr, end);
	else
		snprintf(ret, 40, "%08llx-10000000000000000", (unsigned long long)region->addr);
	return ret;
}

void describe_put_region(FILE *f, const struct image_region *region)
{
	char perms[5], range[40];
	int width = fprintf(f, "%s %s %08llx 00:00 0 ", describe_range(region, range), describe_perms(region, perms),
			    (unsigned long long)region->pgoff);

	if (region->name_len) {
		fprintf(f, "%*s", width < MAPS_NAME_COLUMN ? MAPS_NAME_COLUMN - width : 0, "");
		describe_put_name(f, region->name, region->name_len);
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
