/* SPDX-License-Identifier: Apache-2.0 */
/* From regions of an address space to ranges of a page server. */
#ifndef THAW_RESTORE_RANGES_H
#define THAW_RESTORE_RANGES_H

#include <stddef.h>
#include <stdint.h>

#include "restore/pageserver.h"

/* add the range of a region at @to, unless only the kernel has it. Return: how many were added */
size_t ranges_add(struct pageserver_range *to, uint64_t addr, uint64_t len, uint32_t flags);

#endif
