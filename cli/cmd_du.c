/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs du: what each file and directory holds, and what it costs in the image. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/usage.h"
#include "imgfmt/walk.h"

static const struct option longs[] = {
	{ "all", no_argument, NULL, 'a' },
	{ "summarize", no_argument, NULL, 's' },
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_BASE_PATH,
	CLI_LONG_END,
};

/* a directory that is not complete yet */
struct open_dir {
	struct usage_sum sum;
	size_t path_len;
};

struct du {
	const struct cli *cli;
	struct image *img;
	struct usage *usage;
	struct json js;
	bool all, summarize;
	struct open_dir *dirs; /* from the start down to the one at hand */
	size_t n_dirs, cap_dirs;
	uint8_t *seen;
};

static void add_sum(struct usage_sum *to, const struct usage_sum *sum)
{
	to->logical += sum->logical;
	to->hole += sum->hole;
	to->shared += sum->shared;
	to->base += sum->base;
	to->stored_fixed += sum->stored_fixed;
}

static void print_line(struct du *du, const struct usage_sum *sum, const char *path, size_t len, const char *type)
{
	char text[5][SIZE_TEXT_EXACT];
	struct json *js = &du->js;

	if (du->cli->json) {
		json_object_line(js, NULL);
		json_bytes(js, "path", path, len);
		json_string(js, "type", type);
		json_u64(js, "logical_bytes", sum->logical);
		json_u64(js, "hole_bytes", sum->hole);
		json_u64(js, "stored_bytes", usage_stored(sum));
		json_u64(js, "shared_bytes", sum->shared);
		json_u64(js, "base_bytes", sum->base);
		json_close(js);
		return;
	}
	printf("%10s %10s %10s %10s %10s  ", cli_size_text(du->cli, sum->logical, text[0]),
	       cli_size_text(du->cli, sum->hole, text[1]), cli_size_text(du->cli, usage_stored(sum), text[2]),
	       cli_size_text(du->cli, sum->shared, text[3]), cli_size_text(du->cli, sum->base, text[4]));
	cli_print_name(stdout, len ? path : "/", len ? len : 1);
	putchar('\n');
}

static int open_dir(struct du *du, size_t path_len)
{
	if (du->n_dirs == du->cap_dirs) {
		size_t cap = du->cap_dirs ? du->cap_dirs * 2 : 16;
		struct open_dir *p = reallocarray(du->dirs, cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		du->dirs = p;
		du->cap_dirs = cap;
	}
	du->dirs[du->n_dirs++] = (struct open_dir){ .path_len = path_len };
	return 0;
}

/* directories below @depth are complete: print them and add them to theirs */
static void close_dirs(struct du *du, size_t depth, const char *path)
{
	while (du->n_dirs > depth) {
		struct open_dir *dir = &du->dirs[--du->n_dirs];

		if (!du->summarize || du->n_dirs == 0)
			print_line(du, &dir->sum, path, dir->path_len, "directory");
		if (du->n_dirs)
			add_sum(&du->dirs[du->n_dirs - 1].sum, &dir->sum);
	}
}

static int add_entry(struct du *du, const struct walk *w)
{
	struct usage_sum sum = { 0 };
	int err;

	if (S_ISDIR(w->inode.mode))
		return open_dir(du, w->path_len);
	if (!S_ISREG(w->inode.mode) || !walk_first_name(w, du->seen))
		return 0; /* a file with several names counts where it is met first */
	err = usage_add_file(du->usage, &w->inode, &sum);
	if (err)
		return err;
	if ((du->all && !du->summarize) || w->depth == 0)
		print_line(du, &sum, w->path, w->path_len, "file");
	if (du->n_dirs)
		add_sum(&du->dirs[du->n_dirs - 1].sum, &sum);
	return 0;
}

/* @path of a directory that is complete is the first part of the walk's, which changes after it */
static int du_below(struct du *du, uint32_t ino, const char *path)
{
	_cleanup_free_ char *last = NULL;
	struct walk w;
	int err = walk_start(&w, du->img, ino, path), more;

	if (err)
		return err;
	while ((more = walk_next(&w)) == 1 && !err) {
		if (last)
			close_dirs(du, w.depth, last);
		if (S_ISDIR(w.inode.mode)) {
			free(last);
			last = strdup(w.path);
		}
		err = S_ISDIR(w.inode.mode) && !last ? -ENOMEM : add_entry(du, &w);
	}
	if (!err)
		err = more;
	if (!err && last)
		close_dirs(du, 0, last);
	walk_release(&w);
	return err;
}

static void begin_output(struct du *du, const char *path)
{
	if (!du->cli->json) {
		printf("%10s %10s %10s %10s %10s  %s\n", "LOGICAL", "HOLES", "STORED", "SHARED", "IN BASES", "PATH");
		return;
	}
	json_begin(&du->js, stdout);
	json_object(&du->js, NULL);
	json_string(&du->js, "image", image_path(du->img));
	json_string(&du->js, "path", path);
	json_array(&du->js, "entries");
}

static int do_du(struct du *du, const char *path)
{
	uint32_t ino;
	int err = cli_walk(du->img, path, &ino);

	if (err)
		return err;
	du->seen = calloc(1, walk_seen_bytes(du->img));
	err = du->seen ? usage_new(du->img, &du->usage) : -ENOMEM;
	if (!err) {
		begin_output(du, path);
		err = du_below(du, ino, path);
		if (du->cli->json) {
			json_close(&du->js);
			json_bool(&du->js, "complete", err == 0);
			json_close(&du->js);
			json_end(&du->js);
		}
	}
	if (err && err != -EBADMSG)
		log_error("cannot look through '%s': %s", image_path(du->img), strerror(-err));
	usage_free(du->usage);
	free(du->seen);
	free(du->dirs);
	return err;
}

static int run_du(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct du du = { .cli = &cli };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "asb", longs)) != -1) {
		if (c == 'a')
			du.all = true;
		else if (c == 's')
			du.summarize = true;
		else
			return cli_stop_code(&cli);
	}
	rc = cli_operands(&cli, argc, argv, 1, 2);
	if (rc)
		return rc;
	rc = cli_open_image(&cli, argv[optind], &du.img);
	if (rc)
		return cli_exit_code(rc);
	rc = do_du(&du, argc - optind > 1 ? argv[optind + 1] : "");
	image_close(du.img);
	return cli_exit_code(rc);
}

const struct verb verb_du = {
	.name = "du",
	.synopsis = "[-a | -s] IMAGE [PATH]",
	.summary = "Show what files and directories take, as files and in the image",
	.help = "LOGICAL: size as files. HOLES: zeros that are not stored. STORED: bytes in the image; a chunk that\n"
		"several files use is divided among them, so STORED adds up. SHARED: bytes of chunks that are\n"
		"stored once for several uses. IN BASES: bytes that are stored in base images instead.\n\n"
		"  -a, --all            files too, not only directories\n"
		"  -s, --summarize      the total only\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           as JSON\n"
		"      --base-path DIR  look for base images there too; may be repeated\n",
	.run = run_du,
};
