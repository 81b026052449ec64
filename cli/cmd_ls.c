/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/cli.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/describe.h"
#include "imgfmt/walk.h"

static const struct option longs[] = {
	{ "long", no_argument, NULL, 'l' },
	{ "recursive", no_argument, NULL, 'R' },
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_END,
};

struct ls {
	const struct cli *cli;
	struct image *img;
	struct json js;
	bool is_long, recursive;
};

static char type_char(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFDIR:
		return 'd';
	case S_IFLNK:
		return 'l';
	case S_IFIFO:
		return 'p';
	case S_IFSOCK:
		return 's';
	case S_IFCHR:
		return 'c';
	case S_IFBLK:
		return 'b';
	default:
		return '-';
	}
}

static const char *type_name(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "directory";
	case S_IFLNK:
		return "symlink";
	case S_IFIFO:
		return "fifo";
	case S_IFSOCK:
		return "socket";
	case S_IFCHR:
		return "char-device";
	case S_IFBLK:
		return "block-device";
	default:
		return "unknown";
	}
}

/* "-rwsr-xr-t" */
static void mode_text(uint32_t mode, char ret[11])
{
	static const char rwx[] = "rwxrwxrwx";
	static const struct {
		uint32_t bit;
		int at;
		char with_x, without;
	} special[] = { { S_ISUID, 3, 's', 'S' }, { S_ISGID, 6, 's', 'S' }, { S_ISVTX, 9, 't', 'T' } };

	ret[0] = type_char(mode);
	for (unsigned i = 0; i < 9; i++)
		ret[i + 1] = mode & (0400u >> i) ? rwx[i] : '-';
	for (size_t i = 0; i < 3; i++) {
		if (mode & special[i].bit)
			ret[special[i].at] = ret[special[i].at] == 'x' ? special[i].with_x : special[i].without;
	}
	ret[10] = '\0';
}

static void time_text(int64_t sec, char *ret, size_t room)
{
	time_t t = (time_t)sec;
	struct tm tm;

	if (!localtime_r(&t, &tm) || !strftime(ret, room, "%Y-%m-%d %H:%M", &tm))
		snprintf(ret, room, "%" PRId64, sec);
}

static int print_text(struct ls *ls, const struct walk *w, const char *name, size_t len)
{
	const struct image_inode *in = &w->inode;
	char mode[11], when[40], size[SIZE_TEXT_EXACT];
	const char *target;
	size_t target_len;

	if (ls->is_long) {
		mode_text(in->mode, mode);
		time_text(in->mtime_sec, when, sizeof(when));
		if (S_ISCHR(in->mode) || S_ISBLK(in->mode))
			snprintf(size, sizeof(size), "%u, %u", in->rdev_major, in->rdev_minor);
		else
			cli_size_text(ls->cli, in->size, size);
		printf("%s %3u %5u %5u %10s %s ", mode, in->nlink, in->uid, in->gid, size, when);
	}
	cli_print_name(stdout, name, len);
	if (ls->is_long && S_ISLNK(in->mode)) {
		int err = image_readlink(ls->img, in->ino, &target, &target_len);

		if (err)
			return err;
		fputs(" -> ", stdout);
		cli_print_name(stdout, target, target_len);
	}
	putchar('\n');
	return 0;
}

static int json_details(struct ls *ls, const struct image_inode *in)
{
	struct json *js = &ls->js;
	struct image_xattr x;
	const char *target;
	size_t len;
	int err = 0;

	if (S_ISLNK(in->mode)) {
		err = image_readlink(ls->img, in->ino, &target, &len);
		if (err)
			return err;
		json_bytes(js, "target", target, len);
	}
	if (S_ISCHR(in->mode) || S_ISBLK(in->mode)) {
		json_u64(js, "rdev_major", in->rdev_major);
		json_u64(js, "rdev_minor", in->rdev_minor);
	}
	if (S_ISREG(in->mode)) {
		json_u64(js, "hole_bytes", in->hole_bytes);
		json_string(js, "format", describe_file_format(in->format));
	}
	if (!in->n_xattrs)
		return 0;
	json_object_line(js, "xattrs");
	for (uint32_t i = 0; i < in->n_xattrs; i++) {
		char name[THAW_NAME_MAX + 1];

		err = image_xattr(ls->img, in, i, &x);
		if (err)
			break;
		snprintf(name, sizeof(name), "%.*s", (int)x.name_len, x.name);
		json_bytes(js, name, x.value, x.value_len);
	}
	json_close(js);
	return err;
}

