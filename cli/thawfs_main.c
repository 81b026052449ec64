/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs: find the verb, run it, make sure that what it printed arrived. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/verbs.h"
#include "common/log.h"
#include "common/version.h"

/*
 * With one of the descriptors 0 to 2 closed, the next file opened would take its number and be printed into. So
 * each gets something that fails when it is used: writing to 0 and reading from 1 and 2 is allowed.
 */
static void occupy_standard_fds(void)
{
	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
			continue;
		if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
			exit(CLI_FAILED);
	}
}

/* what is still in stdout's buffer may be what does not fit on the disk */
static int finish_stdout(int code)
{
	int err = 0;

	if (fflush(stdout) || ferror(stdout))
		err = errno ? errno : EIO;
	if (fclose(stdout) && !err && errno != EBADF)
		err = errno;
	if (!err)
		return code;
	log_error("cannot write to standard output: %s", strerror(err));
	return code == CLI_GOOD ? CLI_FAILED : code;
}

int main(int argc, char **argv)
{
	const struct verb *verb;

	occupy_standard_fds();
	if (argc < 2) {
		cli_overview(stderr);
		return CLI_USAGE;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		puts("thawfs " THAWFS_VERSION);
		return finish_stdout(CLI_GOOD);
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		cli_overview(stdout);
		return finish_stdout(CLI_GOOD);
	}
	verb = cli_find_verb(argv[1]);
	if (!verb)
		return cli_unknown_verb(argv[1]);
	return finish_stdout(verb->run(verb, argc - 1, argv + 1));
}
