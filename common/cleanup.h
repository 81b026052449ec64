/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scope-bound release of what a function owns: _cleanup_free_ and _cleanup_close_ on a local, and
 * steal_ptr()/steal_fd() when ownership moves on.
 */
#ifndef THAW_COMMON_CLEANUP_H
#define THAW_COMMON_CLEANUP_H

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

static inline void cleanup_fclose(FILE **f)
{
	if (*f)
		fclose(*f);
}

static inline void cleanup_closedir(DIR **d)
{
	if (*d)
		closedir(*d);
}

static inline void cleanup_unlock(pthread_mutex_t **m)
{
	if (*m)
		pthread_mutex_unlock(*m);
}

static inline pthread_mutex_t *lock_mutex(pthread_mutex_t *m)
{
	pthread_mutex_lock(m);
	return m;
}

#define _cleanup_(f)       __attribute__((cleanup(f)))
#define _cleanup_free_     _cleanup_(cleanup_free)
#define _cleanup_close_    _cleanup_(cleanup_close)
#define _cleanup_fclose_   _cleanup_(cleanup_fclose)
#define _cleanup_closedir_ _cleanup_(cleanup_closedir)

/* hold a mutex until the end of the scope */
#define LOCK_GUARD(mutex)  _cleanup_(cleanup_unlock) pthread_mutex_t *guard_ __attribute__((unused)) = lock_mutex(mutex)

static inline void *steal_ptr_(void *pp)
{
	void *p = *(void **)pp;

	*(void **)pp = NULL;
	return p;
}
#define steal_ptr(pp) ((__typeof__(*(pp)))steal_ptr_(pp))

static inline int steal_fd(int *fd)
{
	int v = *fd;

	*fd = -1;
	return v;
}

#endif
