/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "common/bytes.h"
#include "common/log.h"

/* how many letters must change to make one from the other, swaps of neighbours counting once */
static unsigned distance(const char *a, const char *b)
{
	enum { MAX = 24 };
	unsigned d[MAX + 1][MAX + 1];
	size_t n = strlen(a), m = strlen(b);

	if (n > MAX || m > MAX)
		return MAX;
	for (size_t i = 0; i <= n; i++)
		d[i][0] = (unsigned)i;
	for (size_t j = 0; j <= m; j++)
		d[0][j] = (unsigned)j;
	for (size_t i = 1; i <= n; i++) {
		for (size_t j = 1; j <= m; j++) {
			unsigned best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);

			best = (unsigned)min_u64(best, min_u64(d[i - 1][j], d[i][j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				best = (unsigned)min_u64(best, d[i - 2][j - 2] + 1);
			d[i][j] = best;
		}
	}
	return d[n][m];
}

int cli_unknown_verb(const char *name)
{
	const char *guess = NULL;
	unsigned best = 3;

	for (size_t i = 0; cli_verbs[i]; i++) {
		unsigned d = distance(name, cli_verbs[i]->name);

		/* a word all of whose letters are wrong is no guess */
		if (d < best && d < strlen(cli_verbs[i]->name)) {
			best = d;
			guess = cli_verbs[i]->name;
		}
	}
	if (guess)
		log_error("unknown verb '%s'; did you mean '%s'? ('thawfs help' lists all)", name, guess);
	else
		log_error("unknown verb '%s' ('thawfs help' lists all)", name);
	return CLI_USAGE;
}

void cli_overview(FILE *out)
{
	fprintf(out, "Usage: thawfs VERB [OPTION…] [ARGUMENT…]\n\n"
		     "Pack checkpoint images into compact verified files, look into them, take them out again.\n\n");
	for (size_t i = 0; cli_verbs[i]; i++)
		fprintf(out, "  %-10s %s\n", cli_verbs[i]->name, cli_verbs[i]->summary);
	fprintf(out,
		"\n'thawfs help VERB' tells more. Exit codes: 0 good, 1 failed, 2 wrong usage, 3 damaged image.\n");
}

static int run_help(const struct verb *self, int argc, char **argv)
{
	const struct verb *verb;

	(void)self;
	if (argc < 2) {
		cli_overview(stdout);
		return CLI_GOOD;
	}
	if (!strcmp(argv[1], "--help"))
		return run_help(self, 1, argv);
	verb = cli_find_verb(argv[1]);
	if (!verb)
		return cli_unknown_verb(argv[1]);
	printf("Usage: thawfs %s %s\n\n%s.\n", verb->name, verb->synopsis, verb->summary);
	if (verb->help)
		printf("\n%s", verb->help);
	return CLI_GOOD;
}

const struct verb verb_help = {
	.name = "help",
	.synopsis = "[VERB]",
	.summary = "Say what a verb does",
	.run = run_help,
};
