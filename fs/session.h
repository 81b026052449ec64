/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE session, which outlives the processes that serve it: the supervisor answers INIT once, a worker replays
 * that to libfuse and then serves the same /dev/fuse, with a loop of its own in place of libfuse's (whose buffers
 * are not resident when a read meets them: a SIGKILL then would fail that request).
 *
 * One session per process. Thread model: session_serve() starts the threads that call the operations (ops.h).
 */
#ifndef THAW_FS_SESSION_H
#define THAW_FS_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"

/* INIT as the kernel asked and we answered; raw messages */
struct session_init {
	uint32_t in_len, out_len;
	uint8_t in[256], out[256];
	bool passthrough, io_uring; /* agreed on */
};

/*
 * session_negotiate - read INIT from a fresh /dev/fuse and answer it (supervisor)
 * @passthrough, @io_uring:  ask for it, where the kernel has it
 * Return: 0, -errno, logged
 */
int session_negotiate(int fuse_fd, bool passthrough, bool io_uring, struct session_init *ret);

/* was this program built with a libfuse that takes requests over io_uring (3.18)? */
bool session_knows_io_uring(void);

/* does the kernel send requests again when told to (FUSE_NOTIFY_RESEND, Linux 6.9)? */
bool session_can_resend(const struct session_init *init);

/* tell it to */
void session_resend(int fuse_fd);

/*
 * session_open - make fs->se and bring it to where session_negotiate() left the kernel (worker)
 * With io_uring the kernel is served from here on, by threads of libfuse, until session_close().
 * Takes @fuse_fd. Return: 0; -EPROTO if this libfuse answers INIT differently; -errno; logged
 */
int session_open(struct fs *fs, int fuse_fd, const struct session_init *init);

/*
 * session_serve - start fs->cfg.threads threads
 * @ended_fd:  an eventfd that is written to when the kernel ends the session (it was unmounted or aborted)
 */
int session_serve(struct fs *fs, int ended_fd);

/* answer the open that this thread replies to next with backing file @id; 0: an ordinary open */
void session_pass_open(uint32_t id);

/* let the threads finish what they have read, and join them. Also right after the session has ended */
void session_stop(struct fs *fs);
void session_close(struct fs *fs);

#endif
