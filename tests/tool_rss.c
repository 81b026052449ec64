/* SPDX-License-Identifier: Apache-2.0 */
/* tool_rss FILE COMMAND...: run the command, write its peak resident memory in KiB to FILE, exit as it did. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rusage usage;
	int status;
	FILE *out;
	pid_t pid;

	if (argc < 3) {
		fprintf(stderr, "usage: tool_rss FILE COMMAND...\n");
		return 2;
	}
	pid = fork();
	if (pid == 0) {
		execvp(argv[2], argv + 2);
		fprintf(stderr, "tool_rss: cannot run '%s': %s\n", argv[2], strerror(errno));
		_exit(127);
	}
	if (pid < 0 || wait4(pid, &status, 0, &usage) != pid) {
		fprintf(stderr, "tool_rss: cannot run '%s': %s\n", argv[2], strerror(errno));
		return 1;
	}
	out = fopen(argv[1], "we");
	if (!out || fprintf(out, "%ld\n", usage.ru_maxrss) < 0 || fclose(out)) {
		fprintf(stderr, "tool_rss: cannot write '%s': %s\n", argv[1], strerror(errno));
		return 1;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
