/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole reads and writes: interrupted calls go on, parts are followed by the rest. Nothing is logged.
 *
 * Return: 0; -errno; -EIO where a file ends before what is to be read, or takes nothing of what is to be written.
 */
#ifndef THAW_COMMON_IO_H
#define THAW_COMMON_IO_H

#include <stddef.h>
#include <stdint.h>

int io_read_at(int fd, void *buf, size_t len, uint64_t off);
int io_write_at(int fd, const void *buf, size_t len, uint64_t off);
/* at the descriptor's position, so pipes will do */
int io_write(int fd, const void *buf, size_t len);

#endif
