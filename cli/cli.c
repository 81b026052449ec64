/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/describe.h"

#define THREADS_MAX 1024

volatile int cli_stop;

int cli_usage(const struct cli *cli, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_error("%s (try 'thawfs help %s')", text, cli->verb->name);
	return CLI_USAGE;
}

int cli_operands(const struct cli *cli, int argc, char **argv, int min, int max)
{
	int n = argc - optind;

	if (n < min)
		return cli_usage(cli, "too few arguments: usage is 'thawfs %s %s'", cli->verb->name,
				 cli->verb->synopsis);
	if (n > max)
		return cli_usage(cli, "unexpected argument '%s'", argv[optind + max]);
	return 0;
}

int cli_number(const char *text, long min, long max, long *ret)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(text, &end, 10);
	if (end == text || *end)
		return -EINVAL;
	if (errno || v < min || v > max)
		return -ERANGE;
	*ret = v;
	return 0;
}

int cli_size(const char *text, uint64_t *ret)
{
	static const char units[] = "KMGTPE";
	unsigned shift = 0;
	const char *unit;
	uint64_t v;
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno)
		return -ERANGE;
	if (*end) {
		unit = strchr(units, toupper((unsigned char)*end));
		if (!unit)
			return -EINVAL;
		shift = 10 * (unsigned)(unit - units + 1);
		end++;
		if (!strcmp(end, "iB"))
			end += 2;
	}
	if (*end)
		return -EINVAL;
	if (shift && v > UINT64_MAX >> shift)
		return -ERANGE;
	*ret = v << shift;
	return 0;
}

/* what getopt_long() returned '?' or ':' for, in words */
static int bad_option(const struct cli *cli, int code, char **argv, const struct option *longs)
{
	const char *word = argv[optind - 1];
	bool is_long = optopt == 0 || optopt > UCHAR_MAX || !strncmp(word, "--", 2);
	int word_len = (int)strcspn(word, "=");

	if (code == ':') {
		if (is_long)
			return cli_usage(cli, "option '%.*s' needs an argument", word_len, word);
		return cli_usage(cli, "option '-%c' needs an argument", optopt);
	}
	if (optopt == 0) {
		for (const struct option *o = longs; o->name; o++) {
			if (word_len > 2 && !strncmp(o->name, word + 2, (size_t)word_len - 2))
				return cli_usage(cli, "option '%.*s' is ambiguous", word_len, word);
		}
		return cli_usage(cli, "unknown option '%.*s'", word_len, word);
	}
	if (is_long)
		return cli_usage(cli, "option '%.*s' takes no argument", word_len, word);
	return cli_usage(cli, "unknown option '-%c'", optopt);
}

/* options that mean the same for every verb. Return: 0 if it was one, 1 if not, '?' after an error */
static int common_option(struct cli *cli, int c)
{
	long n;

	switch (c) {
	case CLI_OPT_JSON:
		cli->json = true;
		return 0;
	case 'b':
		cli->bytes = true;
		return 0;
	case 'q':
		cli->quiet = true;
		return 0;
	case 'j':
		if (cli_number(optarg, 1, THREADS_MAX, &n)) {
			cli_usage(cli, "-j takes a number from 1 to %d, not '%s'", THREADS_MAX, optarg);
			return '?';
		}
		cli->threads = (unsigned)n;
		return 0;
	case CLI_OPT_PROGRESS:
		if (progress_parse(optarg, &cli->progress)) {
			cli_usage(cli, "--progress takes auto, none or bar, not '%s'", optarg);
			return '?';
		}
		return 0;
	case CLI_OPT_BASE_PATH:
		if (cli->n_base_path == CLI_BASES_MAX) {
			cli_usage(cli, "--base-path may be given %d times", CLI_BASES_MAX);
			return '?';
		}
		if (access(optarg, R_OK | X_OK))
			log_warn("cannot look for bases in '%s': %s", optarg, strerror(errno));
		cli->base_path[cli->n_base_path++] = optarg;
		return 0;
	default:
		return 1;
	}
}

int cli_getopt(struct cli *cli, int argc, char **argv, const char *letters, const struct option *longs)
{
	char spec[64];
	int c, rc;

	snprintf(spec, sizeof(spec), ":h%s", letters);
	opterr = 0;
	for (;;) {
		c = getopt_long(argc, argv, spec, longs, NULL);
		if (c == -1)
			return -1;
		if (c == '?' || c == ':') {
			bad_option(cli, c, argv, longs);
			return '?';
		}
		if (c == CLI_OPT_HELP || c == 'h') {
			char *help[] = { (char *)"help", (char *)cli->verb->name, NULL };

			optind = 1;
			cli->done = true;
			cli_find_verb("help")->run(cli_find_verb("help"), 2, help);
			return '?';
		}
		rc = common_option(cli, c);
		if (rc)
			return rc == '?' ? '?' : c;
	}
}

