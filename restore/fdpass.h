/* SPDX-License-Identifier: Apache-2.0 */
/* A few bytes from a local socket, and the descriptor that comes with them. */
#ifndef THAW_RESTORE_FDPASS_H
#define THAW_RESTORE_FDPASS_H

#include <stddef.h>
#include <sys/types.h>

/*
 * fdpass_receive - one recvmsg(2)
 * @ret_fd:  the descriptor (close-on-exec), or -1; the caller closes it
 * Return: the number of bytes, 0 at the end, -errno
 */
ssize_t fdpass_receive(int sock, void *buf, size_t len, int *ret_fd);

#endif
