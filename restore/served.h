/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarts whose memory a page server brings: what thawfs-mtcp-restart is handed in mode uffd. A keeper (keeper.h) is
 * started in the background; it serves straight from the image, on demand and else in the background, and ends when
 * all memory is there or the process is gone.
 */
#ifndef THAW_RESTORE_SERVED_H
#define THAW_RESTORE_SERVED_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/image.h"

struct served_opts {
	struct image *img;
	uint32_t ino, space; /* the member, and its memory */
	unsigned threads;    /* 0: as many as processors */
	bool profile;        /* say at the end what was served */
	/* descriptors that were open when the program began: the keeper closes them (from 3 on; 0 and 1 in any case) */
	const int *inherited;
	size_t n_inherited;
};

/* descriptors for the restarter, close-on-exec */
struct served {
	int image_fd;  /* the member, without the memory that is served */
	int spans_fd;  /* which that is */
	int server_fd; /* to the keeper */
	uint64_t bytes;
};

/*
 * served_start - prepare a restart and start its keeper
 * The calling process must have one thread. Damage in what has to be there at the start is logged.
 * Return: 0, -EBADMSG, -errno
 */
int served_start(const struct served_opts *opts, struct served *ret);

/* may this process use userfaultfd with all events that a restart needs? Return: 0, -EPERM, -errno. Nothing is logged
 */
int served_allowed(void);

#endif
