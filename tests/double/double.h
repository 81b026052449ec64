/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A double of libcuda.so.1 for machines without a GPU, which behaves like a driver with discrete cards and watches how
 * it is used. It is loaded by dlopen like the real one.
 *
 * Device memory is a memfd, so that an allocation can be exported to other processes for real; device addresses are
 * PROT_NONE, so the CPU that touches one faults. Each stream is a thread; copies happen late. Whatever memory is not
 * written holds rubbish.
 *
 * Set by the environment, THAW_DOUBLE_<NAME>=number, or while it runs by thaw_double("name", number):
 *   DEVICES (1)     CAPACITY bytes for each (4 GiB)    VERSION (12080)      ROTATE: ordinals are moved by so many
 *   DELAY_US before each copy     MBPS: a copy takes as long as that rate needs     NOCOPY=1: nothing is really copied
 *   REFUSE=1: no address of the caller's choice    CHIP=1: other name and compute capability    CHECK=1: watch sources
 *   FAIL_AT=n, FAIL_CODE=c: the n-th call returns c    ASYNC_AT=n, ASYNC_CODE=c: the n-th thing done by a stream fails
 *   STORAGE=1: checkpoints leave storage to the caller       REGISTER=0: nothing can be registered
 * THAW_DOUBLE_REPORT=FILE: a line for each process at its end, and one for each leak and each violation:
 * copies from pageable memory, memory given back under a copy, a source changed under a copy, use after fork.
 * THAW_DOUBLE_STATE=DIR: where processes that can be checkpointed are found.
 */
#ifndef THAW_TESTS_DOUBLE_H
#define THAW_TESTS_DOUBLE_H

/*
 * Set a number, and get the one that was set before. Also: "calls" since "reset"; "fired": how often an error was
 * injected; "problems": print all leaks and violations so far, and count them; "reset": counters, injection and lost
 * devices. -1: there is no such name
 */
typedef long thaw_double_fn(const char *name, long value);

#endif
