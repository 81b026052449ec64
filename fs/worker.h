/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker: the process that answers the kernel's requests, or stands by to. It is this program again, started by
 * the supervisor, which tells it everything over the socket that CONTROL_FD_ENV names (control.h).
 */
#ifndef THAW_FS_WORKER_H
#define THAW_FS_WORKER_H

/* Return: an exit status */
int worker_main(void);

#endif
