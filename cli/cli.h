/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs of the command line share: the table entry, options that mean the same everywhere, exit
 * codes, how images are opened and how sizes and names are printed.
 *
 * A new verb: write cli/cmd_NAME.c, which defines verb_NAME, and add X(NAME) to cli/verbs.h.
 */
#ifndef THAW_CLI_CLI_H
#define THAW_CLI_CLI_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/progress.h"
#include "imgfmt/image.h"

enum cli_exit {
	CLI_GOOD = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_DAMAGED = 3,
	/* snap, prune and clean only, for schedulers: what to do next depends on it */
	CLI_STOPPED = 4,  /* time is up, or a signal came: run it again */
	CLI_BUSY = 5,     /* somebody else works on the series */
	CLI_CHANGED = 6,  /* the source changed while it was read */
	CLI_NO_SPACE = 7, /* in the store */
};

struct verb {
	const char *name;
	const char *synopsis; /* what follows "thawfs NAME " */
	const char *summary;  /* one line for the list of verbs */
	const char *help;     /* what 'thawfs help NAME' says after synopsis and summary */
	/* argv[0] is the verb. Return: enum cli_exit */
	int (*run)(const struct verb *verb, int argc, char **argv);
};

/* all verbs in the order of the help, ended by NULL (verbs.c) */
extern const struct verb *const cli_verbs[];
/* NULL if there is none */
const struct verb *cli_find_verb(const char *name);
/* report a verb that there is not, with a guess. Return: CLI_USAGE */
int cli_unknown_verb(const char *name);
/* the list of verbs */
void cli_overview(FILE *out);

/* -- options ---------------------------------------------------------------------------------- */

#define CLI_BASES_MAX 64

/* zeroed but for the verb, then filled by cli_getopt() */
struct cli {
	const struct verb *verb;
	bool json, bytes, quiet;
	bool done; /* --help was given and answered: exit with CLI_GOOD */
	enum progress_mode progress;
	unsigned threads; /* 0: as many as processors */
	const char *base_path[CLI_BASES_MAX + 1];
	size_t n_base_path;
};

/* values of long options that have no letter; verbs number their own from CLI_OPT_OWN */
enum {
	CLI_OPT_HELP = 256,
	CLI_OPT_JSON,
	CLI_OPT_PROGRESS,
	CLI_OPT_BASE_PATH,
	CLI_OPT_OWN,
};

/* entries for a verb's table of long options; cli_getopt() handles what they mean */
#define CLI_LONG_JSON                                   \
	{                                               \
		"json", no_argument, NULL, CLI_OPT_JSON \
	}
#define CLI_LONG_BYTES                          \
	{                                       \
		"bytes", no_argument, NULL, 'b' \
	}
#define CLI_LONG_QUIET                          \
	{                                       \
		"quiet", no_argument, NULL, 'q' \
	}
#define CLI_LONG_THREADS                                \
	{                                               \
		"threads", required_argument, NULL, 'j' \
	}
#define CLI_LONG_PROGRESS                                             \
	{                                                             \
		"progress", required_argument, NULL, CLI_OPT_PROGRESS \
	}
#define CLI_LONG_BASE_PATH                                              \
	{                                                               \
		"base-path", required_argument, NULL, CLI_OPT_BASE_PATH \
	}
#define CLI_LONG_END                                 \
	{ "help", no_argument, NULL, CLI_OPT_HELP }, \
	{                                            \
		NULL, 0, NULL, 0                     \
	}

/*
 * cli_getopt - the next option that is the verb's own business
 * Options and operands may be mixed. @letters is getopt's string, without a leading ':'.
 * Return: the option's value with its argument in optarg; -1 after the last (operands are
 * argv[optind…]); '?' after a usage error, which was reported, or -h and --help (cli->done): return cli_stop_code().
 */
int cli_getopt(struct cli *cli, int argc, char **argv, const char *letters, const struct option *longs);
static inline int cli_stop_code(const struct cli *cli)
{
	return cli->done ? CLI_GOOD : CLI_USAGE;
}

/* report wrong usage. Return: CLI_USAGE */
int cli_usage(const struct cli *cli, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* check the number of operands after the options. Return: 0, or CLI_USAGE after a message */
int cli_operands(const struct cli *cli, int argc, char **argv, int min, int max);

/* whole numbers and sizes ("256K", "1M", "2G"; powers of 1024). Return: 0 or -EINVAL/-ERANGE */
int cli_number(const char *text, long min, long max, long *ret);
int cli_size(const char *text, uint64_t *ret);

/* -- doing ------------------------------------------------------------------------------------ */

/* the exit code for a negative errno (or 0): -EBADMSG is damage */
int cli_exit_code(int err);
/* the same for verbs that change a series */
int cli_series_exit_code(int err);

/* open an image that is a file, or by its directory on a mount. Messages are logged */
int cli_open_image(const struct cli *cli, const char *path, struct image **ret);

/*
 * where an image ends in a path that leads into it: the slash behind the first part that is a file; or, for files and
 * directories on a mount (@path is absolute), behind the root of the image. NULL: there is none
 */
const char *cli_image_end(const char *path);
const char *cli_mount_end(const char *path);

/* resolve the PATH operand of a verb. Return: 0, or -errno after a message */
int cli_walk(struct image *img, const char *path, uint32_t *ret_ino);

/* set once by SIGINT, SIGTERM or SIGHUP; a second signal ends the process at once */
extern volatile int cli_stop;
void cli_catch_signals(void);

/* -- printing --------------------------------------------------------------------------------- */

/* human, or exact with -b; @ret has room for SIZE_TEXT_EXACT bytes */
#define SIZE_TEXT_EXACT 24
const char *cli_size_text(const struct cli *cli, uint64_t bytes, char ret[SIZE_TEXT_EXACT]);

/* what follows a noun after @n */
static inline const char *cli_plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/* describe_put_name() */
void cli_print_name(FILE *out, const char *name, size_t len);

#endif
