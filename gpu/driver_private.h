/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA table, for the files that know CUDA: driver.c and checkpoint.c. */
#ifndef THAW_GPU_DRIVER_PRIVATE_H
#define THAW_GPU_DRIVER_PRIVATE_H

#include "gpu/cuda_list.h"
#include "gpu/driver.h"

struct cuda {
#define F(name, suffix, version, need, parameters) cu_result(*name) parameters;
	CUDA_FUNCTIONS(F)
#undef F
};

struct gpu_driver {
	void *lib;
	struct cuda cu;
	int version;
	unsigned n;
	struct gpu_info info[GPU_MAX];
};

/* an errno for a code; CU_SUCCESS: 0 */
int cuda_errno(cu_result code);
/* log "<what>: <the driver's words> (CUDA <code>)"; returns the errno */
int cuda_fail(const struct gpu_driver *drv, cu_result code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
