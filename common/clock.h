/* SPDX-License-Identifier: Apache-2.0 */
/* The clock that only goes forward, for waiting and measuring. */
#ifndef THAW_COMMON_CLOCK_H
#define THAW_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_ms(void)
{
	return clock_ns() / 1000000;
}

static inline double clock_seconds(void)
{
	return (double)clock_ns() * 1e-9;
}

#endif
