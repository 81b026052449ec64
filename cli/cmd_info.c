/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs info: the image as a whole. The JSON is the text that a mount shows as .thaw/info.json. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/describe.h"

static const struct option longs[] = {
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_END,
};

static void print_size(const struct cli *cli, const char *what, uint64_t bytes, const char *more)
{
	char text[SIZE_TEXT_EXACT];

	printf("%-12s %s%s%s\n", what, cli_size_text(cli, bytes, text), *more ? "  " : "", more);
}

static void print_sizes(const struct cli *cli, const struct image_info *in)
{
	uint64_t data = in->logical_bytes - min_u64(in->hole_bytes, in->logical_bytes);
	char more[160];

	snprintf(more, sizeof(more), "in %" PRIu64 " file%s and %" PRIu64 " director%s", in->n_files,
		 cli_plural(in->n_files), in->n_dirs, in->n_dirs == 1 ? "y" : "ies");
	print_size(cli, "logical:", in->logical_bytes, more);
	more[0] = '\0';
	if (in->logical_bytes)
		snprintf(more, sizeof(more), "%.1f %%", 100.0 * (double)in->hole_bytes / (double)in->logical_bytes);
	print_size(cli, "holes:", in->hole_bytes, more);
	print_size(cli, "shared:", in->dup_bytes, "");
	if (in->n_bases)
		print_size(cli, "in bases:", in->base_bytes, "");
	more[0] = '\0';
	if (in->stored_bytes)
		snprintf(more, sizeof(more), "ratio %.2f", (double)in->chunk_bytes / (double)in->stored_bytes);
	print_size(cli, "stored:", in->stored_bytes, more);
	print_size(cli, "index:", in->index_bytes, "");
	more[0] = '\0';
	if (in->file_size && data)
		snprintf(more, sizeof(more), "ratio %.2f without holes", (double)data / (double)in->file_size);
	print_size(cli, "image:", in->file_size, more);
}

static void print_chunks(const struct cli *cli, const struct image_info *in)
{
	char size[SIZE_TEXT_EXACT];

	printf("%-12s %" PRIu64 " of up to %s:", "chunks:", in->n_chunks, cli_size_text(cli, in->chunk_size, size));
	printf(" %" PRIu64 " zstd, %" PRIu64 " lz4, %" PRIu64 " raw, %" PRIu64 " in bases; %" PRIu64 " shuffled\n",
	       in->n_chunks_zstd, in->n_chunks_lz4, in->n_chunks_raw, in->n_chunks_base, in->n_chunks_shuffled);
}

static int print_bases(struct image *img)
{
	for (uint32_t i = 0; i < image_info(img)->n_bases; i++) {
		struct image_base base;
		char id[33];
		int err = image_base(img, i, &base);

		if (err)
			return err;
		image_id_text(base.id, id);
		printf("%-12s %s  ", "base:", id);
		cli_print_name(stdout, base.name, base.name_len);
		putchar('\n');
	}
	return 0;
}

static int print_spaces(struct image *img)
{
	for (uint32_t i = 0; i < image_info(img)->n_spaces; i++) {
		_cleanup_free_ char *member = NULL;
		struct image_space space;
		int err = image_space(img, i, &space);

		if (!err)
			err = image_inode_path(img, space.ino, &member);
		if (err)
			return err;
		printf("%-12s ", "space:");
		cli_print_name(stdout, space.name, space.name_len);
		printf("  %s, %u region%s, in ", describe_space_kind(space.kind), space.n_regions,
		       cli_plural(space.n_regions));
		cli_print_name(stdout, member, strlen(member));
		putchar('\n');
	}
	return 0;
}

static void print_text(const char *what, const cJSON *item)
{
	if (!cJSON_IsString(item))
		return;
	printf("%-12s ", what);
	cli_print_name(stdout, item->valuestring, strlen(item->valuestring));
	putchar('\n');
}

static int print_properties(struct image *img)
{
	static const char *const keys[] = { "source", "creator", "host", "created" };
	const char *text;
	const cJSON *item;
	cJSON *root;
	size_t len;
	int err = image_properties(img, &text, &len);

	if (err || !len)
		return err;
	root = cJSON_ParseWithLength(text, len);
	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		char what[16];

		snprintf(what, sizeof(what), "%s:", keys[i]);
		print_text(what, cJSON_GetObjectItemCaseSensitive(root, keys[i]));
	}
	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "labels"))
	{
		/* in an array, which only a damaged image has there, they have no names */
		if (!item->string || !cJSON_IsString(item))
			continue;
		printf("%-12s ", "label:");
		cli_print_name(stdout, item->string, strlen(item->string));
		print_text(" =", item);
	}
	cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "notes")) print_text("note:", item);
	cJSON_Delete(root);
	return 0;
}

static int print_info(const struct cli *cli, struct image *img)
{
	const struct image_info *in = image_info(img);
	char id[33];
	int err;

	image_id_text(in->id, id);
	printf("%-12s ", "path:");
	cli_print_name(stdout, image_path(img), strlen(image_path(img)));
	printf("\n%-12s %s\n%-12s %u\n", "id:", id, "version:", in->version);
	print_sizes(cli, in);
	print_chunks(cli, in);
	err = print_properties(img);
	if (!err)
		err = print_bases(img);
	if (!err)
		err = print_spaces(img);
	return err;
}

static int print_json(struct image *img)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	int err = describe_info_json(img, &text, &len);

	if (!err)
		fwrite(text, 1, len, stdout);
	return err;
}

static int run_info(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct image *img;
	int rc;

	if (cli_getopt(&cli, argc, argv, "b", longs) != -1)
		return cli_stop_code(&cli);
	rc = cli_operands(&cli, argc, argv, 1, 1);
	if (rc)
		return rc;
	rc = cli_open_image(&cli, argv[optind], &img);
	if (rc)
		return cli_exit_code(rc);
	rc = cli.json ? print_json(img) : print_info(&cli, img);
	if (rc && rc != -EBADMSG)
		log_error("cannot describe '%s': %s", argv[optind], strerror(-rc));
	image_close(img);
	return cli_exit_code(rc);
}

const struct verb verb_info = {
	.name = "info",
	.synopsis = "IMAGE",
	.summary = "Describe an image as a whole: sizes, chunks, bases, address spaces",
	.help = "  -b, --bytes          exact sizes\n"
		"      --json           as JSON\n",
	.run = run_info,
};