int cli_exit_code(int err)
{
	if (err == 0)
		return CLI_GOOD;
	return err == -EBADMSG ? CLI_DAMAGED : CLI_FAILED;
}

int cli_series_exit_code(int err)
{
	switch (err) {
	case -EINTR:
	case -ETIME:
		return CLI_STOPPED;
	case -EBUSY:
		return CLI_BUSY;
	case -EAGAIN:
		return CLI_CHANGED;
	case -ENOSPC:
	case -EDQUOT:
		return CLI_NO_SPACE;
	default:
		return cli_exit_code(err);
	}
}

/* the text of @dir/.thaw/info.json; NULL if @dir is not an image on a mount */
static char *read_info_json(const char *dir)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_fclose_ FILE *f = NULL;
	char *text = NULL;
	size_t room = 0;

	if (asprintf(&path, "%s/.thaw/info.json", dir) < 0) {
		path = NULL;
		return NULL;
	}
	f = fopen(path, "re");
	/* to the end: the text has no NUL */
	if (!f || getdelim(&text, &room, '\0', f) < 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* a directory that shows an image on a mount stands for that image, if it is still where it was */
static int open_mounted(const struct image_opts *opts, const char *dir, struct image **ret)
{
	_cleanup_free_ char *text = read_info_json(dir);
	cJSON *json = text ? cJSON_Parse(text) : NULL;
	const char *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "path"));
	const char *want = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "id"));
	struct image *img = NULL;
	int err = -EISDIR;
	char id[33];

	if (!path || !want) {
		log_error("cannot open '%s': it is a directory, and not one of an image on a mount", dir);
	} else {
		err = image_open(path, opts, &img);
		if (!err)
			image_id_text(image_info(img)->id, id);
		if (!err && strcmp(id, want) != 0) {
			log_error("cannot open '%s': another image is in '%s' now", dir, path);
			image_close(img);
			err = -ESTALE;
		}
	}
	cJSON_Delete(json);
	if (!err)
		*ret = img;
	return err;
}

int cli_open_image(const struct cli *cli, const char *path, struct image **ret)
{
	struct image_opts opts = { .base_path = cli->n_base_path ? cli->base_path : NULL };
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return open_mounted(&opts, path, ret);
	return image_open(path, &opts, ret);
}

const char *cli_image_end(const char *path)
{
	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		_cleanup_free_ char *prefix = strndup(path, (size_t)(slash - path));
		struct stat st;

		if (prefix && *prefix && stat(prefix, &st) == 0 && S_ISREG(st.st_mode))
			return slash;
	}
	return NULL;
}

const char *cli_mount_end(const char *path)
{
	for (const char *slash = strrchr(path, '/'); slash && slash > path;
	     slash = memrchr(path, '/', (size_t)(slash - path))) {
		_cleanup_free_ char *info = NULL;

		if (asprintf(&info, "%.*s/.thaw/info.json", (int)(slash - path), path) < 0) {
			info = NULL;
			return NULL;
		}
		if (access(info, R_OK) == 0)
			return slash;
	}
	return NULL;
}

int cli_walk(struct image *img, const char *path, uint32_t *ret_ino)
{
	int err = image_walk(img, path, ret_ino);

	if (err == -ENOENT || err == -ENOTDIR)
		log_error("cannot find '%s' in '%s': %s", path, image_path(img),
			  err == -ENOENT ? "no such member" : "a part of the path is not a directory");
	else if (err && err != -EBADMSG)
		log_error("cannot find '%s' in '%s': %s", path, image_path(img), strerror(-err));
	return err;
}

static void on_signal(int sig)
{
	cli_stop = sig;
}

/* a limit of file sizes is the error of a write, which is said and cleaned up after */
static void on_file_size(int sig)
{
	(void)sig;
}

void cli_catch_signals(void)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = SA_RESETHAND | SA_RESTART };
	static const int sigs[] = { SIGINT, SIGTERM, SIGHUP };

	sigemptyset(&sa.sa_mask);
	sigaction(SIGXFSZ, &(struct sigaction){ .sa_handler = on_file_size }, NULL);
	for (size_t i = 0; i < sizeof(sigs) / sizeof(sigs[0]); i++) {
		struct sigaction old;

		/* nohup and the like stay in force */
		if (sigaction(sigs[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(sigs[i], &sa, NULL);
	}
}

const char *cli_size_text(const struct cli *cli, uint64_t bytes, char ret[SIZE_TEXT_EXACT])
{
	if (!cli->bytes)
		return size_text(bytes, ret);
	snprintf(ret, SIZE_TEXT_EXACT, "%" PRIu64, bytes);
	return ret;
}

void cli_print_name(FILE *out, const char *name, size_t len)
{
	describe_put_name(out, name, len);
}
