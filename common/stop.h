/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A flag by which a signal handler or a thread asks others to give up. It is a plain int, so that callers need no more
 * than an int; not 0 means give up. It orders nothing else: who sees it set knows that, and no more.
 */
#ifndef THAW_COMMON_STOP_H
#define THAW_COMMON_STOP_H

#include <stdbool.h>
#include <stddef.h>

/* @stop: NULL is a flag that nobody sets */
static inline bool stop_asked(const volatile int *stop)
{
	return stop && __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

static inline void stop_ask(volatile int *stop)
{
	__atomic_store_n(stop, 1, __ATOMIC_RELAXED);
}

#endif
