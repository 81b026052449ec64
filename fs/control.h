/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the supervisor and its workers, over a SOCK_SEQPACKET socket pair: one fixed-size struct, at
 * most one descriptor with it. Both ends are the same program.
 */
#ifndef THAW_FS_CONTROL_H
#define THAW_FS_CONTROL_H

#include <stdint.h>

#define CONTROL_FD_ENV   "THAWFS_CONTROL_FD"
#define CONTROL_NAME_MAX 256 /* with the NUL */

enum control_type {
	/* supervisor to worker */
	CONTROL_CONFIG = 1, /* descriptor: memory with struct fs_config */
	CONTROL_STATS,      /* descriptor: the shared struct stats */
	CONTROL_INIT,       /* descriptor: memory with struct session_init */
	CONTROL_FUSE,       /* descriptor: /dev/fuse */
	CONTROL_SENTINEL,   /* descriptor: closes when the worker begins to die (worker.c) */
	CONTROL_IMAGE,      /* slot, descriptor: an image, listed under its name */
	CONTROL_UNLIST,     /* slot: the name is gone, the image stays */
	CONTROL_RETIRE,     /* slot: nobody can use it any more */
	CONTROL_SETTLED,    /* all images known so far were sent: get ready */
	CONTROL_ACTIVATE,   /* serve */
	CONTROL_STOP,       /* finish what is under way and exit */

	/* worker to supervisor */
	CONTROL_READY,    /* standing by */
	CONTROL_SERVING,  /* answer to ACTIVATE */
	CONTROL_FOUND,    /* descriptor: an image in the store; becomes a slot */
	CONTROL_VANISHED, /* slot */
	CONTROL_SCANNED,  /* the store was read through once */
};

struct control_msg {
	uint32_t type;
	uint32_t slot;
	uint8_t id[16];
	/* which file it is, so that the same one is not found twice */
	uint64_t dev, ino, size;
	int64_t mtime_ns;
	uint32_t listed;
	char name[CONTROL_NAME_MAX]; /* as the mount shows it */
	char file[CONTROL_NAME_MAX]; /* file name in the store */
};

/*
 * control_send - send a message, with @fd unless it is -1; the caller keeps it
 * Return: 0, -EPIPE and others of sendmsg(2). Waits when the socket is full.
 */
int control_send(int sock, const struct control_msg *msg, int fd);
int control_send_type(int sock, enum control_type type, int fd);

/*
 * control_recv - receive one message
 * @ret_fd:  the descriptor that came with it, or -1
 * Return: 1, 0 at the end of the stream, -EAGAIN on a non-blocking socket without one, -EMFILE if the
 * descriptor had to be dropped, -EPROTO, -errno
 */
int control_recv(int sock, struct control_msg *ret, int *ret_fd);

#endif