static int print_json(struct ls *ls, const struct walk *w, const char *name, size_t len)
{
	const struct image_inode *in = &w->inode;
	struct json *js = &ls->js;
	int err;

	json_object_line(js, NULL);
	json_bytes(js, "path", name, len);
	json_string(js, "type", type_name(in->mode));
	json_format(js, "mode", "%04o", in->mode & 07777u);
	json_u64(js, "inode", in->ino);
	json_u64(js, "nlink", in->nlink);
	json_u64(js, "uid", in->uid);
	json_u64(js, "gid", in->gid);
	json_u64(js, "size", in->size);
	json_i64(js, "mtime_sec", in->mtime_sec);
	json_u64(js, "mtime_nsec", in->mtime_nsec);
	err = json_details(ls, in);
	json_close(js);
	return err;
}

/* a directory is listed by what is in it, anything else by itself */
static int list(struct ls *ls, uint32_t ino, const char *path)
{
	struct walk w;
	int err = walk_start(&w, ls->img, ino, path);
	bool dir;

	if (err)
		return err;
	dir = S_ISDIR(w.inode.mode);
	if (dir) { /* names from here on */
		w.path_len = 0;
		w.path[0] = '\0';
	}
	while ((err = walk_next(&w)) == 1) {
		if (dir && w.depth == 0)
			continue;
		if (!ls->recursive && S_ISDIR(w.inode.mode))
			walk_skip(&w);
		err = ls->cli->json ? print_json(ls, &w, w.path, w.path_len) : print_text(ls, &w, w.path, w.path_len);
		if (err)
			break;
	}
	walk_release(&w);
	return err;
}

static int do_ls(struct ls *ls, const char *path)
{
	uint32_t ino;
	int err = cli_walk(ls->img, path, &ino);

	if (err)
		return err;
	if (ls->cli->json) {
		json_begin(&ls->js, stdout);
		json_object(&ls->js, NULL);
		json_string(&ls->js, "image", image_path(ls->img));
		json_string(&ls->js, "path", path);
		json_array(&ls->js, "members");
	}
	err = list(ls, ino, path);
	if (ls->cli->json) {
		json_close(&ls->js);
		json_bool(&ls->js, "complete", err == 0);
		json_close(&ls->js);
		json_end(&ls->js);
	}
	if (err && err != -EBADMSG)
		log_error("cannot list '%s': %s", image_path(ls->img), strerror(-err));
	return err;
}

static int run_ls(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct ls ls = { .cli = &cli };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "lRb", longs)) != -1) {
		if (c == 'l')
			ls.is_long = true;
		else if (c == 'R')
			ls.recursive = true;
		else
			return cli_stop_code(&cli);
	}
	rc = cli_operands(&cli, argc, argv, 1, 2);
	if (rc)
		return rc;
	rc = cli_open_image(&cli, argv[optind], &ls.img);
	if (rc)
		return cli_exit_code(rc);
	rc = do_ls(&ls, argc - optind > 1 ? argv[optind + 1] : "");
	image_close(ls.img);
	return cli_exit_code(rc);
}

const struct verb verb_ls = {
	.name = "ls",
	.synopsis = "[-l] [-R] IMAGE [PATH]",
	.summary = "List what is in an image",
	.help = "  -l, --long           mode, links, owner, size and time too\n"
		"  -R, --recursive      all levels, as paths\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           everything, as JSON\n"
		"\nControl characters, backslashes and bytes that are not UTF-8 are shown as octal escapes.\n",
	.run = run_ls,
};
