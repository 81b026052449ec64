/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For C tests: the double of the driver that lies beside the test, or, with THAW_GPU=real, the driver of this machine
 * (then use_double() gives NULL, and cases that tell the double what to do are left out).
 */
#ifndef THAW_TESTS_USE_DOUBLE_H
#define THAW_TESTS_USE_DOUBLE_H

#include <dlfcn.h>
#include <stdbool.h>

#include "tests/double/double.h"
#include "tests/test.h"

static inline bool real_gpu(void)
{
	const char *text = getenv("THAW_GPU");

	return text && !strcmp(text, "real");
}

static inline thaw_double_fn *use_double(void)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 40);
	thaw_double_fn *fn;
	void *lib;

	if (real_gpu())
		return NULL;
	CHECK(n > 0);
	path[n] = '\0';
	strcpy(strrchr(path, '/'), "/double/libcuda.so.1");
	setenv("THAWFS_LIBCUDA", path, 1);
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(lib);
	*(void **)&fn = dlsym(lib, "thaw_double");
	CHECK(fn);
	return fn;
}

#endif
