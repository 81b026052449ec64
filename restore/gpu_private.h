/* SPDX-License-Identifier: Apache-2.0 */
/* What gpu_load.c and gpu_save.c share. */
#ifndef THAW_RESTORE_GPU_PRIVATE_H
#define THAW_RESTORE_GPU_PRIVATE_H

/*
 * Call @fn in a thread of its own, because the driver's calls change which context is current; the thread's
 * gpu_error() becomes the caller's.
 */
int gpu_in_thread(int (*fn)(void *arg), void *arg);

#endif
