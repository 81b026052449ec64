/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs maps: address spaces and their regions, as in /proc/PID/maps, with what each takes. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/describe.h"
#include "imgfmt/usage.h"

static const struct option longs[] = {
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_BASE_PATH,
	CLI_LONG_END,
};

struct maps {
	const struct cli *cli;
	struct image *img;
	struct usage *usage;
	struct json js;
};

/* sizes stand in key=value pairs here, so without a space */
static void put_size(const struct cli *cli, const char *key, uint64_t bytes)
{
	char text[SIZE_TEXT_EXACT];
	const char *space;

	cli_size_text(cli, bytes, text);
	space = strchr(text, ' ');
	printf("%s=%.*s%s", key, space ? (int)(space - text) : (int)strlen(text), text, space ? space + 1 : "");
}

static void put_region_text(const struct cli *cli, const struct image_region *region, const struct usage_sum *sum)
{
	describe_put_region(stdout, region);
	put_size(cli, "\tstored", usage_stored(sum));
	put_size(cli, " zero", sum->hole);
	put_size(cli, " absent", sum->absent);
	put_size(cli, " shared", sum->shared);
	if (sum->base)
		put_size(cli, " base", sum->base);
	putchar('\n');
}

static void put_region_json(struct json *js, const struct image_region *region, const struct usage_sum *sum)
{
	char text[5], range[40];

	json_object_line(js, NULL);
	json_u64(js, "addr", region->addr);
	json_u64(js, "len", region->len);
	json_string(js, "range", describe_range(region, range));
	json_string(js, "perms", describe_perms(region, text));
	json_u64(js, "flags", region->flags);
	json_u64(js, "pgoff", region->pgoff);
	json_bytes(js, "name", region->name_len ? region->name : "", region->name_len);
	json_u64(js, "stored_bytes", usage_stored(sum));
	json_u64(js, "zero_bytes", sum->hole);
	json_u64(js, "absent_bytes", sum->absent);
	json_u64(js, "shared_bytes", sum->shared);
	json_u64(js, "base_bytes", sum->base);
	json_close(js);
}

static int put_regions(struct maps *m, const struct image_space *space)
{
	for (uint32_t i = 0; i < space->n_regions; i++) {
		struct image_region region;
		struct usage_sum sum = { 0 };
		int err = image_region(m->img, space, i, &region);

		if (!err)
			err = usage_add_view(m->usage, space, region.addr, region.len, &sum);
		if (err)
			return err;
		if (m->cli->json)
			put_region_json(&m->js, &region, &sum);
		else
			put_region_text(m->cli, &region, &sum);
	}
	return 0;
}

static void put_space_text(const struct image_space *space, const char *member, bool first)
{
	printf("%s# ", first ? "" : "\n");
	cli_print_name(stdout, space->name, space->name_len);
	printf(" (%s, ", describe_space_kind(space->kind));
	if (space->pid)
		printf("pid %u, ", space->pid);
	printf("%u region%s, in ", space->n_regions, cli_plural(space->n_regions));
	cli_print_name(stdout, member, strlen(member));
	printf(")\n");
}

static int put_space(struct maps *m, uint32_t index, bool first)
{
	_cleanup_free_ char *member = NULL;
	struct image_space space;
	int err = image_space(m->img, index, &space);

	if (!err)
		err = image_inode_path(m->img, space.ino, &member);
	if (err)
		return err;
	if (!m->cli->json) {
		put_space_text(&space, member, first);
		return put_regions(m, &space);
	}
	json_object(&m->js, NULL);
	json_bytes(&m->js, "name", space.name, space.name_len);
	json_string(&m->js, "kind", describe_space_kind(space.kind));
	json_string(&m->js, "member", member);
	json_u64(&m->js, "pid", space.pid);
	json_array(&m->js, "regions");
	err = put_regions(m, &space);
	json_close(&m->js);
	json_close(&m->js);
	return err;
}

/* the spaces [first, end) */
static int put_spaces(struct maps *m, uint32_t first, uint32_t end)
{
	int err = 0;

	if (m->cli->json) {
		json_begin(&m->js, stdout);
		json_object(&m->js, NULL);
		json_string(&m->js, "image", image_path(m->img));
		json_array(&m->js, "spaces");
	}
	for (uint32_t i = first; !err && i < end; i++)
		err = put_space(m, i, i == first);
	if (m->cli->json) {
		json_close(&m->js);
		json_bool(&m->js, "complete", err == 0);
		json_close(&m->js);
		json_end(&m->js);
	}
	return err;
}

static int do_maps(struct maps *m, const char *name)
{
	uint32_t first = 0, end = (uint32_t)image_info(m->img)->n_spaces;
	int err;

	if (name) {
		err = image_space_find(m->img, name, strlen(name), &first);
		if (err == -ENOENT)
			log_error("cannot find address space '%s' in '%s': 'thawfs info' lists those there are", name,
				  image_path(m->img));
		if (err)
			return err;
		end = first + 1;
	}
	err = usage_new(m->img, &m->usage);
	if (!err)
		err = put_spaces(m, first, end);
	if (err && err != -EBADMSG)
		log_error("cannot show the regions of '%s': %s", image_path(m->img), strerror(-err));
	usage_free(m->usage);
	return err;
}

static int run_maps(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct maps m = { .cli = &cli };
	int rc;

	if (cli_getopt(&cli, argc, argv, "b", longs) != -1)
		return cli_stop_code(&cli);
	rc = cli_operands(&cli, argc, argv, 1, 2);
	if (rc)
		return rc;
	rc = cli_open_image(&cli, argv[optind], &m.img);
	if (rc)
		return cli_exit_code(rc);
	rc = do_maps(&m, argc - optind > 1 ? argv[optind + 1] : NULL);
	image_close(m.img);
	return cli_exit_code(rc);
}

const struct verb verb_maps = {
	.name = "maps",
	.synopsis = "IMAGE [NAME]",
	.summary = "Show address spaces and their regions",
	.help = "All address spaces or the one called NAME (a pid, or a member's path), each region in a line as in\n"
		"/proc/PID/maps, then a tab and: its share of stored bytes, zeros that are not stored, bytes that\n"
		"the image does not have, bytes stored once for several uses, bytes stored in base images.\n\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           as JSON\n"
		"      --base-path DIR  look for base images there too; may be repeated\n",
	.run = run_maps,
};
